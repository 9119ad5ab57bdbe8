"""Every benchmark can be imported from the root of the repository."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_benchmark_starts_from_the_root() -> None:
    files = [path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / "tests" / "benchmarks").rglob("*.py"))]
    names = [".".join(file.parts) for file in files if file.name != "__init__"]
    assert "tests.benchmarks.lanes.__main__" in names
    program = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
