"""PLY point clouds as spheres: radii from the distances of neighbours."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.cautions import said, warn_of, warn_of_levels
from lumigrad.client.base.precision import lost_by, median_of
from lumigrad.client.formats.ply_header import PlyHeader, fractions, write_vertices
from lumigrad.client.formats.scene import colors_of_sh
from lumigrad.client.values.spheres import Spheres

# Number of samples that gives the mean within a few per cent, in about a second for a million points.
_SAMPLES = 256
_BLOCK = 1 << 16


def mean_neighbour_distance(positions: npt.NDArray[Any]) -> float:
    """Returns the mean distance to the nearest neighbour, over a fixed random sample of the points.

    Args:
        positions: [N, 3], scene units. Points that are not finite, and copies of a point, are ignored.

    Returns:
        The distance; 0 if no two points differ.
    """
    points = positions[np.isfinite(positions).all(axis=1)].astype(np.float64)
    if len(points) < 2:
        return 0.0
    points -= points.mean(axis=0)
    generator = np.random.default_rng(0)
    queries = points[generator.choice(len(points), min(_SAMPLES, len(points)), replace=False)]
    # Smaller differences of squares are rounding errors, so such pairs count as copies.
    tolerance = 1e-12 * float(np.square(points).sum(axis=1).max())
    nearest = np.full(len(queries), np.inf)
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        squared = np.square(block).sum(axis=1) - 2.0 * queries @ block.T + np.square(queries).sum(axis=1)[:, None]
        squared[squared <= tolerance] = np.inf
        np.minimum(nearest, squared.min(axis=1), out=nearest)
    found = nearest[np.isfinite(nearest)]
    return float(np.sqrt(found).mean()) if len(found) else 0.0


Array = npt.NDArray[Any]

_COLOR_NAMES = (("red", "green", "blue"), ("r", "g", "b"), ("diffuse_red", "diffuse_green", "diffuse_blue"))
_RADIUS_NAMES = ("radius", "radii")
# Makes neighbours on a surface overlap enough to close it.
_RADIUS_PER_DISTANCE = 0.7
_DEFAULT_COLOR = 0.7


def load_spheres(path: str | PathLike[str], radius: float | None = None) -> Spheres:
    """Reads the vertices of a PLY file as spheres.

    Colours come from red, green and blue, also in capital letters (integers, and whole numbers up to 255, are scaled
    to 0..1; other floats are kept), from color_0, color_1, … or from the base colour of a Gaussian splat file; else
    they are grey. Radii come from `radius`, the property radius or radii, or the mean distance between neighbours.
    Opacities come from alpha or opacity.

    Args:
        path: the file, text or binary.
        radius: the radius of every sphere, scene units; None: as above.
    """
    header = PlyHeader.read(path)
    vertices, names = header.points(), header.vertex_properties
    places = np.stack([vertices[axis] for axis in ("x", "y", "z")], axis=1)
    positions = places.astype(np.float32)
    radii = _radii(vertices, names, positions) if radius is None else np.full(len(positions), radius, np.float32)
    warn_of(fspath(path), lost_by(places, median_of(radii)))
    colors = colors_of(vertices, names)
    if colors is None:
        colors = np.full((len(positions), 3), _DEFAULT_COLOR, np.float32)
    if colors.shape[1] == 3:
        warn_of_levels(f"{fspath(path)}: colors", colors)
    with said():
        return Spheres(positions, colors, radii, _opacities(vertices, names))


def save_spheres(spheres: Spheres, path: str | PathLike[str]) -> None:
    """Writes spheres as a binary little-endian PLY file of float32 properties."""
    channels = _COLOR_NAMES[0] if spheres.channels == 3 else [f"color_{k}" for k in range(spheres.channels)]
    columns: dict[str, Array] = dict(zip("xyz", spheres.positions.T, strict=True))
    columns |= dict(zip(channels, spheres.colors.T, strict=True))
    columns["radius"] = spheres.radii
    if spheres.opacities is not None:
        columns["opacity"] = spheres.opacities
    write_vertices(path, columns)


def colors_of(vertices: Any, names: set[str]) -> Array | None:
    """Returns the colours [N, K] of vertices from the properties that hold them; None if none of `names` does."""
    written = {name.lower(): name for name in names}
    for channels in _COLOR_NAMES:
        if set(channels) <= written.keys():
            return fractions(*(vertices[written[channel]] for channel in channels))
    if {"f_dc_0", "f_dc_1", "f_dc_2"} <= names:
        base = np.stack([vertices[f"f_dc_{k}"] for k in range(3)], axis=1)
        return np.clip(colors_of_sh(base[:, None]), 0.0, 1.0)
    numbered = sum(1 for name in names if name.startswith("color_"))
    if numbered and {f"color_{k}" for k in range(numbered)} <= names:
        return fractions(*(vertices[f"color_{k}"] for k in range(numbered)))
    return None


def _radii(vertices: Any, names: set[str], positions: Array) -> Array:
    for name in _RADIUS_NAMES:
        if name in names:
            return np.asarray(vertices[name], np.float32)
    distance = mean_neighbour_distance(positions)
    return np.full(len(positions), _RADIUS_PER_DISTANCE * distance if distance > 0 else 1.0, np.float32)


def _opacities(vertices: Any, names: set[str]) -> Array | None:
    # "opacity" in a file of Gaussians is the logit of a Gaussian, which is not a sphere's opacity.
    if "scale_0" in names:
        return None
    for name in ("opacity", "alpha"):
        if name in names:
            return fractions(vertices[name])[:, 0]
    return None
