"""`lumigrad bench`: measures a worker's speed from this machine."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict

from lumigrad.client.benchmark.calls import Measurement, cloud, measurements, throughputs
from lumigrad.client.client import Client
from lumigrad.client.commands import aim
from lumigrad.client.commands.options import AXES, COUNT, SIZE, add_connection, connect, count, option, positive_number
from lumigrad.client.commands.scene_file import load, scene_path
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text
from lumigrad.client.transport.lanes import LaneMode
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

_GAUSSIANS = 100_000
_SIZES = ((512, 512), (1920, 1080))
_DESCRIPTION = """\
Measures a worker from this machine: round trips, pictures and their gradients, distances, and rates of transfers. Each
line has the median and the 90th percentile of consecutive calls; "kernel" is the time of the worker's kernels, "rest"
all other time. It takes about ten seconds; other callers make it slower.

examples:
  lumigrad bench                                       100,000 generated Gaussians
  lumigrad bench scene.ply --size 1280x720             a scene of your own
  lumigrad bench --seconds 3 --json > bench.json       longer, and for scripts
"""
_COLUMNS = ("median ms", "p90 ms", "kernel ms", "rest ms", "MiB/s")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    help_text = "a scene file (default: a generated one)"
    parser.add_argument("scene", metavar="SCENE", type=scene_path, nargs="?", help=help_text)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    what = parser.add_argument_group("measurements")
    help_text = "size of pictures; may be repeated (default: both 512x512 and 1920x1080)"
    option(what, "--size", help_text, action="append", **SIZE)
    option(what, "--count", f"Gaussians of the generated scene (default: {_GAUSSIANS:,})", **COUNT)
    option(what, "--payload-mib", "payload of the transfers", 16, type=count, metavar="MIB")
    option(what, "--seconds", "time for each line, with at least three calls", 0.5, type=positive_number)
    add_connection(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.scene is not None and arguments.count is not None:
        raise InvalidArgument.of("count", f"belongs to a generated scene, got {arguments.scene}; leave one of them out")
    scene = cloud(arguments.count or _GAUSSIANS) if arguments.scene is None else load(arguments.scene)
    # The generator is closed, which deletes its scenes, before the client is closed, even on an error.
    with connect(arguments) as client, closing(_lines(client, arguments, scene)) as lines:
        info = client.info()
        if arguments.json:
            kind = "gaussians" if isinstance(scene, Gaussians) else "spheres"
            summary = {"target": info.target, "device": info.device, "device_name": info.device_name}
            summary |= {"lane": client.lane, "kind": kind}
            rows = [asdict(line) for line in lines]
            print(json_text({**summary, "count": len(scene), "measurements": rows}))
            return 0
        print(f"{info.target}, {info.device}: {info.device_name}; {len(scene):,} {type(scene).__name__}")
        print(_row("", _COLUMNS))
        for line in lines:
            print(_row(line.what, _cells(line)), flush=True)
    return 0


def _lines(
    client: Client, arguments: argparse.Namespace, scene: Gaussians | Spheres
) -> Generator[Measurement, None, None]:
    up = AXES["-y" if isinstance(scene, Gaussians) else "y"]
    views = {
        f"{width}x{height}": aim.Orbit(30.0, 20.0).camera(scene, aim.View(width, height, 40.0, up))
        for width, height in arguments.size or _SIZES
    }
    yield from measurements(client, views, scene, arguments.seconds)
    lanes: tuple[LaneMode, ...] = ("shared", "stream") if client.lane == "shared" else ("stream",)
    for lane in lanes:
        with connect(arguments, lane) as apart:
            yield from throughputs(apart, arguments.payload_mib, arguments.seconds)


def _row(what: str, cells: tuple[str, ...]) -> str:
    return f"{what:<32}" + "".join(f"{cell:>11}" for cell in cells)


def _cells(line: Measurement) -> tuple[str, ...]:
    times = (line.median_ms, line.p90_ms, line.kernel_ms, line.rest_ms)
    rate = "" if line.mib_per_s is None else f"{line.mib_per_s:,.0f}"
    return (*("" if time is None else f"{time:.2f}" for time in times), rate)


command = Command("measure how fast a worker is from here", _add_arguments, _run)
