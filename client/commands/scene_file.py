"""The argument SCENE, and the options for reading and rendering it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from lumigrad.client.base.counts import counted
from lumigrad.client.client import Client
from lumigrad.client.commands.aim import Extent
from lumigrad.client.commands.options import numbers, option, positive_number
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats import StoredScene, check_displayed, is_gaussian_scene, read_scene
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.sample import located, samples
from lumigrad.client.formats.scene import BY_DEPTH
from lumigrad.client.formats.sog import META_NAME, STREAM_NAME
from lumigrad.client.formats.source import malformed
from lumigrad.client.settings.fields import RENDER_FIELDS
from lumigrad.client.settings.gaussians import Primitive, near_for
from lumigrad.client.shell.exits import say
from lumigrad.client.shell.parser import path_of, suggested
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres

_SPHERES_GAMMA = 1e-4
# A level of 8 bits.
_LEVEL = 1 / 255
# The most Gaussians of a level by which cameras are aimed.
_OUTLINE = 1 << 18
# About as many Gaussians tell the size of a scene.
_SAMPLES = 10_000
# More than the headers of scenes have, and properties by which scenes are known from points.
_HEADER_BYTES, _OF_SCENES = 1 << 14, (b"f_dc_0", b"opacity", b"packed_position", b"radius")
# Settings by the values of --primitive.
PRIMITIVES: dict[str, Primitive] = {"volumes": "volume", "surfels": "surfel"}


@dataclass(frozen=True, eq=False)
class SceneFile:
    """A scene as a command draws it.

    Attributes:
        outline: what cameras are aimed by: the scene itself, or a coarse level of one with levels.
        scene: what is stored on the worker.
        settings: settings for `render`, which rejects settings of the other kind of scene.
    """

    outline: Spheres | Gaussians
    scene: Spheres | Gaussians | GaussianLevels
    settings: dict[str, Any]

    @property
    def count(self) -> int:
        """Number of spheres or Gaussians; with levels, of the finest one."""
        scene = self.scene
        return int(scene.counts[:, 0].sum()) if isinstance(scene, GaussianLevels) else len(scene)

    def put(self, client: Client) -> SceneHandle:
        """Stores the scene.

        Raises:
            InvalidArgument: the worker cannot draw levels; says how to do without.
        """
        try:
            return client.put(self.scene)
        except InvalidArgument as error:
            why = [each.description for each in error.violations if each.field.startswith("scene.levels")]
            if not why:
                raise
            raise InvalidArgument.of("scene", f"{why[0]}; --lod N draws one whole level as a plain scene") from error


def add_scene(parser: argparse._ActionsContainer, **options: Any) -> None:
    """Declares SCENE and --lod."""
    help_text = "file of the scene, or the folder of an unbundled .sog; sample:vase comes with Lumigrad"
    parser.add_argument("scene", metavar="SCENE", type=scene_path, help=help_text, **options)
    add_lod(parser)


def add_lod(parser: argparse._ActionsContainer) -> None:
    """Declares --lod."""
    help_text = "use one level of detail of a scene that has several (lod-meta.json): 0 is all Gaussians, each further "
    help_text += "level has fewer and coarser ones (default: render and view draw each part as finely as the picture "
    help_text += "shows it, which needs a worker with --spool; convert uses 0)"
    option(parser, "--lod", help_text, type=int, metavar="N")


def scene_path(text: str) -> Path:
    """Parses SCENE: a path, or the name of a sample."""
    try:
        path = located(path_of(text))
    except InvalidArgument as error:
        # The same error as for any other file that does not exist, which is noticed when the file is read.
        raise FileNotFoundError(error.violations[0].description + _meant_sample(text)) from error
    if not path.exists() and (suggestion := _meant_sample(text)):
        raise FileNotFoundError(f"no such file: {text}{suggestion}")
    return path


def _meant_sample(text: str) -> str:
    """Returns the suggestion for the name of a sample, with or without "sample:"; empty for other paths."""
    return suggested(text.rpartition(":")[2], {name.partition(":")[2]: name for name in samples()})


def add_kind(parser: argparse._ActionsContainer) -> None:
    """Declares --as."""
    help_text = "kind of the scene (default: the file's)"
    option(parser, "--as", help_text, dest="kind", choices=("spheres", "gaussians"))


def add_looks(group: argparse._ActionsContainer) -> None:
    """Declares the options of rendering."""
    help_text = "background colour, 0 to 1 (default: white for spheres, black for Gaussians, or that of a fit)"
    option(group, "--background", help_text, type=_color, metavar="R,G,B")
    option(group, "--radius", "radius of every sphere (default: the file's, else they touch)", type=positive_number)
    help_text = "softness of spheres, 1e-5 to 1 (default: 1e-4, nearly opaque)"
    option(group, "--gamma", help_text, type=positive_number)
    option(group, "--sh-degree", "degree of the harmonics to use (default: all)", type=int, metavar="D")
    help_text = "fade Gaussians that are smaller than a pixel (default: the file's setting)"
    option(group, "--antialiased", help_text, action=argparse.BooleanOptionalAction)
    help_text = "draw Gaussians as ellipsoids, or as flat discs (default: surfels if the file has two scales for each)"
    option(group, "--primitive", help_text, choices=PRIMITIVES)
    help_text = "sort Gaussians, and measure depths, along z or by distance (default: as the file says, else z)"
    option(group, "--depth-order", help_text, choices=("z", "distance"))
    help_text = "least depth of Gaussians that are shown (default: 0.01, less for small scenes)"
    option(group, "--near", help_text, type=positive_number)
    option(group, "--far", "largest depth of Gaussians that are shown (default: 1e10)", type=positive_number)


def scene_bytes(path: Path) -> int:
    """Returns the size of a scene's file; for a .gltf, including the files that it names."""
    size = path.stat().st_size
    if path.suffix.lower() == ".gltf":
        names = [buffer.get("uri", "data:") for buffer in json.loads(path.read_bytes()).get("buffers", [])]
        size += sum((path.parent / unquote(name)).stat().st_size for name in names if not name.startswith("data:"))
    return size


