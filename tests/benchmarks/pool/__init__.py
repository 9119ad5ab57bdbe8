"""One client over several workers: what the choice costs, and what callers see of workers that go."""
