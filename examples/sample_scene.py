"""Makes the scene that comes with Lumigrad, sample:vase: photographs of a still life, and Gaussians fitted to them.

Writes vase.spz, vase.view.json and vase/ with the photographs. Takes some minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from local_worker import worker


def main() -> int:
    """Runs the example; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("sample_output"), help="(default: sample_output)")
    parser.add_argument("--photographs", type=int, default=96, help="(default: 96)")
    parser.add_argument("--size", default="640x480", help="of the photographs (default: 640x480)")
    parser.add_argument("--steps", type=int, default=10000, help="of the fit (default: 10000)")
    parser.add_argument("--cap", type=int, default=45000, help="most Gaussians (default: 45000)")
    arguments = parser.parse_args()
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    capture, scene = folder / "vase", folder / "vase.ply"
    lumigrad("sample", "capture", capture, "--photographs", arguments.photographs, "--size", arguments.size)
    with worker(folder / "worker.log") as target:
        # Harmonics of degree 1 show the gloss, and keep the file small.
        settings = ["--steps", arguments.steps, "--cap", arguments.cap, "--sh-degree", 1]
        lumigrad("fit", capture, "-o", scene, *settings, "--target", target)
    lumigrad("convert", scene, scene.with_suffix(".spz"))
    return 0


def lumigrad(*arguments: object) -> None:
    """Runs a command of Lumigrad."""
    subprocess.run([Path(sys.executable).with_name("lumigrad"), *map(str, arguments)], check=True)


if __name__ == "__main__":
    sys.exit(main())
