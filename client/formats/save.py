"""Writes scene files, and knows what each format loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf
from os import PathLike, fspath
from pathlib import Path

from lumigrad.client.base.arrays import Float32
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.compressed_ply import write_compressed_ply
from lumigrad.client.formats.gltf import write_glb, write_gltf
from lumigrad.client.formats.inria_ply import write_inria_ply
from lumigrad.client.formats.ksplat import write_ksplat
from lumigrad.client.formats.scene import BY_DEPTH, BY_DISTANCE, BY_HIT, SRGB, StoredScene, colors_of_sh
from lumigrad.client.formats.sog import write_sog
from lumigrad.client.formats.source import malformed
from lumigrad.client.formats.splat import write_splat
from lumigrad.client.formats.spz import write_spz
from lumigrad.client.formats.usd import write_usd
from lumigrad.client.values.gaussians import Gaussians


@dataclass(frozen=True)
class _Format:
    """How a format is written, and what it cannot hold.

    Attributes:
        write: the writer.
        rounds: what it rounds, as text; empty if it keeps float32.
        degree: the highest degree of harmonics that it holds.
        antialiased: whether it can state that a scene was trained with antialiasing.
        linear: whether it can state that colours are linear light.
        orders: the drawing orders that it can state; viewers draw by depth if it states none.
        reorders: whether it changes the order of the Gaussians.
        empty: whether it can hold a scene without Gaussians.
        nonfinite: whether it can hold numbers that are not finite.
        stage: whether it can state an up axis and a unit of length.
        scales: the least and the largest scale that it can hold.
        colors: the least and the largest base colour.
        harmonics: the least and the largest coefficient of higher harmonics.
    """

    write: Callable[[StoredScene, str | PathLike[str]], None]
    rounds: str = ""
    degree: int = 4
    antialiased: bool = False
    linear: bool = False
    orders: tuple[str, ...] = (BY_DEPTH,)
    reorders: bool = False
    empty: bool = False
    nonfinite: bool = False
    stage: bool = False
    scales: tuple[float, float] = (0.0, inf)
    colors: tuple[float, float] = (-inf, inf)
    harmonics: tuple[float, float] = (-inf, inf)


_USD = _Format(write_usd, linear=True, orders=(BY_DEPTH, BY_DISTANCE, BY_HIT), stage=True)
_FORMATS = {
    ".ply": _Format(write_inria_ply, antialiased=True, empty=True, nonfinite=True),
    ".compressed.ply": _Format(
        write_compressed_ply,
        "everything to 8 to 11 bits, between the bounds of 256 neighbours",
        3,
        reorders=True,
        scales=(exp(-20), exp(20)),
        harmonics=(-4.0, 4.0),
    ),
    ".splat": _Format(write_splat, "base colours, opacities and rotations to 8 bits", 0, colors=(0.0, 1.0)),
    ".spz": _Format(
        write_spz,
        "everything, harmonics to 5 and 4 bits",
        antialiased=True,
        empty=True,
        # The writer itself refuses positions that are not finite, and names its bound.
        nonfinite=True,
        scales=(exp(-10), exp(255 / 16 - 10)),
        colors=(-0.44, 1.44),
        harmonics=(-1.0, 1.0),
    ),
    ".ksplat": _Format(write_ksplat, "base colours and opacities to 8 bits", 3, colors=(0.0, 1.0)),
    ".sog": _Format(
        write_sog,
        "everything, and harmonics to at most 65,536 different sets",
        3,
        antialiased=True,
        reorders=True,
        scales=(exp(-20), exp(20)),
    ),
    ".glb": _Format(write_glb, degree=3, linear=True, orders=(BY_DISTANCE,)),
    ".gltf": _Format(write_gltf, degree=3, linear=True, orders=(BY_DISTANCE,)),
    **dict.fromkeys((".usd", ".usda", ".usdc", ".usdz"), _USD),
}
WRITABLE = tuple(_FORMATS)
# The drawing orders as text.
ORDERS = {
    BY_DEPTH: "by depth along the view direction",
    BY_DISTANCE: "by distance to the camera",
    BY_HIT: "by distance along each ray",
}
# The share of the width of a range, and of a scale, by which numbers may exceed it: these are rounded.
_SLACK = 0.04
# Formats that always cut harmonics, because they hold the base colour only.
_BASE_COLOR_ONLY = 0


def save_gaussians(gaussians: Gaussians, path: str | PathLike[str], *, antialiased: bool = False) -> None:
    """Writes Gaussians in the format of the suffix, one of those in the table of docs/formats.md.

    Only .ply, .glb, .gltf and USD keep full float32; docs/formats.md lists what the others lose.

    Args:
        gaussians: one scene with quats and scales and 3 colour channels.
        path: the file.
        antialiased: record that the scene was trained with antialiasing; only .ply, .spz and .sog can.

    Raises:
        InvalidArgument: another suffix, or Gaussians that the format cannot hold.

    Example:
        save_gaussians(gaussians, folder / "scene.ply", antialiased=True)
    """
    suffix_of(path)
    save_scene(StoredScene.of(gaussians, path, antialiased=antialiased), path)


def save_scene(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes a scene as `save_gaussians` does, with its colour space and its drawing order.

    glTF can state neither order by depth nor order along rays: it draws by distance to the camera.

    Args:
        scene: the scene.
        path: the file.

    Raises:
        InvalidArgument: another suffix, or a scene that the format cannot hold.

    Example:
        save_scene(read_scene(folder / "scene.ply"), folder / "scene.splat")
    """
    kind = _FORMATS[suffix_of(path)]
    if scene.degree > kind.degree != _BASE_COLOR_ONLY:
        raise malformed(
            path,
            f"expected harmonics of degree 0 to {kind.degree}, the format's limit, got {scene.degree}; write .ply, or "
            f"cut them: lumigrad convert SCENE OUTPUT --sh-degree {kind.degree}, or in Python "
            f"lumigrad.client.formats.save_scene(read_scene(SCENE).of_degree({kind.degree}), OUTPUT)",
        )
    if scene.color_space != SRGB and not kind.linear:
        raise malformed(
            path,
            f"expected colours as displayed ({SRGB}), got {scene.color_space}, which only .glb, .gltf and USD can say",
        )
    if not len(scene) and not kind.empty:
        raise malformed(path, "expected at least one Gaussian, got none; .ply and .spz can store empty scenes")
    invalid = {} if kind.nonfinite else scene.invalid()
    if invalid:
        raise malformed(path, f"expected finite numbers, got invalid {', '.join(invalid)}; only .ply can hold them")
    kind.write(scene, path)


