"""The frame of a fit: that of its data set, or moved near 0 if float32 would be too coarse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from lumigrad.client.base.cautions import said, warn_of
from lumigrad.client.base.precision import box_of, lost_by
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.frame import offset_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.beside import Offset, read_offset
from lumigrad.client.training.options import extent_of
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# An initial scene farther from the cameras than this many times their extent is in the wrong frame.
_FARTHEST = 1000.0


def offset_for(capture: Capture, begin: Path | None) -> Offset | None:
    """Returns the offset to subtract from a data set's coordinates, or None.

    If the initial scene has an offset, that is used, so that the scene need not be moved.

    Args:
        capture: the data set.
        begin: the file of the initial scene; None: there is none.
    """
    return (None if begin is None else read_offset(begin)) or offset_of(capture.views)


def without_offset(capture: Capture, offset: Offset | None) -> Capture:
    """Returns a data set with an offset subtracted from its coordinates."""
    if offset is None:
        return capture
    points = capture.points
    if points is not None and np.array_equal(points.positions, points.positions.astype(np.float32)):
        # The points were already rounded to float32 by the program that wrote them.
        warn_of("points of the data set, which are float32", lost_by(points.positions))
    return capture.moved(-np.array(offset))


def with_offset(capture: Capture, offset: Offset | None) -> Capture:
    """Returns a data set with an offset added, in its original coordinates again."""
    if offset is None:
        return capture
    with said():
        return capture.moved(offset)


def beginning_in(
    scene: Gaussians | Spheres, path: Path, capture: Capture, offset: Offset | None
) -> Gaussians | Spheres:
    """Returns the initial scene of a fit, moved to the fit's frame.

    Args:
        scene: the scene, in the data set's own coordinates unless an offset file is next to its file.
        path: the scene's file.
        capture: the data set, in the frame of the fit.
        offset: the offset that was subtracted from the data set's coordinates; None: none.

    Raises:
        InvalidArgument: the scene is far from the cameras, so its coordinates are in a different frame.
    """
    if offset is None or not len(scene):
        return scene
    name = "means" if isinstance(scene, Gaussians) else "positions"
    points = getattr(scene, name)
    if read_offset(path) is None:
        points = points.astype(np.float64) - offset
        scene = replace(scene, **{name: points})
    cameras = [view.camera for view in capture.views]
    away = float(np.linalg.norm(np.mean(box_of(points), axis=0) - np.mean([each.position for each in cameras], axis=0)))
    if away > _FARTHEST * extent_of(cameras):
        text = f"expected a scene amid the cameras, got one {away:.4g} units away from them: its coordinates are not"
        where = "say what to add to them in a file SCENE.offset.json beside it"
        raise InvalidArgument.of("begin", f"{text} those of the data set; {where}")
    return scene
