"""Doubts about a data set whose numbers are valid, but probably meant in another unit or system of axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lumigrad.client.datasets.agreement import eyes_and_shown
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import View
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.lenses import FisheyeLens, OrthographicLens, PinholeLens, SpinningLidar

# Shorter focal lengths, relative to the picture, mean angles of view near 180 degrees, and above a turn for fisheyes.
_SHORTEST = 0.05
# Points that are looked for, and the fewest that tell anything; the share of cameras that may show none.
_MOST_POINTS, _LEAST_POINTS, _MOST_BLIND = 5000, 50, 0.9


def doubts(views: Sequence[View], points: Points | None) -> Iterator[str]:
    """Yields what is probably wrong with a data set, as sentences."""
    if short := next((view for view in views if _is_short(view)), None):
        camera = short.camera
        focal = max(camera.paraxial_focal_lengths)
        text = f"expected focal lengths in pixels, got {focal:.4g} for the picture {short.name}"
        yield f"{text}, {camera.width}x{camera.height}: is it in millimetres or a fraction of the size?"
    if outside := next((view for view in views if _is_off(view)), None):
        camera = outside.camera
        text = f"expected the principal point inside of the picture {outside.name}, {camera.width}x{camera.height}, got"
        yield f"{text} {camera.K[0, 2]:g}, {camera.K[1, 2]:g}: are the intrinsics those of another size?"
    seeing = [view.camera for view in views if isinstance(view.camera.model, OpenCVModel | SensorModel)]
    if points is None or len(points) < _LEAST_POINTS or not seeing:
        return
    _, shown = eyes_and_shown(points.positions[:: -(-len(points) // _MOST_POINTS)], seeing)
    blind = int((~shown.any(axis=0)).sum())
    if blind > _MOST_BLIND * len(seeing):
        text = f"{blind} of {len(seeing)} cameras show none of its {len(points):,} points"
        conventions = (
            "transforms.json has matrices camera to world with OpenGL's axes, COLMAP world to camera with OpenCV's"
        )
        yield f"{text}: the poses are probably inverse or have other axes ({conventions}), or the points another frame"


def _is_short(view: View) -> bool:
    model = view.camera.model
    lens = model.lens if isinstance(model, SensorModel) else None
    if isinstance(lens, OrthographicLens | SpinningLidar) or not isinstance(model, OpenCVModel | SensorModel):
        return False
    return max(view.camera.paraxial_focal_lengths) < _SHORTEST * max(view.camera.width, view.camera.height)


def _is_off(view: View) -> bool:
    camera, model = view.camera, view.camera.model
    lens = model.lens if isinstance(model, SensorModel) else model
    if not isinstance(lens, OpenCVModel | PinholeLens | FisheyeLens):
        return False
    return not (0 <= lens.cx <= camera.width and 0 <= lens.cy <= camera.height)
