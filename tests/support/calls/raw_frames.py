"""A stream of frames with protobuf messages, for tests of the worker that do not depend on the client."""

from __future__ import annotations

import queue
from types import TracebackType
from typing import Any

import grpc

from lumigrad.protos.frame_stream import FrameAnswer
from lumigrad.v1 import render_pb2, scene_pb2
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud

CAMERA = opencv_camera(32, 24)


class RawFrames:
    """One RenderStream; `sent` is the number of the last request."""

    def __init__(self, client: RawClient, **options: Any) -> None:
        self._requests: queue.SimpleQueue[render_pb2.FrameRequest | None] = queue.SimpleQueue()
        requests = iter(self._requests.get, None)
        self.call = client.render_stub.RenderStream(requests, **{"timeout": 240.0, **options})
        self.sent = 0

    def __enter__(self) -> RawFrames:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        self.call.cancel()

    def send(self, spec: render_pb2.RenderSpec | None = None, **fields: Any) -> int:
        """Send a request, pipelined and with the next number unless it says otherwise; returns the number."""
        fields.setdefault("pipelined", True)
        self.sent = fields.pop("number", self.sent + 1)
        if spec is not None:
            fields.setdefault("render", render_pb2.RenderRequest(spec=spec))
        self._requests.put(render_pb2.FrameRequest(number=self.sent, **fields))
        return self.sent

    def receive(self) -> FrameAnswer:
        """The next message."""
        return next(self.call)

    def end(self) -> None:
        """Send no more."""
        self._requests.put(None)

    def status(self) -> grpc.StatusCode:
        """The status of the stream, after the messages that are still to come."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        return self.call.code()


def stored_spec(client: RawClient, *cameras: Any, count: int = 100, **fields: Any) -> render_pb2.RenderSpec:
    """The spec of a stored scene of spheres."""
    info = client.put(sphere_cloud(count)).scene
    spec = spec_of(*(cameras or (CAMERA,)), **fields)
    spec.scene_ref.CopyFrom(scene_pb2.SceneRef(scene_id=info.scene_id, version=info.version))
    return spec
