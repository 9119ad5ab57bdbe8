"""Gaussians in PLY files as Inria's trainer writes them: logarithms of scales, logits of opacities, float32.

Files of 2D Gaussians (surfels) have two scales. Files of round Gaussians may have one scale and no rotation. Files may
have red, green and blue in place of the constant harmonics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.ply_header import PlyHeader, fractions, vertex_header, write_vertices
from lumigrad.client.formats.scene import (
    StoredScene,
    logarithms_of_scales,
    logits_of_opacities,
    opacities_from_logits,
    scales_from_logarithms,
    sh_from_colors,
)
from lumigrad.client.formats.source import shortened

_REQUIRED = ("x", "y", "z", "opacity", "scale_0")
_BASE = ("f_dc_0", "f_dc_1", "f_dc_2")
# Colours as displayed, which some exporters write in place of their coefficients.
_COLORS = ("red", "green", "blue")
_ROTATION = ("rot_0", "rot_1", "rot_2", "rot_3")
# Redundant properties: normals are 0, and colours repeat the harmonics.
_HARMLESS = ("nx", "ny", "nz", "red", "green", "blue", "alpha")
# Numbers of fewer Gaussians than this may be unusual.
_LEAST_ROWS = 16
# Numbers of coefficients beyond the constant one, all channels, for degrees 0 to 4.
_REST_COUNTS = (0, 9, 24, 45, 72)
# Other trainers' comments about antialiasing; the last one counts.
_MODE_COMMENTS = {
    "SplatRenderMode: mip": True,
    "SplatRenderMode: default": False,
    "antialiased 1": True,
    "antialiased 0": False,
}


def holds_gaussians(header: PlyHeader) -> bool:
    """Whether the file has this format."""
    names = header.vertex_properties
    return "scale_0" in names and ("f_dc_0" in names or {*_COLORS, "opacity"} <= names)


def looks_like_gaussians(header: PlyHeader) -> bool:
    """Whether the vertices are Gaussians, even if the file does not have this format."""
    return holds_gaussians(header) or {"scale_0", "rot_0"} <= header.vertex_properties


def read_inria_ply(header: PlyHeader) -> StoredScene:
    """Reads the vertices, text or binary in either byte order, with properties in any order; warns of unknown ones."""
    return gaussians_of(header, header.table("vertex"))


def gaussians_of(header: PlyHeader, vertices: Any) -> StoredScene:
    """Returns the Gaussians of some rows of a file's vertices, a structured array."""
    names = header.vertex_properties
    # A single scale applies to all axes, so that rotations have no effect.
    is_round = not names & {"scale_1", "scale_2"}
    turned = () if is_round and not names & set(_ROTATION) else _ROTATION
    base = _BASE if "f_dc_0" in names else _COLORS
    needed = (*_REQUIRED, *base, *(() if is_round else ("scale_1",)), *turned)
    missing = [name for name in needed if name not in names]
    if missing:
        raise header.fail(f"expected the vertex properties {', '.join(missing)} as well")
    lists = [name for name, kind in header.elements["vertex"].types.items() if kind == "list"]
    if lists:
        raise header.fail(f"expected numbers as vertex properties, got lists: {', '.join(lists)}")
    _say_ignored(header)
    _say_activated(header, vertices)
    return StoredScene(
        means=_columns(vertices, ("x", "y", "z")),
        quats=_columns(vertices, turned) if turned else np.tile(np.array([1, 0, 0, 0], np.float32), (len(vertices), 1)),
        scales=_scales(vertices, 1 if is_round else 2 if "scale_2" not in names else 3),
        opacities=opacities_from_logits(np.asarray(vertices["opacity"])),
        sh=_harmonics(header, vertices, names),
        antialiased=_antialiased(header.comments),
        details={"format": "PLY"},
    )


def _say_ignored(header: PlyHeader) -> None:
    """Warns of properties that may belong to another kind of Gaussians, such as filters, motions or other kernels."""
    known = {*_REQUIRED, *_BASE, *_ROTATION, *_HARMLESS, "scale_1", "scale_2"}
    ignored = [name for name in header.elements["vertex"].types if name not in known and not name.startswith("f_rest_")]
    if ignored:
        text = shortened(", ".join(ignored), 300)
        warn_caller(f"{header.path}: properties of Gaussians that are ignored: {text}")


def _say_activated(header: PlyHeader, vertices: Any) -> None:
    """Warns of numbers that are probably standard deviations and opacities."""
    scales = [name for name in vertices.dtype.names if name.startswith("scale_")]
    opacities = np.asarray(vertices["opacity"])
    if len(vertices) < _LEAST_ROWS or not all((vertices[name] > 0).all() for name in scales):
        return
    # The logits of a trained scene are on both sides of 0 and 1, and most of its scales below 1.
    if 0 <= opacities.min() < opacities.max() <= 1:
        text = f"{scales[0]} to {scales[-1]} are all above 0, and opacity from 0 to 1, but this format has logarithms"
        warn_caller(f"{header.path}: {text} and logits; if they are scales and opacities themselves, export it anew")


