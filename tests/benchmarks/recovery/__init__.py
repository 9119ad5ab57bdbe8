"""How long it takes from a fault to the first good reply."""

import sys
from pathlib import Path

# What tests share is found as it is under pytest.
sys.path.insert(0, str(Path(__file__).parents[2]))
