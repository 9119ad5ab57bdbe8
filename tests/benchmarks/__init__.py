"""Benchmarks, each run from the root as `python -m tests.benchmarks.NAME`."""

import sys
from pathlib import Path

# The tests' helpers are imported as `support`, as pytest's `pythonpath` allows.
sys.path.append(str(Path(__file__).parents[1]))
