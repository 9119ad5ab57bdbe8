"""The measured calls of a worker, and the calls of the bare server that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np

from lumigrad.protos.service import RENDER_SERVICE
from lumigrad.protos.streams import frames_of, whole_frame
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import FrameCodec
from lumigrad.v1 import distance_pb2, image_pb2, render_pb2
from support.calls.distance_calls import DistanceClient
from support.calls.distance_worlds import stored, ways
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from tests.benchmarks.service.bare import path_of
from tests.benchmarks.service.callers import MESSAGE, SINGLE, Way

RENDER = f"/{RENDER_SERVICE}/Render"
STREAM = f"{RENDER}Stream"
QUERY = "/lumigrad.v1.DistanceService/Query"
SMALL, MIDDLE, FULL = (32, 24), (640, 360), (1920, 1080)
FLOAT32 = image_pb2.IMAGE_FORMAT_FLOAT32
UINT8 = image_pb2.IMAGE_FORMAT_UINT8
JPEG = image_pb2.IMAGE_FORMAT_JPEG
# The names of the cases of levels and of floats by a lane.
IMAGES_BY_LANE = ("1920x1080 uint8, lane", "1920x1080 float32, lane")
_NO_GOALS: Mapping[str, float] = {}
_ALONE_GOALS = {"p50_ms": 1.25, "gil_us": 1.3}
_SMALL_GOALS = {"rate": 0.8, "processor_us": 1.5, "gil_us": 1.3}
_STREAM_GOALS = {"rate": 0.85, "gil_us": 1.2}
_GAUSSIANS = 100
_VIEWS = 8
_SECONDS = 60.0
# The values are in shared memory.
_LANE_REPLY_BYTES = 250


@dataclass(frozen=True)
class Case:
    """Calls to compare.

    Attributes:
        name: what is called.
        clients: processes that call at the same time.
        calls: calls of each process in one round.
        ours: how the worker is called.
        bare: how the bare server is called.
        goals: the least ratio of rates, and the largest ones of other figures.
    """

    name: str
    clients: int
    calls: int
    ours: Way
    bare: Way
    goals: Mapping[str, float] = field(default_factory=dict)


class Cases:
    """The cases of a worker with a stored scene of a hundred Gaussians and a stored world."""

    def __init__(self, target: str, bare_target: str, clients: int, calls: int) -> None:
        """Stores scene and world. A round has `clients` processes for small calls, and `calls` small calls of each."""
        self._client = RawClient(target)
        self._target, self._bare_target = target, bare_target
        self._clients, self._calls = clients, calls
        self._scene = self._client.put(gaussian_cloud(_GAUSSIANS)).scene.scene_id

    def all(self) -> list[Case]:
        """Each case, small calls first."""
        small, alone = self.renders(SMALL, UINT8), 1
        one, few = max(2, self._calls // 4), max(1, self._calls // 8)
        return [
            self._case("32x24 uint8, 1 client", alone, self._calls, small, goals=_ALONE_GOALS),
            self._case(f"32x24 uint8, {self._clients} clients", self._clients, self._calls, small, goals=_SMALL_GOALS),
            self._frames("32x24 uint8, 1 stream", alone, self._calls, SMALL, {"p50_ms": 1.25}),
            self._frames(f"32x24 uint8, {self._clients} streams", self._clients, self._calls, SMALL, _STREAM_GOALS),
            self._case("640x360 uint8", alone, one, self.renders(MIDDLE, UINT8)),
            self._frames("640x360 uint8, 1 stream", alone, one, MIDDLE),
            self._case("640x360 float32", alone, one, self.renders(MIDDLE, FLOAT32)),
            self._case("1920x1080 uint8", alone, few, self.renders(FULL, UINT8)),
            self._case("1920x1080 float32", alone, few, self.renders(FULL, FLOAT32)),
            self._case("1920x1080 JPEG", alone, few, self.renders(FULL, JPEG)),
            self._case(IMAGES_BY_LANE[0], alone, few, self.renders(FULL, UINT8), lane=True),
            self._case(IMAGES_BY_LANE[1], alone, few, self.renders(FULL, FLOAT32), lane=True),
            self._frames("1920x1080 uint8, 1 stream by a lane", alone, few, FULL, {"gil_us": 3.0}, lane=True),
            self._case("32x24 uint8, spheres", alone, self._calls, self._spheres()),
            self._pair("retained Render and its Backward, two calls", small, (), {"gil_us": 4.0}),
            self._pair("the same with gradients of the camera", small, ("means", "cameras", "background")),
            self._pair("the same of spheres", small, (), requests=self._spheres()),
            self._pair("640x360 float32, retained, and its Backward, by a lane", small, (), size=MIDDLE, lane=True),
            self._case("96 distances", alone, self._calls, self._queries(), path=QUERY),
        ]

    def renders(self, size: tuple[int, int], form: int) -> list[bytes]:
        """Requests for views from several places."""
        return [self._render(size, form, view).SerializeToString() for view in range(_VIEWS)]

    def close(self) -> None:
        """Closes the channel."""
        self._client.close()

    def _render(self, size: tuple[int, int], form: int, view: int) -> render_pb2.RenderRequest:
        spec = gaussian_spec(opencv_camera(*size, x=0.02 * view), scene_id=self._scene, outputs=["color"])
        return render_pb2.RenderRequest(spec=spec, formats=[image_pb2.OutputFormat(name="color", format=form)])

    def _queries(self) -> list[bytes]:
        distances, requests = DistanceClient(self._client), list[bytes]()
        world = stored(self._client, distances)
        codec = FrameCodec(distance_pb2.QueryRequest)
        for view in range(_VIEWS):
            payload = PayloadWriter()
            spheres = ways(1, 4, 24, seed=view)
            spec = distances.spec(world, spheres, payload, outputs=["cost"], activation_distance=0.125)
            requests += map(codec.serialize, frames_of(distance_pb2.QueryRequest(spec=spec), payload))
        return requests

    def _spheres(self) -> list[bytes]:
        scene, requests = self._client.put(sphere_cloud()).scene.scene_id, list[bytes]()
        for view in range(_VIEWS):
            spec = spec_of(opencv_camera(*SMALL, x=0.02 * view), scene_id=scene, outputs=["color"])
            formats = [image_pb2.OutputFormat(name="color", format=UINT8)]
            requests.append(render_pb2.RenderRequest(spec=spec, formats=formats).SerializeToString())
        return requests

    def _pair(
        self,
        name: str,
        small: Sequence[bytes],
        wanted: Sequence[str],
        goals: Mapping[str, float] = _NO_GOALS,
        requests: Sequence[bytes] = (),
        *,
        size: tuple[int, int] = SMALL,
        lane: bool = False,
    ) -> Case:
        width, height = size
        own = [self._render(size, FLOAT32, 0).SerializeToString()] if lane else requests
        render = render_pb2.RenderRequest.FromString([*own, *small][0])
        render.retain, render.formats[0].format = True, FLOAT32  # type: ignore[assignment]
        payload = PayloadWriter()
        backward = render_pb2.BackwardRequest(spec=render_pb2.BackwardSpec(context_id="?", release=True, wanted=wanted))
        gradient = payload.add(np.ones((1, height, width, 3), np.float32))
        backward.spec.output_gradients.add(name="color", tensor=gradient)
        pair = [
            render.SerializeToString(),
            FrameCodec(render_pb2.BackwardRequest).serialize(whole_frame(backward, payload)),
        ]
        bare = self._bare("single", small, self._sizes(RENDER, small[0]))
        ours = Way("lane pair" if lane else "pair", self._target, RENDER, pair)
        return Case(name, 1, self._calls, ours, bare, goals)

    def _case(
        self,
        name: str,
        clients: int,
        calls: int,
        requests: Sequence[bytes],
        *,
        path: str = RENDER,
        lane: bool = False,
        goals: Mapping[str, float] = _NO_GOALS,
    ) -> Case:
        sizes = self._sizes(path, requests[0])
        if lane:
            sizes = [_LANE_REPLY_BYTES]
        kind = "single" if len(sizes) == 1 else "chunks"
        ours = Way("lane" if lane else kind, self._target, path, requests)
        return Case(name, clients, calls, ours, self._bare(kind, requests, sizes), goals)

    def _frames(
        self,
        name: str,
        clients: int,
        calls: int,
        size: tuple[int, int],
        goals: Mapping[str, float] = _NO_GOALS,
        *,
        lane: bool = False,
    ) -> Case:
        """A stream whose frames after the first contain only a camera."""
        renders = [self._render(size, UINT8, view) for view in range(_VIEWS)]
        frames = [render_pb2.FrameRequest(render=renders[0])]
        frames += [render_pb2.FrameRequest(cameras=render.spec.cameras) for render in renders]
        requests = [frame.SerializeToString() for frame in frames]
        sizes = [_LANE_REPLY_BYTES] if lane else self._sizes(STREAM, b"\x08\x01" + requests[0])
        ours = Way("lane frames" if lane else "frames", self._target, STREAM, requests)
        return Case(name, clients, calls, ours, self._bare("frames", requests, sizes), goals)

    def _bare(self, kind: str, requests: Sequence[bytes], sizes: Sequence[int]) -> Way:
        return Way(kind, self._bare_target, path_of(kind, sizes), requests)

    def _sizes(self, path: str, request: bytes) -> list[int]:
        """The sizes of the worker's messages for a request, which is a single message if the method can send that."""
        channel = self._client.channel
        try:
            return [len(channel.unary_unary(path)(request, metadata=SINGLE, timeout=_SECONDS))]
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                raise
        return [len(message) for message in channel.unary_stream(path)(request, metadata=MESSAGE, timeout=_SECONDS)]
