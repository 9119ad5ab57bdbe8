"""One client over several workers: what the choice costs, and what callers see of workers that go."""

import sys
from pathlib import Path

# What tests share is found as it is under pytest.
sys.path.insert(0, str(Path(__file__).parents[2]))
