"""Hours of mixed load and faults, after which a worker and its clients must be as small as before."""

import sys
from pathlib import Path

# What tests share is found as it is under pytest.
sys.path.insert(0, str(Path(__file__).parents[1]))
