"""Benchmarks, each run from the root as `python -m tests.benchmarks.NAME`."""

import sys
from pathlib import Path

# The tests' helpers are imported as `support`, the name that pytest's `pythonpath` gives them.
sys.path.append(str(Path(__file__).parents[1]))
