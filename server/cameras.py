"""What is asked of cameras whatever engine they are for."""

from __future__ import annotations

from collections.abc import Sequence

from lumigrad.server.limits import Limits, require
from lumigrad.v1 import camera_pb2

_PROJECTIONS = {
    camera_pb2.PROJECTION_UNSPECIFIED: "pinhole",
    camera_pb2.PROJECTION_PINHOLE: "pinhole",
    camera_pb2.PROJECTION_ORTHOGRAPHIC: "orthographic",
    camera_pb2.PROJECTION_FISHEYE: "fisheye",
}

# Calls with large pictures gain nothing from being rendered together, and each waits for the last.
_BATCH_PIXELS = 1 << 20


def check_cameras(cameras: Sequence[camera_pb2.Camera], limits: Limits, field: str) -> None:
    """Check their number and size."""
    require(1 <= len(cameras) <= limits.cameras, field, f"1 to {limits.cameras} cameras", len(cameras))
    width, height = cameras[0].width, cameras[0].height
    for index, camera in enumerate(cameras):
        where = f"{field}[{index}]"
        require(camera.width >= 1 and camera.height >= 1, where, "width and height >= 1", _size(camera))
        same = camera.width == width and camera.height == height
        require(same, where, f"the size of the first camera, {_size(cameras[0])}", _size(camera))
    pixels = len(cameras) * width * height
    require(pixels <= limits.pixels, field, f"at most {limits.pixels} pixels in all", pixels)


def fill_of(cameras: Sequence[camera_pb2.Camera], limits: Limits) -> float:
    """The share that checked cameras take of the most that is rendered as one."""
    pixels = len(cameras) * cameras[0].width * cameras[0].height
    return max(len(cameras) / limits.batch_views, pixels / min(limits.pixels, _BATCH_PIXELS))


def check_model(camera: camera_pb2.Camera, known: Sequence[str], field: str) -> str:
    """The field of the camera's model, one of those known."""
    model = camera.WhichOneof("model")
    limit = " or ".join(known)
    require(model is not None, field, limit, "neither")
    require(model in known, f"{field}.{model}", limit, model)
    return str(model)


def check_length(values: Sequence[float], length: int, field: str) -> None:
    """Check how many values there are."""
    require(len(values) == length, field, f"{length} values", len(values))


def check_opencv(camera: camera_pb2.OpenCVCamera, field: str) -> None:
    """Check the lengths of rotation and translation."""
    check_length(camera.rotation, 9, f"{field}.rotation")
    check_length(camera.translation, 3, f"{field}.translation")


def projection_of(camera: camera_pb2.OpenCVCamera, field: str) -> str:
    """The projection in the kernels' words."""
    require(camera.projection in _PROJECTIONS, f"{field}.projection", "a known value", camera.projection)
    return _PROJECTIONS[camera.projection]


def rows(values: Sequence[float], length: int) -> list[list[float]]:
    """A row-major matrix, row by row."""
    return [list(values[start : start + length]) for start in range(0, len(values), length)]


def _size(camera: camera_pb2.Camera) -> str:
    return f"{camera.width}x{camera.height}"
