"""Doubts about data sets and reconstructions whose numbers are valid, but which are probably wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lumigrad.client.base.arrays import Array, Float64
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import Track, View
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.lenses import FisheyeLens, OrthographicLens, PinholeLens, SpinningLidar

# Enough for a share that is exact to a few percent.
MOST_POINTS = 1000
# Correct reconstructions lie above this share, wrong ones below.
LEAST_AGREEMENT = 0.52
# Neighbouring photographs that are checked for each view of a point, and the largest angle between the two views.
_NEAREST, _DEGREES = 2, 20.0
# The share of fewer answers than this is not reported.
_LEAST_ANSWERS = 100
# Shorter focal lengths, relative to the picture, mean angles of view near 180 degrees, and above a turn for fisheyes.
_SHORTEST = 0.05
# Points that are looked for, and the fewest that tell anything; the share of cameras that may show none.
_MOST_POINTS, _LEAST_POINTS, _MOST_BLIND = 5000, 50, 0.9
# A camera is far away if its distance is so many times that within which this share of all cameras is.
_FAR, _SHARE_NEAR = 10.0, 0.9
# Relative to coordinates, distances below this may be rounding errors.
_ROUNDING = 1e-6


class DoubtfulCameras(UserWarning):
    """A reconstruction whose cameras are probably wrong although they were found."""


def agreement(tracks: Sequence[Track], cameras: Mapping[int, Camera]) -> float | None:
    """Returns the share of photographs that show a point among those nearest to one that shows it.

    Features are found again in photographs from nearly the same direction. Photographs that were placed side by side by
    mistake show different things, so that few of the photographs that should see a point do.

    Args:
        tracks: points that at least two photographs show.
        cameras: the cameras of all photographs by image id.

    Returns:
        0 to 1; None if too few photographs are near each other, or if the points do not say which show them.
    """
    ids = [key for key, camera in cameras.items() if isinstance(camera.model, OpenCVModel | SensorModel)]
    rows = {key: row for row, key in enumerate(ids)}
    seen = [np.array(sorted({rows[key] for key in track.image_ids.tolist() if key in rows}), int) for track in tracks]
    found = [(track.place, row) for track, row in zip(tracks, seen, strict=True) if len(row) > 1]
    if not found or len(ids) <= _NEAREST:
        return None
    places = np.array([place for place, _ in found])
    eyes, shown = eyes_and_shown(places, [cameras[key] for key in ids])
    answers = [_answers(place, row, eyes, shown[index]) for index, (place, row) in enumerate(found)]
    total = np.concatenate(answers)
    return float(total.mean()) if len(total) >= _LEAST_ANSWERS else None


def eyes_and_shown(places: Float64, cameras: Sequence[Camera]) -> tuple[Float64, Array]:
    """Returns the positions of cameras [N, 3], and whether their pictures contain points [P, N]; ignores distortion."""
    eyes, shown = [], []
    for camera in cameras:
        model = camera.model
        assert isinstance(model, OpenCVModel | SensorModel)
        x, y, depth = model.rotation @ places.T + np.asarray(model.translation)[:, None]
        fx, fy = camera.paraxial_focal_lengths
        inside = (np.abs(2 * x * fx) < depth * camera.width) & (np.abs(2 * y * fy) < depth * camera.height)
        eyes.append(model.eye)
        shown.append((depth > 0) & inside)
    return np.array(eyes), np.stack(shown, axis=1)


def _answers(place: Float64, seeing: Array, eyes: Float64, shown: Array) -> Array:
    """Returns whether the neighbours of photographs that see a point see it, too, as one flat array."""
    directions = eyes - place
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-300)
    cosines = directions[seeing] @ directions.T
    cosines[:, ~shown] = -2.0
    cosines[np.arange(len(seeing)), seeing] = -2.0
    nearest = np.argpartition(-cosines, _NEAREST - 1, axis=1)[:, :_NEAREST]
    is_near = np.take_along_axis(cosines, nearest, axis=1) > np.cos(np.radians(_DEGREES))
    return np.asarray(np.isin(nearest, seeing)[is_near])


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
    posed = [view for view in views if isinstance(view.camera.model, OpenCVModel | SensorModel)]
    if far := _farthest(posed):
        text = (
            f"the camera of the picture {far[0].name} is {far[1]:.0f} times as far from the middle as nine in ten are"
        )
        yield f"{text}: the rates of a fit grow with this distance; if the pose is wrong, take the picture out"
    seeing = [view.camera for view in posed]
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


def _farthest(views: Sequence[View]) -> tuple[View, float] | None:
    """Returns the view farthest from the median place if it is far away, and how many times as far as most others."""
    if not views:
        return None
    places = np.array([view.camera.position for view in views], np.float64)
    middle = np.median(places, axis=0)
    distances = np.linalg.norm(places - middle, axis=1)
    near, index = float(np.quantile(distances, _SHARE_NEAR, method="higher")), int(distances.argmax())
    # Any other camera is far away if nearly all are at one place, up to rounding errors.
    is_one_place = near <= _ROUNDING * max(float(np.abs(middle).max()), _ROUNDING * float(distances[index]))
    if is_one_place or distances[index] <= _FAR * near:
        return None
    return views[index], float(distances[index]) / near


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
