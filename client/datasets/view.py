"""One view of a data set: a camera with a name, and the photograph taken with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from lumigrad.client.camera import Camera
from lumigrad.client.camera_models import OpenCVModel
from lumigrad.client.errors import InvalidArgument


@dataclass(frozen=True)
class View:
    """A place that a scene was seen from.

    Attributes:
        name: unique in its data set.
        camera: intrinsics and pose, and the size of the photograph as it was calibrated.
        image: the photograph; None if there is no such file.
        mask: a picture that is black where the photograph does not count; None without one.
    """

    name: str
    camera: Camera
    image: Path | None = None
    mask: Path | None = None

    def resized(self, width: int, height: int) -> View:
        """The same view with a picture of another size, in pixels."""
        return replace(self, camera=resized(self.camera, width, height))


def resized(camera: Camera, width: int, height: int) -> Camera:
    """A camera that sees the same in a picture of another size; only OpenCV's cameras can be resized."""
    if (width, height) == (camera.width, camera.height):
        return camera
    if not isinstance(camera.model, OpenCVModel):
        raise InvalidArgument.of("size", f"expected the camera's own, {camera.width}x{camera.height}")
    x, y = width / camera.width, height / camera.height
    model = camera.model
    scaled = replace(model, fx=model.fx * x, fy=model.fy * y, cx=model.cx * x, cy=model.cy * y)
    return Camera(width, height, scaled)


def unique_names(files: Sequence[str]) -> list[str]:
    """Names of views from the names of their photographs: without folder and suffix where that is enough."""
    paths = [PurePosixPath(file) for file in files]
    for named in ([path.stem for path in paths], [str(path.with_suffix("")) for path in paths]):
        if len(set(named)) == len(named):
            return named
    return [f"{index}_{path.stem}" for index, path in enumerate(paths)]
