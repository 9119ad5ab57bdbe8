"""Runs a program of gsplat with this package in gsplat's place: `python -m lumigrad.client.compat.gsplat PROGRAM …`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from lumigrad.client.compat.gsplat import install

_FOR_PROCESSES = Path(__file__).with_name("in_place")


def main(arguments: Sequence[str]) -> None:
    """Runs the program whose file is the first argument with the others."""
    if not arguments or arguments[0].startswith("-"):
        sys.exit("usage: python -m lumigrad.client.compat.gsplat PROGRAM.py [ARGUMENT ...]")
    install()
    sys.argv[:] = arguments
    # The path begins with the program's folder, as Python would have it. Processes that the program starts, such as
    # those that load its data, have the same path, and import gsplat anew.
    sys.path[:1] = [str(Path(arguments[0]).resolve().parent), str(_FOR_PROCESSES)]
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
