"""What a RenderSpec asks of the sphere engine, checked and in the kernels' own terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lumigrad.kernels.spheres import OUTPUTS, Camera, Settings
from lumigrad.server.limits import Limits, arguments_of, require
from lumigrad.v1 import camera_pb2, render_pb2, spheres_pb2

_DEFAULT_TRACK = 5
_DEFAULT_BACKGROUND_DEPTH = 1e-6
_SEMANTICS = {
    spheres_pb2.SEMANTICS_UNSPECIFIED: "exact",
    spheres_pb2.SEMANTICS_EXACT: "exact",
    spheres_pb2.SEMANTICS_COMPAT: "compat",
}


@dataclass(frozen=True)
class SpherePlan:
    """Everything but the scene."""

    cameras: Sequence[Camera]
    settings: Settings
    # Empty: all 1.
    background: Sequence[float]
    outputs: tuple[str, ...]
    width: int
    height: int

    @staticmethod
    def of(spec: render_pb2.RenderSpec, limits: Limits, field: str) -> SpherePlan:
        """Read and check a request; `field` is the path of the spec in it."""
        require(spec.WhichOneof("source") is not None, field, "scene_ref or scene", "neither")
        require(spec.WhichOneof("settings") == "spheres", f"{field}.spheres", "settings of the spheres", "none")
        _check_cameras(spec.cameras, limits, f"{field}.cameras")
        for name in spec.outputs:
            require(name in OUTPUTS, f"{field}.outputs", f"names out of {', '.join(OUTPUTS)}", name)
        cameras = [_camera(camera, f"{field}.cameras[{index}]") for index, camera in enumerate(spec.cameras)]
        return SpherePlan(
            cameras=cameras,
            settings=_settings(spec.spheres, f"{field}.spheres"),
            background=tuple(spec.spheres.background),
            outputs=tuple(dict.fromkeys(spec.outputs)) or ("color",),
            width=spec.cameras[0].width,
            height=spec.cameras[0].height,
        )

    def shapes(self, channels: int) -> Mapping[str, Sequence[int]]:
        """The shape of each output that can be asked for."""
        image = [len(self.cameras), self.height, self.width]
        tracked = self.settings.n_track
        return {
            "color": [*image, channels],
            "alpha": image,
            "depth": image,
            "info": [*image, 3 + 2 * tracked],
            "sphere_ids": [*image, tracked],
            "weights": [*image, tracked],
            "hits": image,
        }

    def check_scene(self, channels: int, limits: Limits, field: str) -> int:
        """Check what depends on the scene, the background and the size of the reply; returns the latter, bytes."""
        if self.background:
            limit = f"{channels} values, one per channel of the scene, or none"
            require(len(self.background) == channels, f"{field}.spheres.background", limit, len(self.background))
        shapes = self.shapes(channels)
        reply = 0
        for name in self.outputs:
            size = 4
            for length in shapes[name]:
                size *= length
            reply += size
        limit = f"at most {limits.payload_bytes} bytes of reply"
        require(reply <= limits.payload_bytes, f"{field}.outputs", limit, reply)
        return reply


def _check_cameras(cameras: Sequence[camera_pb2.Camera], limits: Limits, field: str) -> None:
    require(1 <= len(cameras) <= limits.cameras, field, f"1 to {limits.cameras} cameras", len(cameras))
    width, height = cameras[0].width, cameras[0].height
    for index, camera in enumerate(cameras):
        where = f"{field}[{index}]"
        require(camera.width >= 1 and camera.height >= 1, where, "width and height >= 1", _size(camera))
        same = camera.width == width and camera.height == height
        require(same, where, f"the size of the first camera, {_size(cameras[0])}", _size(camera))
    pixels = len(cameras) * width * height
    require(pixels <= limits.pixels, field, f"at most {limits.pixels} pixels in all", pixels)


def _size(camera: camera_pb2.Camera) -> str:
    return f"{camera.width}x{camera.height}"


def _camera(message: camera_pb2.Camera, field: str) -> Camera:
    model = message.WhichOneof("model")
    require(model is not None, field, "pulsar or opencv", "neither")
    if model == "opencv":
        rotation, translation = message.opencv.rotation, message.opencv.translation
        require(len(rotation) == 9, f"{field}.opencv.rotation", "9 values", len(rotation))
        require(len(translation) == 3, f"{field}.opencv.translation", "3 values", len(translation))
    with arguments_of(f"{field}.{model}", {"width": f"{field}.width", "height": f"{field}.height"}):
        return _known_camera(message.SerializeToString(deterministic=True))


@lru_cache(maxsize=4096)
def _known_camera(serialized: bytes) -> Camera:
    """The kernels' camera; trainers come back to the same views, and making one takes as long as sending a chunk."""
    message = camera_pb2.Camera.FromString(serialized)
    width, height = message.width, message.height
    if message.HasField("pulsar"):
        pulsar = message.pulsar
        return Camera.pulsar(
            tuple(pulsar.parameters),
            width,
            height,
            orthogonal=pulsar.orthogonal,
            right_handed=pulsar.right_handed,
            first_r_then_t=pulsar.first_r_then_t,
        )
    opencv = message.opencv
    rotation = [list(opencv.rotation[row : row + 3]) for row in (0, 3, 6)]
    return Camera.opencv(opencv.fx, opencv.fy, opencv.cx, opencv.cy, rotation, list(opencv.translation), width, height)


def _settings(message: spheres_pb2.SphereSettings, field: str) -> Settings:
    require(message.semantics in _SEMANTICS, f"{field}.semantics", "a known value", message.semantics)
    with arguments_of(field):
        return Settings(
            gamma=message.gamma,
            max_depth=message.max_depth,
            min_depth=message.min_depth,
            semantics=_SEMANTICS[message.semantics],
            allowed_difference=message.allowed_difference if message.HasField("allowed_difference") else None,
            max_hits=message.max_hits,
            n_track=message.n_track or _DEFAULT_TRACK,
            background_depth=(
                message.background_depth if message.HasField("background_depth") else _DEFAULT_BACKGROUND_DEPTH
            ),
        )