def load(path: Path) -> Spheres | Gaussians:
    """Reads a file of Gaussians or spheres; raises InvalidArgument for levels of detail, which may exceed memory."""
    if has_levels(path):
        remedy = f"`lumigrad convert {path} scene.ply --lod N` writes one of them"
        raise malformed(path, f"expected a scene without levels of detail; {remedy}")
    return Gaussians.load(path) if is_gaussian_scene(path) else Spheres.load(path)


def has_levels(path: Path) -> bool:
    """Whether a path is that of streamed SOG: its lod-meta.json, or the folder."""
    is_folder = (path / STREAM_NAME).is_file() and not (path / META_NAME).is_file()
    return path.name == STREAM_NAME or is_folder


def check_replaced(scene: Path) -> None:
    """Raises InvalidArgument if a scene would replace a PLY file of points or triangles, such as those of a capture."""
    if scene.suffix.lower() != ".ply" or not scene.is_file():
        return
    with scene.open("rb") as file:
        header = file.read(_HEADER_BYTES).partition(b"end_header")[0]
    if header.startswith(b"ply") and not any(name in header for name in _OF_SCENES):
        text = f"expected a new file or a scene to replace, got {scene}, which has points or triangles"
        raise InvalidArgument.of("output", text)


@contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Refuses what `check_replaced` does; says on standard error that the block has replaced a scene, if it has."""
    check_replaced(path)
    is_there = path.is_file() or (path.is_dir() and has_levels(path))
    yield
    if is_there:
        say(f"replaced {path}")


def read_gaussians(path: Path, lod: int | None) -> StoredScene:
    """Reads a file of Gaussians without those that cannot be rendered, and reports their number."""
    stored = read_scene(path, skip_invalid=True, lod=lod)
    if stored.skipped:
        say(f"left out {counted(stored.skipped, 'Gaussians')} with values that are not finite")
    return stored


def read(arguments: argparse.Namespace) -> SceneFile:
    """Reads the scene; if it has levels and none is chosen, only the index and a coarse level."""
    settings = {name: value for name, value in vars(arguments).items() if name in RENDER_FIELDS}
    if arguments.primitive is not None:
        settings["primitive"] = PRIMITIVES[arguments.primitive]
    saved = SceneView.load(arguments.scene)
    if settings["background"] is None and saved is not None:
        settings["background"] = saved.background
    kind = arguments.kind or ("gaussians" if is_gaussian_scene(arguments.scene) else "spheres")
    if kind == "spheres":
        if arguments.kind is not None and arguments.scene.suffix.lower() != ".ply":
            raise InvalidArgument.of("as", f"spheres are read from .ply files; {arguments.scene.name} has Gaussians")
        settings["gamma"] = arguments.gamma or _SPHERES_GAMMA
        spheres = Spheres.load(arguments.scene, radius=arguments.radius)
        # Other outputs than colours show spheres of any colour.
        if getattr(arguments, "show", "color") == "color":
            _say_unseen(spheres, settings["background"])
        return SceneFile(spheres, spheres, settings)
    if arguments.radius is not None:
        raise InvalidArgument.of("radius", "belongs to spheres, but this scene is Gaussians; leave it out")
    levels = GaussianLevels.open(arguments.scene) if arguments.lod is None and has_levels(arguments.scene) else None
    stored = read_gaussians(arguments.scene, arguments.lod if levels is None else _coarse(levels))
    check_displayed(stored, arguments.scene)
    if arguments.antialiased is None and stored.antialiased:
        settings["antialiased"] = True
    if arguments.primitive is None and stored.is_flat:
        settings["primitive"] = "surfel"
    if settings.get("primitive") == "surfel":
        check_antialiased(arguments, settings, "as surfels")
    outline = stored.gaussians()
    if settings["near"] is None:
        settings["near"] = near_for(_radius(outline))
    return SceneFile(outline, outline if levels is None else levels, settings | _order(stored, settings))


def _radius(gaussians: Gaussians) -> float:
    """Returns the radius of nearly all of a scene, scene units."""
    extent = Extent.of(gaussians[:: max(1, len(gaussians) // _SAMPLES)], np.array([0.0, 1.0, 0.0]))
    return max(extent.radius, extent.half_height)


def _say_unseen(spheres: Spheres, background: Any) -> None:
    """Says on standard error if all spheres have the colour of the background, which is white by default."""
    differences = np.abs(spheres.colors - np.asarray(1.0 if background is None else background))
    if len(spheres) and differences.max() < _LEVEL:
        say("all spheres have the colour of the background, so that nothing is seen; --background sets another")


def check_antialiased(arguments: argparse.Namespace, settings: Mapping[str, Any], how: str) -> None:
    """Raises InvalidArgument, with the remedy, if a scene is to be antialiased as its file says, which is impossible.

    Args:
        arguments: the options; with --antialiased the worker's error says it.
        settings: the settings of rendering.
        how: how the scene is drawn.
    """
    if settings.get("antialiased") and arguments.antialiased is None:
        text = f"the scene was trained with it, as {arguments.scene} says, but nothing is drawn with it {how}; "
        raise InvalidArgument.of("antialiased", f"{text}--no-antialiased draws without")


def _coarse(levels: GaussianLevels) -> int:
    """Returns the finest level with few Gaussians, else the coarsest."""
    few = (level for level, count in enumerate(levels.counts.sum(axis=0)) if count <= _OUTLINE)
    return next(few, levels.levels - 1)


def _order(stored: StoredScene, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that draw in the order that the option, else the file, asks for."""
    asked = settings["depth_order"]
    if asked == "z":
        # None is the default of all cameras.
        return {"depth_order": None}
    if asked is None and stored.drawing_order == BY_DEPTH:
        return {}
    for name, value in (("--antialiased", settings["antialiased"]), ("surfels", settings.get("primitive") == "surfel")):
        if value and asked is not None:
            raise InvalidArgument.of("depth_order", f"expected z with {name}, got distance")
        if value:
            say(f"draws by depth, not by distance as the file says, because of {name}")
            return {}
    return {"depth_order": "distance", "projection_method": "unscented"}


def _color(text: str) -> tuple[float, ...]:
    """Parses the channels of a colour."""
    channels = numbers(text)
    if not all(0.0 <= channel <= 1.0 for channel in channels):
        raise argparse.ArgumentTypeError(f"expected numbers from 0 to 1, got {text}; divide levels by 255")
    return channels
