"""`lumigrad render`: renders images and videos of scene files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.counts import counted
from lumigrad.client.client import Client
from lumigrad.client.commands import aim, scene_file
from lumigrad.client.commands.destination import (
    FPS,
    NAMES,
    Content,
    destination_of,
    in_order,
    output_path,
    with_progress,
)
from lumigrad.client.commands.lenses import LensOptions, add_lens, order_settings
from lumigrad.client.commands.options import COUNT, SIZE, add_connection, connect, ending, option, positive_number
from lumigrad.client.commands.shots import check_camera_file, say_stretched, shots_of
from lumigrad.client.datasets import View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.pictures import write_depth
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text, naming
from lumigrad.client.values.camera_models import SensorModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

_DESCRIPTION = """\
Renders a scene file: Gaussians (.ply of Inria's trainer, .compressed.ply, .splat, .spz, .ksplat, .sog, .rad,
lod-meta.json, glTF, USD) or spheres (any other .ply with x, y, z and optional colours and radii).

examples:
  lumigrad render sample:vase -o vase.png                     a scene that comes with Lumigrad
  lumigrad render scene.ply -o scene.png                      a first view, or all of it
  lumigrad render scene.ply --orbit 120 -o turn.mp4           a turn around it
  lumigrad render scene.ply --orbit 60 --camera "orbit 0,35" --up z --size 1920x1080 -o frames/
  lumigrad render scene.ply --camera transforms.json -o views/           every view of a data set
  lumigrad render scene.ply --camera colmap/ --view IMG_0042 --show expected_depth -o depth.png
  lumigrad render scene.ply --camera cameras.json --orbit 240 -o turn.mp4   around their subject
  lumigrad render surfels.ply --show surface_normals -o normals.png      of flat Gaussians
  lumigrad render scene.ply --camera-model fisheye --fov 150 -o fisheye.png
  lumigrad render scene.ply --shutter top_to_bottom --motion 0.3,0,0 -o rolling.png
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    scene_file.add_scene(parser)
    help_text = "a .png, .jpg or .mp4 file, a folder for .png files, .npy (one output) or .npz (all outputs)"
    parser.add_argument("-o", "--output", dest="path", type=output_path, required=True, metavar="FILE", help=help_text)
    option(parser, "--show", "what the pictures show", "color", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    scene_file.add_kind(parser)
    _add_views(parser.add_argument_group("views"))
    add_lens(parser.add_argument_group("lens"))
    looks = parser.add_argument_group("looks")
    option(looks, "--depth", "also write the depth: .png or .npy", type=ending(".png or .npy"), metavar="FILE")
    scene_file.add_looks(looks)
    add_connection(parser)


def _run(arguments: argparse.Namespace) -> int:
    file = scene_file.read(arguments)
    scene, settings = file.outline, file.settings
    lens = LensOptions.of(arguments)
    if settings.get("primitive") == "surfel":
        lens.check_for_surfels()
    check_camera_file(arguments.camera, size=arguments.size, fov=arguments.fov, up=arguments.up)
    if arguments.size and lens.size:
        say_stretched(arguments.size, lens.size)
    arguments.size = arguments.size or lens.size
    shots = lens.applied(shots_of(arguments, scene), scene)
    if any(isinstance(shot.camera.model, SensorModel) for shot in shots):
        scene_file.check_antialiased(arguments, settings, "through this lens")
    if arguments.depth_order is None:
        settings |= order_settings(shots)
    if arguments.depth and len(shots) > 1:
        raise InvalidArgument.of("depth", f"expected with one picture, not with {len(shots)}; use --show depth")
    everything = _outputs_of(scene, settings.get("primitive") == "surfel")
    if arguments.show not in everything:
        hint = f"; use --primitive surfels for {arguments.show}" if isinstance(scene, Gaussians) else ""
        raise InvalidArgument.of("show", f"expected {', '.join(everything)} of this scene, got {arguments.show}{hint}")
    content = Content.of(arguments.show, scene, shots)
    destination = destination_of(arguments.path, content, shots, scene.channels, everything, arguments.fps)
    times: list[float] = []

    def encoded(pair: tuple[View, Frame]) -> Array | None:
        shot, frame = pair
        times.append(frame.timings.round_trip_ms)
        if arguments.depth:
            with naming(arguments.depth):
                write_depth(arguments.depth, frame[_depth_name(scene)])
        return destination.encode(shot, frame)

    extra = (_depth_name(scene),) if arguments.depth else ()
    settings["outputs"] = tuple(dict.fromkeys((*destination.outputs, *extra)))
    settings["image_format"] = destination.image_formats
    with connect(arguments) as client, destination, _frames(client, file, shots) as frames:
        for each in with_progress(in_order(encoded, zip(shots, frames, strict=True)), len(shots)):
            destination.add(each)
    _report(arguments, file, len(shots), sum(times) / len(times))
    return 0


@contextmanager
def _frames(client: Client, file: scene_file.SceneFile, shots: Sequence[View]) -> Iterator[Iterable[Frame]]:
    """Yields the frames of the shots; one is rendered while another is in transit."""
    if len(shots) == 1:
        # Spheres need not be stored for a single image.
        stored = file.scene if isinstance(file.scene, Spheres) else file.put(client)
        yield [client.render(stored, shots[0].camera, **file.settings)]
        return
    with client.stream(file.put(client), in_flight=2, **file.settings) as stream:
        yield stream.frames(shot.camera for shot in shots)


def _outputs_of(scene: Spheres | Gaussians, surfels: bool) -> tuple[str, ...]:
    """Returns the outputs that pictures of a scene can show."""
    names: tuple[str, ...] = ("color", "alpha", "depth")
    if isinstance(scene, Gaussians):
        names += ("expected_depth",)
    return (*names, "median_depth", "normals", "surface_normals") if surfels else names


def _report(arguments: argparse.Namespace, file: scene_file.SceneFile, pictures: int, mean_ms: float) -> None:
    kind = "Gaussians" if isinstance(file.outline, Gaussians) else "spheres"
    if arguments.json:
        summary = {"output": str(arguments.path), "show": arguments.show, "kind": kind.lower(), "count": file.count}
        print(json_text({**summary, "pictures": pictures, "round_trip_ms": mean_ms}))
        return
    several, mean = (f"{pictures} pictures, ", " from the request of each to its picture") if pictures > 1 else ("", "")
    print(f"{arguments.path}: {counted(file.count, kind)}, {several}{mean_ms:.0f} ms{mean}")


def _add_views(group: argparse._ArgumentGroup) -> None:
    aim.add_camera(group)
    option(group, "--orbit", "N pictures of a full turn around the scene, beginning at the camera", **COUNT)
    option(group, "--view", "one camera of a data set (default: all)", metavar="NAME | INDEX")
    help_text = "size of the pictures (default: the data set's, else 640x480 for spheres and 1280x720 for Gaussians)"
    option(group, "--size", help_text, **SIZE)
    aim.add_field(group, "vertical field of view", "up direction")
    option(group, "--fps", f"pictures per second of an .mp4 (default: {FPS:g})", type=positive_number)


def _depth_name(scene: Spheres | Gaussians) -> str:
    return "expected_depth" if isinstance(scene, Gaussians) else "depth"


command = Command("render a file of Gaussians or spheres as pictures or a video", _add_arguments, _run)
