"""`lumigrad sample`: writes data to begin with."""

from __future__ import annotations

import argparse
from threading import Event

from lumigrad.client.base.counts import counted
from lumigrad.client.base.extras import require
from lumigrad.client.commands.destination import in_order, with_progress
from lumigrad.client.commands.options import SIZE, option, whole
from lumigrad.client.commands.scene_file import replacing
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.samples.capture import views, write_capture
from lumigrad.client.samples.city import write_city
from lumigrad.client.samples.photographer import Exposure, photograph
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import naming, say
from lumigrad.client.shell.parser import written_path
from lumigrad.client.shell.stages import Stages

# A fit needs two photographs or more, and holds out every eighth.
_LEAST, _MOST = 3, 1000
_SIZE = 480, 360
_LARGEST_CITY = 10**10
_PHOTOGRAPHS, _GAUSSIANS = 48, 1_000_000
# The options of each kind of sample.
_OPTIONS = {"capture": ("photographs", "size"), "city": ("count",)}
_DESCRIPTION = """\
Writes data to try commands with. A capture is for `lumigrad fit`: photographs of a vase with flowers on a table, their
cameras and initial points, in nerfstudio's layout. The photographs are computed on this machine, without a worker,
always the same. They are transparent around the table. A scene that was fitted to them is in the package, as
sample:vase. A city is a .ply of as many Gaussians as you like, 104 bytes each, for scenes that are larger than memory.

examples:
  lumigrad sample capture vase/
  lumigrad sample city city.ply --count 16000000
  lumigrad fit vase/ -o vase.ply              fits it, in minutes
  lumigrad render sample:vase -o vase.png     the scene in the package
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    help_text = "capture: posed photographs and points; city: a city of Gaussians"
    parser.add_argument("kind", metavar="KIND", choices=tuple(_OPTIONS), help=help_text)
    help_text = "folder of the capture, or .ply of the city"
    parser.add_argument("output", metavar="OUTPUT", type=written_path, help=help_text)
    count = whole(f"a whole number from {_LEAST} to {_MOST}", _LEAST, _MOST)
    option(parser, "--photographs", f"number of photographs (default: {_PHOTOGRAPHS})", type=count, metavar="N")
    option(parser, "--size", "size of the photographs (default: 480x360)", **SIZE)
    count = whole(f"a whole number from 1 to {_LARGEST_CITY}", 1, _LARGEST_CITY)
    option(parser, "--count", f"number of Gaussians of the city (default: {_GAUSSIANS:,})", type=count, metavar="N")


def _run(arguments: argparse.Namespace) -> int:
    for kind, names in _OPTIONS.items():
        for name in names:
            if kind != arguments.kind and getattr(arguments, name) is not None:
                raise InvalidArgument.of(name, f"belongs to a {kind}, but a {arguments.kind} is made; leave it out")
    return _city(arguments) if arguments.kind == "city" else _capture(arguments)


def _city(arguments: argparse.Namespace) -> int:
    if arguments.output.suffix.lower() != ".ply":
        raise InvalidArgument.of("OUTPUT", f"expected a name that ends in .ply for a city, got {arguments.output}")
    count = arguments.count or _GAUSSIANS
    with naming(arguments.output), replacing(arguments.output), Stages() as stages:
        for done in write_city(arguments.output, count):
            stages.show("writing", done, count)
    print(f"{arguments.output}: {counted(count, 'Gaussians')}, {arguments.output.stat().st_size:,} bytes")
    print(f"next: lumigrad convert {arguments.output} {arguments.output.with_suffix('')}/ --levels")
    return 0


def _capture(arguments: argparse.Namespace) -> int:
    require("PIL.Image", "io", "writing photographs")
    require("plyfile", "io", "writing points")
    if arguments.output.exists() and not arguments.output.is_dir():
        raise InvalidArgument.of("OUTPUT", f"expected a folder for a capture, got the file {arguments.output}")
    if arguments.output.is_dir() and any(arguments.output.iterdir()):
        say(f"{arguments.output} is not empty: replaces what has the same name in it")
    width, height = arguments.size or _SIZE
    planned = views(arguments.photographs or _PHOTOGRAPHS, width, height)

    stopping = Event()

    def job(index: int) -> Exposure:
        return photograph(planned[index].camera, stopping)

    say(f"computing {counted(len(planned), 'photographs')} of {width}x{height} on this machine")
    exposures = in_order(job, range(len(planned)), stopping)
    taken = with_progress(exposures, len(planned), "photographing", "photograph")
    with naming(arguments.output):
        count = write_capture(arguments.output, zip(planned, taken, strict=True))
    print(f"{arguments.output}: {counted(count, 'photographs')}, their cameras, and points to begin with")
    print(f"next: lumigrad fit {arguments.output} -o {arguments.output.with_suffix('.ply').name}")
    return 0


command = Command("create a sample capture to try a fit with, or a large scene", _add_arguments, _run)
