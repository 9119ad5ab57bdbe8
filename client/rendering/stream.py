"""`RenderStream`: frames of one scene from camera after camera."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from lumigrad.client.base.arguments import truth, whole_number
from lumigrad.client.base.staying import Staying
from lumigrad.client.rendering.batch import check_names
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.frame_stream import FrameStream
from lumigrad.client.rendering.request import RenderRequest, request_of
from lumigrad.client.transport.call import Cancellable
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.handle import SceneHandle, scene_facts
from lumigrad.client.workers.pool import Pool
from lumigrad.protos.service import RENDER_SERVICE

# The most frames of a stream that a worker accepts at once.
MOST_IN_FLIGHT = 4


class RenderStream(Cancellable, Staying):
    """Frames of one scene, in the order of their cameras, with several in flight at once.

    A frame has less overhead, here and on the worker, than a call of `Client.render`. If the connection breaks or the
    worker stops, the missing frames are rendered again, by another worker if there are several. A frame's error is
    raised in its place, and the stream continues. One thread may send while another one receives.

    Attributes:
        scene: the handle of the scene.

    Example:
        with client.stream(scene, image_format="jpeg") as stream:
            for frame in stream.frames(cameras):
                print(len(frame.encoded["color"]))
    """

    def __init__(
        self,
        workers: Pool,
        scene: SceneHandle,
        arguments: Mapping[str, Any],
        *,
        in_flight: int,
        latest_only: bool,
        retain: bool,
        timeout_s: float | None,
        at_end: Callable[[], None],
    ) -> None:
        """Creates a stream for `Client.stream`; `at_end` is called when it is closed."""
        check_names(arguments)
        limit = whole_number("in_flight", in_flight, 1, MOST_IN_FLIGHT)
        latest_only, retain = truth("latest_only", latest_only), truth("retain", retain)
        self.scene = scene
        self._arguments = arguments
        self._call = workers.begin(timeout_s, f"{RENDER_SERVICE}/RenderStream", lambda: scene_facts(scene))
        self._at_end = at_end
        self._frames = FrameStream(workers, scene, self._call, in_flight=limit, latest_only=latest_only, retain=retain)

    def __enter__(self) -> RenderStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def in_flight(self) -> int:
        """The most frames that may be pending, unless the stream is `latest_only`."""
        return self._frames.in_flight

    @property
    def pending(self) -> int:
        """The number of frames that were requested and not received."""
        return self._frames.pending

    def send(self, camera: Camera | Sequence[Camera]) -> None:
        """Requests a frame, without waiting for it.

        Args:
            camera: one camera, or several with equal image sizes, as in `Client.render`.

        Raises:
            InvalidArgument: `in_flight` frames are pending and the stream is not `latest_only`, or the camera does not
                fit the scene or the stream's arguments.
            LumigradError: no worker was found in time for the first frame.

        Example:
            with client.stream(scene) as stream:
                stream.send(camera)
                frame = stream.receive()
        """
        self.ask(request_of(self.scene, camera, **self._arguments))

    def ask(self, request: RenderRequest) -> None:
        """Requests a frame with a request of its own, which may differ from earlier ones in everything but the scene.

        Args:
            request: a request for the scene of the stream.

        Raises:
            LumigradError: as for `send`.

        Example:
            with client.stream(scene) as stream:
                stream.ask(client.render(scene, camera).request)
                frame = stream.receive()
        """
        self._frames.ask(request, self._cancellation)

    def receive(self) -> Frame:
        """Waits for the next frame; with `latest_only`, cameras before it may have been skipped.

        Returns:
            The frame, as from `Client.render`.

        Raises:
            InvalidArgument: no frame is pending.
            LumigradError: as for `Client.render`; the next call returns the frame after this one.

        Example:
            with client.stream(scene) as stream:
                stream.send(camera)
                frame = stream.receive()
        """
        return self._frames.receive(self._cancellation)

    def frames(self, cameras: Iterable[Camera | Sequence[Camera]]) -> Iterator[Frame]:
        """Yields the frame of each camera, in order, with up to `in_flight` frames in flight.

        Args:
            cameras: may be endless. Later cameras are taken before a frame is yielded, so they cannot depend on that
                frame; use `send` and `receive` if they do.

        Raises:
            LumigradError: as for `receive`.

        Example:
            with client.stream(scene, image_format="uint8") as stream:
                for frame in stream.frames(cameras):
                    print(frame.color.shape)
        """
        for camera in cameras:
            if self.pending >= self.in_flight:
                yield self.receive()
            self.send(camera)
        while self.pending:
            yield self.receive()

    def close(self) -> None:
        """Ends the stream and cancels pending frames.

        Example:
            stream = client.stream(scene)
            stream.close()
        """
        if self._frames.close():
            self._call.trace.end(None)
            self._at_end()