def losses(scene: StoredScene, suffix: str) -> list[str]:
    """Returns what a scene would lose in a format, as text; empty if nothing is lost.

    Args:
        scene: the scene.
        suffix: one of `WRITABLE`.
    """
    kind = _FORMATS[suffix]
    lost = [f"rounds {kind.rounds}"] if kind.rounds else []
    if scene.lost:
        # The step is coarse enough to matter, wherever the numbers come from.
        lost.append("keeps positions in float32, which is coarse so far from 0")
    if scene.degree > kind.degree:
        lost.append(f"cuts harmonics from degree {scene.degree} to {kind.degree}")
    lost += _clipped(scene, kind)
    if scene.antialiased and not kind.antialiased:
        lost.append("does not say that the scene was trained with antialiasing")
    if scene.color_space != SRGB and not kind.linear:
        lost.append("cannot say that colours are linear light")
    if not kind.stage:
        lost += _unstated(scene)
    if "," in str(scene.details.get("sorting", "")):
        lost.append("keeps one drawing order for all Gaussians")
    elif scene.drawing_order not in kind.orders:
        lost.append(f"is drawn {ORDERS[kind.orders[0]]}, not {ORDERS[scene.drawing_order]}, so pictures differ")
    if kind.reorders:
        lost.append("changes the order of the Gaussians")
    return lost


def _clipped(scene: StoredScene, kind: _Format) -> list[str]:
    """Returns which numbers are beyond the range of a format, as text."""
    lost, scales = [], scene.scales
    if scene.is_flat and kind.scales[0] > 0:
        lost.append("makes surfels volumes, because it has no scale of 0")
        scales = scales[:, :2]
    low, high = kind.scales
    higher = scene.sh[:, 1:] if kind.degree else scene.sh[:, :0]
    ranges = {
        "scales": (scales, kind.scales, (low / (1 + _SLACK), high * (1 + _SLACK))),
        "base colours": (colors_of_sh(scene.sh), kind.colors, _widened(kind.colors)),
        "harmonics": (higher, kind.harmonics, _widened(kind.harmonics)),
    }
    for name, (values, (low, high), bounds) in ranges.items():
        if count := _beyond(values, bounds):
            counted = f"{count:,} Gaussian{'' if count == 1 else 's'}"
            lost.append(f"clips {name} of {counted} to {low:.3g} to {high:.3g}")
    return lost


def _widened(bounds: tuple[float, float]) -> tuple[float, float]:
    slack = _SLACK * (bounds[1] - bounds[0])
    return bounds[0] - slack, bounds[1] + slack


def _beyond(values: Float32, bounds: tuple[float, float]) -> int:
    """Returns the number of rows with values beyond the bounds."""
    if not values.size or bounds == (-inf, inf):
        return 0
    beyond = (values < bounds[0]) | (values > bounds[1])
    return int(beyond.reshape(len(values), -1).any(axis=1).sum())


def _unstated(scene: StoredScene) -> list[str]:
    """Returns what other formats than USD do not say of a scene from USD, as text."""
    lost = ["does not say that z is up"] if scene.details.get("up_axis") == "Z" else []
    unit = scene.details.get("meters_per_unit", 1.0)
    is_lost = unit != 1.0 and "unit_is_default" not in scene.details
    return lost if not is_lost else [*lost, f"does not say that a scene unit is {unit:g} m"]


def suffix_of(path: str | PathLike[str]) -> str:
    """Returns the suffix that determines a file's format, one of `WRITABLE`.

    Args:
        path: the file.

    Raises:
        InvalidArgument: another suffix.
    """
    name = Path(path).name.lower()
    suffix = ".compressed.ply" if name.endswith(".compressed.ply") else Path(name).suffix
    if suffix not in _FORMATS:
        raise InvalidArgument.of("path", f"expected a name that ends in {', '.join(WRITABLE)}, got {fspath(path)}")
    return suffix
