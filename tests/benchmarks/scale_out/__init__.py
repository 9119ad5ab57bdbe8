"""One, two and four workers on machines of their own, as far as the network goes, and what clients see of faults."""

import sys
from pathlib import Path

# Shared with the tests: workers, loads and networks.
sys.path.insert(0, str(Path(__file__).parents[2]))
