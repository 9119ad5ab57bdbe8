"""A data set of the still life: photographs, their cameras and initial points, in nerfstudio's layout."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import View
from lumigrad.client.pictures import write_image
from lumigrad.client.samples import still_life
from lumigrad.client.samples.photographer import Exposure
from lumigrad.client.values.camera import Camera

_FOV_DEGREES, _DISTANCE = 38.0, 4.9
# The path rises from the lowest to the highest elevation in so many turns.
_TURNS, _LOWEST, _HIGHEST = 4, 4.0, 52.0
_POINTS = 8000
# Reconstructions are not exact: the standard deviation of a point, scene units.
_NOISE = 0.005


def views(count: int, width: int, height: int) -> list[View]:
    """Returns cameras on a spiral around the still life, which look at its middle."""
    shares = (np.arange(count) + 0.5) / count
    return [
        View(
            f"photo_{index:03d}",
            Camera.orbit(
                still_life.FOCUS,
                _DISTANCE,
                360.0 * _TURNS * share,
                _LOWEST + (_HIGHEST - _LOWEST) * share,
                still_life.UP,
                fov_degrees=_FOV_DEGREES,
                width=width,
                height=height,
            ),
        )
        for index, share in enumerate(shares)
    ]


def write_capture(folder: Path, taken: Iterable[tuple[View, Exposure]]) -> int:
    """Writes images/, points.ply and transforms.json; returns the number of photographs.

    The pictures are PNG files, transparent around the still life. The points are surface points that random pixels
    show.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    written: list[View] = []
    seen: list[tuple[Float64, Float64]] = []
    for view, exposure in taken:
        image = folder / "images" / f"{view.name}.png"
        write_image(image, exposure.pixels)
        written.append(View(view.name, view.camera, image))
        seen.append((exposure.places, exposure.colors))
    places, colors = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    chosen = generator.choice(len(places), min(_POINTS, len(places)), replace=False)
    positions = places[chosen] + generator.normal(scale=_NOISE, size=(len(chosen), 3))
    Capture(tuple(written), Points(positions, colors[chosen])).save(folder)
    return len(written)
