"""What users copy first works: the demo, and the code in the porting guide."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.worker import WorkerProcess

ROOT = Path(__file__).parents[2]
PICTURES = {"target.png", "initial.png", "fit.png", "demo.png", "loss.png"}


@pytest.mark.slow
def test_the_demo_converges_and_leaves_its_pictures(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py", "--steps", "60", "--output", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    before, after = re.search(r"went from ([\d.]+) to ([\d.]+) dB", done.stdout).groups()
    assert float(after) > float(before) + 4
    assert PICTURES | {"fit.ply", "worker.log"} == {path.name for path in (tmp_path / "out").iterdir()}
    for name in PICTURES:
        assert np.asarray(Image.open(tmp_path / "out" / name).convert("L")).std() > 5, name


def test_the_code_of_the_porting_guide_runs(worker_process: WorkerProcess, monkeypatch):
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    text = (ROOT / "docs" / "porting_pytorch3d.md").read_text()
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "from pytorch3d" not in block]
    assert len(blocks) == 2
    names: dict[str, object] = {}
    exec("\n".join(blocks), names)
    assert names["image"].shape == (256, 256, 3)
    assert names["positions"].grad.abs().max() > 0
