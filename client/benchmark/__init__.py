"""Measures the speed of a worker as the client sees it."""
