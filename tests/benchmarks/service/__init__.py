"""What the service itself costs: `python -m tests.benchmarks.service` from the root of the repository."""
