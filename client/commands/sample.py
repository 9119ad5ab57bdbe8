"""`lumigrad sample`: writes data to begin with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lumigrad.client.base.extras import require
from lumigrad.client.commands.destination import in_order, with_progress
from lumigrad.client.commands.options import SIZE, option, whole
from lumigrad.client.samples.capture import views, write_capture
from lumigrad.client.samples.photographer import Exposure, photograph
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import naming

# Every eighth is held out, and two photographs are the least that a fit takes.
_LEAST, _MOST = 3, 1000
_SIZE = 480, 360
_DESCRIPTION = """\
Writes a data set to try `lumigrad fit` with: photographs of a vase with flowers on a table, their cameras and initial
points, in nerfstudio's layout. The photographs are computed on this machine, without a worker, always the same. They
are transparent around the table. A scene that was fitted to them is in the package, as sample:vase.

examples:
  lumigrad sample capture vase/
  lumigrad fit vase/ -o vase.ply              fits it, in minutes
  lumigrad render sample:vase -o vase.png     the scene in the package
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("what", choices=("capture",), help="a capture: posed photographs and points")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder to write it to")
    count = whole(f"a whole number from {_LEAST} to {_MOST}", _LEAST, _MOST)
    option(parser, "--photographs", "number of photographs", 48, type=count, metavar="N")
    option(parser, "--size", "size of the photographs (default: 480x360)", **SIZE)


def _run(arguments: argparse.Namespace) -> int:
    require("PIL.Image", "io", "writing photographs")
    require("plyfile", "io", "writing points")
    if arguments.folder.is_dir() and any(arguments.folder.iterdir()):
        print(f"lumigrad: {arguments.folder} is not empty: replaces what has the same name in it", file=sys.stderr)
    planned = views(arguments.photographs, *(arguments.size or _SIZE))

    def job(index: int) -> Exposure:
        return photograph(planned[index].camera)

    taken = with_progress(in_order(job, range(len(planned))), len(planned))
    with naming(arguments.folder):
        count = write_capture(arguments.folder, zip(planned, taken, strict=True))
    print(f"{arguments.folder}: {count} photographs, their cameras, and points to begin with")
    print(f"next: lumigrad fit {arguments.folder} -o {arguments.folder.with_suffix('.ply').name}")
    return 0


command = Command("write photographs to try a fit with", _add_arguments, _run)