def write_inria_ply(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes a binary little-endian file with the properties in the order that Inria's tools expect."""
    write_vertices(path, _properties(scene), ["SplatRenderMode: mip"] if scene.antialiased else [])


def write_inria_parts(
    path: str | PathLike[str], parts: Iterable[StoredScene], count: int, degree: int
) -> Iterator[int]:
    """Writes a scene that is larger than memory in the same format.

    Args:
        path: the file.
        parts: the scene in at least one part, `count` Gaussians in all; not surfels.
        count: Gaussians of all parts.
        degree: the degree of the harmonics.

    Yields:
        How many Gaussians have been written so far.
    """
    done = 0
    with replaced(path) as new, open(new, "wb") as file:
        for part in parts:
            columns = _properties(part.of_degree(degree))
            if not done:
                file.write(vertex_header(list(columns), count))
            file.write(np.column_stack(list(columns.values())).astype("<f4").data)
            yield (done := done + len(part))


def _properties(scene: StoredScene) -> dict[str, Float32]:
    """Returns the properties [N] of Gaussians by name, in order."""
    places: dict[str, Float32] = dict(zip("xyz", scene.means.T, strict=True))
    places |= dict.fromkeys(("nx", "ny", "nz"), np.zeros(len(scene), np.float32))
    scales = logarithms_of_scales(scene.scales[:, : 2 if scene.is_flat else 3])
    return places | look_columns(scene.sh, logits_of_opacities(scene.opacities), scales, scene.quats)


def look_columns(sh: Float32, logits: Float32, logarithms: Float32, quats: Float32) -> dict[str, Float32]:
    """Returns all properties [N] except positions, in order.

    Args:
        sh: [N, K, 3] coefficients of spherical harmonics.
        logits: [N] of opacities.
        logarithms: [N, 2 or 3] of scales.
        quats: [N, 4] rotations (w, x, y, z).
    """
    # Channel-major: all coefficients of red, then green, then blue.
    rest = sh[:, 1:].transpose(0, 2, 1).reshape(len(sh), 3 * (sh.shape[1] - 1))
    groups = {"f_dc": sh[:, 0], "f_rest": rest, "opacity": logits, "scale": logarithms, "rot": quats}
    columns: dict[str, Float32] = {}
    for name, group in groups.items():
        columns |= {name: group} if group.ndim == 1 else {f"{name}_{k}": group[:, k] for k in range(group.shape[1])}
    return columns


def _scales(vertices: Any, count: int) -> Float32:
    """Returns scales [N, 3]: a single stored scale is repeated, and the third scale of surfels is 0."""
    found = scales_from_logarithms(_columns(vertices, tuple(f"scale_{k}" for k in range(count))))
    return np.repeat(found, 3, axis=1) if count == 1 else np.pad(found, ((0, 0), (0, 3 - count)))


def _harmonics(header: PlyHeader, vertices: Any, names: set[str]) -> Float32:
    count = sum(1 for name in names if name.startswith("f_rest_"))
    rest = [f"f_rest_{k}" for k in range(count)]
    if count not in _REST_COUNTS or not set(rest) <= names:
        raise header.fail(f"expected f_rest_0 to f_rest_8, 23, 44 or 71, or none; got {count} of them")
    if "f_dc_0" in names:
        base = _columns(vertices, _BASE)[:, None]
    else:
        base = sh_from_colors(fractions(*(vertices[name] for name in _COLORS)))
    if not count:
        return base
    higher = _columns(vertices, tuple(rest)).reshape(len(base), 3, count // 3).transpose(0, 2, 1)
    return np.concatenate([base, higher], axis=1)


def _columns(vertices: Any, names: tuple[str, ...]) -> Float32:
    """Returns [N, len(names)], the named properties."""
    every = vertices.dtype.names
    if {vertices.dtype[name] for name in every} == {np.dtype("<f4")}:
        # The usual layout allows one pass over the rows instead of one for each column.
        table = np.asarray(vertices).view("<f4").reshape(len(vertices), len(every))
        return np.asarray(table[:, [every.index(name) for name in names]], np.float32)
    columns = np.empty((len(vertices), len(names)), np.float32)
    for place, name in enumerate(names):
        columns[:, place] = vertices[name]
    return columns


def _antialiased(comments: tuple[str, ...]) -> bool:
    modes = [_MODE_COMMENTS[text] for text in comments if text in _MODE_COMMENTS]
    return bool(modes) and modes[-1]
