"""`lumigrad render`: a picture of a PLY file."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumigrad.client.commands import aim
from lumigrad.client.commands.options import add_connection, connect, numbers, picture_size, positive_number
from lumigrad.client.pictures import check_suffix, write_depth, write_picture
from lumigrad.client.spheres import Spheres

_AXES = {
    "x": (1.0, 0.0, 0.0),
    "y": (0.0, 1.0, 0.0),
    "z": (0.0, 0.0, 1.0),
    "-x": (-1.0, 0.0, 0.0),
    "-y": (0.0, -1.0, 0.0),
    "-z": (0.0, 0.0, -1.0),
}


class RenderCommand:
    """Renders a cloud of spheres from a file."""

    help = "render a PLY file with x, y, z and optional colours and radii"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("cloud", metavar="CLOUD.ply", type=Path, help="the spheres")
        parser.add_argument(
            "-o", "--output", type=_output, required=True, metavar="FILE", help=".png, .npy (colour) or .npz (all)"
        )
        parser.add_argument("--camera", type=aim.parse, default="orbit 30,20", metavar="AIM", help=aim.HELP)
        parser.add_argument("--depth", type=_output, metavar="FILE", help="also write the depth: .png or .npy")
        parser.add_argument("--size", type=picture_size, default=(640, 480), metavar="WxH", help="(default: 640x480)")
        parser.add_argument(
            "--fov", type=positive_number, default=40.0, metavar="DEGREES", help="vertical field of view (default: 40)"
        )
        parser.add_argument(
            "--up", choices=sorted(_AXES), default="y", help="which way is up, e.g. --up=-y (default: y)"
        )
        parser.add_argument(
            "--radius",
            type=positive_number,
            help="of every sphere (default: the file's, else so that neighbours touch)",
        )
        parser.add_argument(
            "--gamma", type=positive_number, default=1e-4, help="softness, 1e-5 to 1 (default: 1e-4, nearly opaque)"
        )
        parser.add_argument(
            "--background", type=numbers, metavar="R,G,B", help="0 to 1, one per channel (default: white)"
        )
        add_connection(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Reads, renders, writes."""
        spheres = Spheres.load(arguments.cloud, radius=arguments.radius)
        check_suffix(arguments.output, spheres.channels)
        width, height = arguments.size
        view = aim.View(width, height, arguments.fov, _AXES[arguments.up])
        with connect(arguments) as client:
            frame = client.render(
                spheres,
                arguments.camera.camera(spheres, view),
                gamma=arguments.gamma,
                background=arguments.background,
                outputs=_outputs(arguments),
            )
        write_picture(arguments.output, frame)
        if arguments.depth:
            write_depth(arguments.depth, frame.depth)
        print(f"{arguments.output}: {len(spheres):,} spheres, {frame.timings.round_trip_ms:.0f} ms")
        return 0


def _outputs(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.output.suffix == ".npz":
        return ("color", "alpha", "depth")
    return ("color", "depth") if arguments.depth else ("color",)


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".png", ".npy", ".npz"):
        raise argparse.ArgumentTypeError(f"expected a file that ends in .png, .npy or .npz, got {text}")
    return path


command = RenderCommand()
