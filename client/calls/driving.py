"""The methods of `Client` that take requests of driving simulators, for pictures or for differentiable frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError, Message

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.gaussians import DepthOrder, Transform
from lumigrad.client.transport.call import Cancellable
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.wire.cameras import camera_of
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.drive.v1 import frame_pb2, sensorsim_pb2
from lumigrad.protos.service import FRAME_SERVICE, SENSORSIM_SERVICE
from lumigrad.v1 import gaussians_pb2


@dataclass(frozen=True, eq=False)
class DriveFrame:
    """A frame of a driving simulator as arguments of `Client.render`.

    Pass `frame.scene, frame.camera, **frame.settings`; `scene, camera, transforms = frame` works too.

    Attributes:
        scene: the scene, which the worker reads from files itself.
        camera: the camera, in the simulator's local frame moved by `origin`.
        transforms: the pose of each file and track of the scene, in the same frame.
        background: [3] colour.
        depth_order: "z", or "distance" for wide lenses.
        origin: [3] the point of the simulator's local frame at the origin of that frame, metres.
    """

    scene: SceneHandle
    camera: Camera
    transforms: tuple[Transform, ...]
    background: tuple[float, ...]
    depth_order: DepthOrder
    origin: Float64

    def __iter__(self) -> Iterator[Any]:
        return iter((self.scene, self.camera, self.transforms))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which `Client.render` reproduces the simulator's picture."""
        return {
            "transforms": self.transforms,
            "background": self.background or (0.0, 0.0, 0.0),
            "depth_order": self.depth_order,
        }


class DrivePicture(NamedTuple):
    """The reply to a simulator's request.

    Attributes:
        image: the encoded picture in the requested format; empty if there is an error.
        error: "CODE: field: expected .., got .."; empty if there is none.
    """

    image: bytes
    error: str


class DrivingCalls(Cancellable):
    """Takes requests in the simulators' own protobuf messages."""

    _workers: Pool

    def drive_frame(self, request: bytes | Message, *, timeout_s: float | None = None) -> DriveFrame:
        """Returns a frame of a driving simulator as arguments of `render`, so that it can be differentiated.

        Args:
            request: an RGBRenderRequest of AlpaSim or NuRec, or its bytes; see `formats.read_drive_log`.
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            InvalidArgument: the worker refuses the request; the text names the field.
            SceneNotFound: the worker has no scene of this name.

        Example:
            frame = client.drive_frame(request)
            rendered = client.render(frame.scene, frame.camera, **frame.settings, retain=True)
            gradients = rendered.backward(d_color, wanted=("cameras", "transforms"))
        """
        message = _request(request)
        facts = {"scene": message.scene_id}
        with self._workers.begin(timeout_s, f"{FRAME_SERVICE}/Describe", lambda: facts, self._cancellation) as call:
            attempts = RoutedAttempts(self._workers, None, call)
            while True:
                with attempts as worker:
                    connection = worker.connection
                    described = connection.unary(connection.frames.Describe, message, attempts.call)
                    return _frame(described, worker.target)

    def drive_pictures(
        self, requests: Sequence[bytes | Message], *, timeout_s: float | None = None
    ) -> tuple[DrivePicture, ...]:
        """Returns the pictures that a driving simulator would get for some requests, which are sent as one batch.

        Args:
            requests: as for `drive_frame`.
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            InvalidArgument: a request is not an RGBRenderRequest.
            LumigradError: the worker does not serve driving simulators, or no worker answered in time.

        Example:
            for picture in client.drive_pictures(requests):
                assert not picture.error
        """
        batch = sensorsim_pb2.BatchRGBRenderRequest(items=[{"request": _request(request)} for request in requests])
        method = f"{SENSORSIM_SERVICE}/batch_render_rgb"
        facts = {"cameras": len(batch.items)}
        with self._workers.begin(timeout_s, method, lambda: facts, self._cancellation) as call:
            attempts = RoutedAttempts(self._workers, None, call)
            while True:
                with attempts as worker:
                    connection = worker.connection
                    reply = connection.unary(connection.driving.batch_render_rgb, batch, attempts.call)
                    return tuple(DrivePicture(item.result.image_bytes, item.error_message) for item in reply.items)


def _request(request: Any) -> sensorsim_pb2.RGBRenderRequest:
    if not isinstance(request, bytes | Message):
        expected = "an RGBRenderRequest or its bytes"
        raise InvalidArgument.of("request", f"expected {expected}, got {type(request).__name__}")
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    try:
        return sensorsim_pb2.RGBRenderRequest.FromString(raw)
    except DecodeError:
        raise InvalidArgument.of("request", f"expected an RGBRenderRequest, got {len(raw)} bytes of another") from None


def _frame(described: frame_pb2.FrameDescription, target: str) -> DriveFrame:
    spec = described.spec
    name, settings = spec.scene_ref.name, spec.gaussians
    wide = settings.depth_order == gaussians_pb2.DEPTH_ORDER_DISTANCE
    transforms = tuple(
        Transform(it.begin, it.end, _matrix(it.matrix), _matrix(it.matrix_end) if it.matrix_end else None)
        for it in settings.transforms
    )
    return DriveFrame(
        scene=SceneHandle("", 0, "", "gaussians", described.count, 0, affinity=name, address=target, name=name),
        camera=camera_of(spec.cameras[0]),
        transforms=transforms,
        background=tuple(settings.background),
        depth_order="distance" if wide else "z",
        origin=np.array(described.origin),
    )


def _matrix(values: Sequence[float]) -> Float64:
    return np.reshape(np.array(values, np.float64), (4, 4))
