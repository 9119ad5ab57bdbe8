"""What the service itself costs: `python -m tests.benchmarks.service` from the root of the repository."""

import sys
from pathlib import Path

# What tests share is found as it is under pytest.
sys.path.append(str(Path(__file__).parents[2]))
