"""Cameras of the Gaussian kernels, from their messages."""

from __future__ import annotations

from functools import lru_cache

from lumigrad.kernels.gaussians import Camera
from lumigrad.server.cameras import check_length, check_model, check_opencv, projection_of, rows
from lumigrad.server.limits import arguments_of
from lumigrad.v1 import camera_pb2


def gaussian_camera(message: camera_pb2.Camera, field: str) -> Camera:
    """Check and build a camera; `field` is its path in the request."""
    model = check_model(message, ("opencv", "inria"), field)
    where = f"{field}.{model}"
    if model == "opencv":
        check_opencv(message.opencv, where)
        projection_of(message.opencv, where)
    else:
        check_length(message.inria.view_matrix, 16, f"{where}.view_matrix")
        check_length(message.inria.full_projection, 16, f"{where}.full_projection")
        check_length(message.inria.position, 3, f"{where}.position")
    elsewhere = {"width": f"{field}.width", "height": f"{field}.height", "model": f"{where}.projection"}
    with arguments_of(where, elsewhere):
        return _known_camera(message.SerializeToString(deterministic=True))


@lru_cache(maxsize=4096)
def _known_camera(serialized: bytes) -> Camera:
    """The kernels' camera; trainers come back to the same views, and making one takes time."""
    message = camera_pb2.Camera.FromString(serialized)
    if message.HasField("inria"):
        inria = message.inria
        return Camera.inria(
            rows(inria.view_matrix, 4),
            rows(inria.full_projection, 4),
            list(inria.position),
            inria.tan_fov_x,
            inria.tan_fov_y,
            message.width,
            message.height,
        )
    opencv = message.opencv
    return Camera.opencv(
        opencv.fx,
        opencv.fy,
        opencv.cx,
        opencv.cy,
        rows(opencv.rotation, 3),
        list(opencv.translation),
        message.width,
        message.height,
        model=projection_of(opencv, "projection"),
        distortion=tuple(opencv.distortion),
    )
