"""Runs a program of gsplat with this package in gsplat's place: `python -m lumigrad.client.compat.gsplat PROGRAM …`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from lumigrad.client.compat.gsplat import install


def main(arguments: Sequence[str]) -> None:
    """Runs the program whose file is the first argument with the others."""
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: python -m lumigrad.client.compat.gsplat PROGRAM.py [ARGUMENT ...]")
    install()
    sys.argv[:] = arguments
    # As if Python itself had been given the program.
    sys.path[0] = str(Path(arguments[0]).resolve().parent)
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
