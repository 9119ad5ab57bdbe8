"""Runs peers.py with Open3D and libigl from the package index, in a separate environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ENVIRONMENT = Path("build/bench/peers")
# Open3D links libusb, which not every system has.
PACKAGES = ("open3d>=0.19", "libigl>=2.6", "libusb-package>=1.0.26")
Rates = Mapping[str, Mapping[str, float]]


def install() -> Path:
    """The environment's Python; its packages are installed at the first run."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / ".installed"
    if not done.exists() or done.read_text(encoding="utf-8") != "\n".join(PACKAGES):
        print(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        done.write_text("\n".join(PACKAGES), encoding="utf-8")
    return python


def peer_rates(**arrays: NDArray[np.generic]) -> Rates:
    """The peers' rates on a scene, by peer: "near" and "box" in queries per second, and "build_ms"."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scene.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]
        script = Path(__file__).with_name("peers.py")
        done = subprocess.run([str(install()), str(script), str(path)], check=True, stdout=subprocess.PIPE, text=True)
    rates: Rates = json.loads(done.stdout.splitlines()[-1])
    return rates
