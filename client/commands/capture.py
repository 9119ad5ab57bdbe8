"""`lumigrad capture`: finds the cameras of photographs, for `lumigrad fit`."""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from pathlib import Path

from lumigrad.client.base.counts import counted
from lumigrad.client.datasets import Capture, colmap_run
from lumigrad.client.datasets.colmap import find_model, read_model
from lumigrad.client.datasets.doubts import DoubtfulCameras
from lumigrad.client.errors import InvalidArgument, LumigradError
from lumigrad.client.fitting.picture_file import read_header
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import say
from lumigrad.client.shell.parser import path_of, written_folder

_READ = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
# Photographs that it does not read, by their suffixes.
_UNREAD = {
    **{".heic": "HEIC", ".heif": "HEIC", ".avif": "AVIF", ".jxl": "JPEG XL"},
    **{f".{raw}": raw.upper() for raw in ("dng", "nef", "cr2", "cr3", "arw", "raf", "orf", "rw2")},
}
_VIDEOS = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm")
_LEAST = 3
_ADVICE = (
    "each thing has to be sharp in three photographs or more, from places that differ by about 10 degrees, and have "
    "texture"
)
_DESCRIPTION = """\
Finds where photographs were taken from, and points of what they show, with COLMAP: the program `colmap` if it is
installed, else the package pycolmap (pip install "lumigrad[capture]"). Writes a data set for `lumigrad fit`, which
names the photographs where they are. Needs no worker. 70 photographs take a few minutes on a CPU.

examples:
  lumigrad capture photographs/ -o garden/
  lumigrad fit garden/ -o garden.ply
  lumigrad capture frames/ -o walk/ --sequential     frames of a video, in the order of their names
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("photographs", metavar="PHOTOGRAPHS", type=path_of, help="folder of the photographs")
    help_text = "folder of the data set"
    parser.add_argument("-o", "--output", required=True, type=written_folder, metavar="CAPTURE", help=help_text)
    help_text = "match each photograph with those next to it by name only, which is faster for frames of a video"
    parser.add_argument("--sequential", action="store_true", help=help_text)


def _run(arguments: argparse.Namespace) -> int:
    found, output = _photographs(arguments.photographs), arguments.output
    has_one_camera = len({(header.size, header.focal_mm) for header in map(read_header, found)}) == 1
    lines = colmap_run.steps(
        arguments.photographs, output, has_one_camera=has_one_camera, is_sequence=arguments.sequential
    )
    whose = "one camera" if has_one_camera else "several cameras or focal lengths"
    say(f"{counted(len(found), 'photographs')} of {whose}")
    colmap_run.run(lines, output, say)
    model = find_model(output / colmap_run.WORK)
    if model is None:
        raise LumigradError(f"COLMAP found no cameras for {arguments.photographs}: {_ADVICE}")
    capture = _checked(model, arguments)
    capture.save(output)
    names = {path.relative_to(arguments.photographs).as_posix() for path in found}
    without = sorted(names - {Path(view.file).as_posix() for view in capture.views})
    if without:
        have = "has" if len(without) == 1 else "have"
        say(f"{len(without)} of {len(found)} photographs {have} no camera, the first is {without[0]}: {_ADVICE}")
    points = len(capture.points) if capture.points is not None else 0
    print(f"{output}: cameras of {len(capture)} of {len(found)} photographs, {counted(points, 'points')}")
    print(f"next: lumigrad fit {output} -o {output.with_suffix('.ply').name}")
    return 0


def _checked(model: Path, arguments: argparse.Namespace) -> Capture:
    """Reads a reconstruction; raises LumigradError if its cameras are probably wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DoubtfulCameras)
        try:
            return Capture(*read_model(model, arguments.photographs, False))
        except DoubtfulCameras as doubt:
            anyway = f"lumigrad fit {arguments.output} --images {arguments.photographs.resolve()}"
            raise LumigradError(f"{doubt}; to use them nevertheless: {anyway}") from doubt


def _photographs(folder: Path) -> list[Path]:
    """Returns the photographs in and below a folder that COLMAP reads; raises InvalidArgument if there are too few."""
    if folder.suffix.lower() in _VIDEOS:
        remedy = f"ffmpeg -i {folder} -vf fps=2 -qscale:v 2 frames/%04d.jpg"
        raise InvalidArgument.of("photographs", f"expected a folder of photographs, got a video; {remedy} makes some")
    if not folder.exists():
        raise InvalidArgument.of("photographs", f"expected a folder of photographs, got {folder}, which does not exist")
    if not folder.is_dir():
        raise InvalidArgument.of("photographs", f"expected a folder of photographs, got {folder}")
    # macOS writes what other file systems cannot store into files of its own beside the photographs.
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("._"))
    found = [path for path in files if path.suffix.lower() in _READ]
    kinds = Counter(_UNREAD[path.suffix.lower()] for path in files if path.suffix.lower() in _UNREAD)
    counts = ", ".join(f"{count} in {kind}" for kind, count in sorted(kinds.items()))
    unread = f"leaves out what COLMAP does not read: {counts}; convert to JPEG" if kinds else ""
    if len(found) < _LEAST:
        text = f"expected at least {_LEAST} photographs in {folder}, found {len(found)}"
        raise InvalidArgument.of("photographs", f"{text}; {unread}" if unread else text)
    if unread:
        say(unread)
    return found


command = Command("find the cameras of photographs with COLMAP, for fit", _add_arguments, _run)
