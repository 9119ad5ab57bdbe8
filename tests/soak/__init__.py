"""Hours of mixed load and faults, after which a worker and its clients must be as small as before."""

import sys
from pathlib import Path

# The tests' helpers are found as under pytest.
sys.path.insert(0, str(Path(__file__).parents[1]))
