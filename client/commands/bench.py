"""`lumigrad bench`: measures a worker's speed from this machine."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from lumigrad.client.benchmark.calls import Measurement, cloud, measurements, throughputs
from lumigrad.client.client import Client
from lumigrad.client.commands import aim
from lumigrad.client.commands.options import AXES, add_connection, connect, count, picture_size, positive_number
from lumigrad.client.formats import is_gaussian_scene
from lumigrad.client.shell.files import json_text
from lumigrad.client.transport.lanes import LaneMode
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

_SIZES = ((512, 512), (1920, 1080))
_DESCRIPTION = """\
Measures a worker from where the client stands: round trips, pictures and their gradients, distances, and how fast
payloads travel. Each line is the median and the 90th percentile of calls one after the other; "kernel" is
what the worker computed, "rest" what was lost on the way. About ten seconds; other callers make it slower.

examples:
  lumigrad bench                                       100,000 generated Gaussians
  lumigrad bench scene.ply --size 1280x720             a scene of your own
  lumigrad bench --seconds 3 --json > bench.json       longer, and for scripts
"""
_COLUMNS = ("median ms", "p90 ms", "kernel ms", "rest ms", "MiB/s")


class BenchCommand:
    """Measures calls of each kind."""

    help = "measure how fast a worker is from here"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.description = _DESCRIPTION
        parser.add_argument(
            "scene", metavar="SCENE", type=Path, nargs="?", help="a scene file (default: a generated one)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
        what = parser.add_argument_group("what is measured")
        what.add_argument(
            "--size",
            type=picture_size,
            action="append",
            metavar="WxH",
            help="may be repeated (default: both 512x512 and 1920x1080)",
        )
        what.add_argument(
            "--count",
            type=count,
            default=100_000,
            metavar="N",
            help="Gaussians of the generated scene (default: 100000)",
        )
        what.add_argument(
            "--payload-mib", type=count, default=16, metavar="MIB", help="that travels for the rates (default: 16)"
        )
        what.add_argument(
            "--seconds", type=positive_number, default=0.5, help="for each line, of at least three calls (default: 0.5)"
        )
        add_connection(parser.add_argument_group("worker"))

    def run(self, arguments: argparse.Namespace) -> int:
        """Measures and prints line by line."""
        scene = _scene(arguments)
        # On an error, closes the generator, which deletes its scenes, before the client is closed.
        with connect(arguments) as client, closing(self._lines(client, arguments, scene)) as lines:
            info = client.info()
            if arguments.json:
                kind = "gaussians" if isinstance(scene, Gaussians) else "spheres"
                told = {"target": info.target, "device": info.device, "device_name": info.device_name}
                told |= {"lane": client.lane, "kind": kind}
                rows = [asdict(line) for line in lines]
                print(json_text({**told, "count": len(scene), "measurements": rows}))
                return 0
            print(f"{info.target}, {info.device}: {info.device_name}; {len(scene):,} {type(scene).__name__}")
            print(_row("", _COLUMNS))
            for line in lines:
                print(_row(line.what, _cells(line)), flush=True)
        return 0

    def _lines(
        self, client: Client, arguments: argparse.Namespace, scene: Gaussians | Spheres
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


def _scene(arguments: argparse.Namespace) -> Gaussians | Spheres:
    if arguments.scene is None:
        return cloud(arguments.count)
    return Gaussians.load(arguments.scene) if is_gaussian_scene(arguments.scene) else Spheres.load(arguments.scene)


def _row(what: str, cells: tuple[str, ...]) -> str:
    return f"{what:<32}" + "".join(f"{cell:>11}" for cell in cells)


def _cells(line: Measurement) -> tuple[str, ...]:
    times = (line.median_ms, line.p90_ms, line.kernel_ms, line.rest_ms)
    rate = "" if line.mib_per_s is None else f"{line.mib_per_s:,.0f}"
    return (*("" if time is None else f"{time:.2f}" for time in times), rate)


command = BenchCommand()
