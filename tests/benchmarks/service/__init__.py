"""The costs of the service itself: `python -m tests.benchmarks.service` from the root of the repository."""
