"""Calls to a worker with protobuf messages, so that tests of the worker do not depend on the client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from lumigrad.protos import details, dtypes
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.service import RENDER_SERVICE, SCENE_SERVICE, WORKER_SERVICE, Stub
from lumigrad.protos.streams import collect, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import camera_pb2, image_pb2, render_pb2, scene_pb2, spheres_pb2, timings_pb2

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
SECONDS = 150.0


@dataclass(frozen=True)
class Reply:
    """A streamed reply: its header, its tensors by name (floats widened), its timings, and the frames it came in."""

    header: Any
    arrays: dict[str, Array]
    timings: timings_pb2.Timings
    frames: Sequence[Frame[Any]]


@dataclass(frozen=True)
class Batch:
    """The reply of a batch: its items, their tensors by name (floats widened), and the timings of the call."""

    items: Sequence[render_pb2.RenderedItem]
    arrays: Sequence[dict[str, Array]]
    timings: timings_pb2.Timings


class RawClient:
    """The stubs of all services on one channel."""

    def __init__(
        self, target: str, options: Sequence[tuple[str, int]] = (), channel: grpc.Channel | None = None
    ) -> None:
        """Opens a channel unless one is given."""
        self.channel = channel or grpc.insecure_channel(target, options)
        self.render_stub = Stub(self.channel, RENDER_SERVICE)
        self.scene_stub = Stub(self.channel, SCENE_SERVICE)
        self.worker_stub = Stub(self.channel, WORKER_SERVICE)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, cloud: Arrays, **fields: Any) -> scene_pb2.PutReply:
        payload = PayloadWriter()
        request = scene_pb2.PutRequest(scene=scene_of(cloud, payload), **fields)
        return self.scene_stub.Put(frames_of(request, payload), timeout=SECONDS)

    def update(
        self, scene_id: str, expected_version: int, tensors: Arrays, update_id: str = ""
    ) -> scene_pb2.UpdateReply:
        payload = PayloadWriter()
        request = scene_pb2.UpdateRequest(scene_id=scene_id, expected_version=expected_version, update_id=update_id)
        for name, array in tensors.items():
            request.tensors.add(name=name, tensor=payload.add(array))
        return self.scene_stub.Update(frames_of(request, payload), timeout=SECONDS)

    def get(self, **fields: Any) -> tuple[scene_pb2.GetReply, dict[str, Array]]:
        frames = self.scene_stub.Get(scene_pb2.GetRequest(**fields), timeout=SECONDS)
        header, reader, _, _ = collected(frames)
        arrays = {}
        for _, content in header.scene.ListFields():
            arrays.update({field.name: reader.read(tensor, field.name) for field, tensor in content.ListFields()})
        return header, arrays

    def render(
        self,
        spec: render_pb2.RenderSpec,
        *,
        cloud: Arrays | None = None,
        retain: bool = False,
        formats: Sequence[image_pb2.OutputFormat] = (),
        **options: Any,
    ) -> Reply:
        """Render; with `cloud` as an inline scene."""
        payload = PayloadWriter()
        request = render_pb2.RenderRequest(spec=with_scene(spec, cloud, payload), retain=retain, formats=formats)
        frames = self.render_stub.Render(frames_of(request, payload), **{"timeout": SECONDS, **options})
        return reply_of(frames, lambda header: header.outputs)

    def render_batch(
        self, *items: render_pb2.RenderItem, payload: PayloadWriter | None = None, **options: Any
    ) -> Batch:
        """Render items; tensors of their scenes are in `payload`."""
        request = frames_of(render_pb2.RenderBatchRequest(items=items), payload or PayloadWriter())
        frames = self.render_stub.RenderBatch(request, **{"timeout": SECONDS, **options})
        header, reader, later, _ = collected(frames)
        arrays = [
            {it.name: _widened(reader.read(it.tensor, it.name), it.tensor.dtype) for it in item.outputs}
            for item in header.items
        ]
        return Batch(header.items, arrays, (later or [header])[-1].timings)

    def backward(
        self,
        gradients: Arrays,
        *,
        context_id: str = "",
        spec: render_pb2.RenderSpec | None = None,
        cloud: Arrays | None = None,
        dtype: Any = None,
        metadata: Sequence[tuple[str, str]] = (),
        **fields: Any,
    ) -> Reply:
        """Differentiate a context, or a spec that is rendered again; `dtype` is the type of uint16 arrays."""
        payload = PayloadWriter()
        request = render_pb2.BackwardSpec(**fields)
        if spec is None:
            request.context_id = context_id
        else:
            request.render.CopyFrom(with_scene(spec, cloud, payload))
        for name, array in gradients.items():
            request.output_gradients.add(name=name, tensor=payload.add(array, dtype))
        header = render_pb2.BackwardRequest(spec=request)
        frames = self.render_stub.Backward(frames_of(header, payload), timeout=SECONDS, metadata=metadata)
        return reply_of(frames, lambda header: header.gradients)

    def close(self) -> None:
        self.channel.close()


def hash_of(arrays: Arrays, order: Sequence[str]) -> str:
    """The content hash as scene.proto describes it, of tensors in the order of their fields."""
    digest = hashlib.sha256()
    for name in (name for name in order if name in arrays):
        dtype = {"float32": "DTYPE_FLOAT32", "int32": "DTYPE_INT32"}[arrays[name].dtype.name]
        digest.update(f"{name}:{dtype}:{'x'.join(map(str, arrays[name].shape))};".encode() + arrays[name].tobytes())
    return digest.hexdigest()


def scene_of(cloud: Arrays, payload: PayloadWriter) -> scene_pb2.Scene:
    """A scene of spheres, of Gaussians or a mesh, by the names of its arrays, which are appended to `payload`."""
    scene = scene_pb2.Scene()
    content = scene.gaussians if "means" in cloud else scene.mesh if "faces" in cloud else scene.spheres
    content.SetInParent()
    for name, array in cloud.items():
        getattr(content, name).CopyFrom(payload.add(array))
    return scene


def with_scene(spec: render_pb2.RenderSpec, cloud: Arrays | None, payload: PayloadWriter) -> render_pb2.RenderSpec:
    """The spec, with `cloud` in it if there is one."""
    copy = render_pb2.RenderSpec()
    copy.CopyFrom(spec)
    if cloud is not None:
        copy.scene.CopyFrom(scene_of(cloud, payload))
    return copy


def sphere_cloud(count: int = 200, channels: int = 3, seed: int = 0, radius: float = 0.2) -> dict[str, Array]:
    """Spheres in front of `opencv_camera` and `pulsar_camera`."""
    rng = np.random.default_rng(seed)
    positions = rng.uniform((-1, -1, 4), (1, 1, 8), (count, 3))
    arrays = {
        "positions": positions,
        "colors": rng.uniform(0, 1, (count, channels)),
        "radii": rng.uniform(0.5 * radius, radius, count),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def opencv_camera(width: int = 64, height: int = 48, x: float = 0.0) -> camera_pb2.Camera:
    """A camera at (x, 0, 0) that looks along z."""
    camera = camera_pb2.Camera(width=width, height=height)
    camera.opencv.fx = camera.opencv.fy = 1.5 * width
    camera.opencv.cx, camera.opencv.cy = width / 2, height / 2
    camera.opencv.rotation.extend(np.eye(3).ravel().tolist())
    camera.opencv.translation.extend([-x, 0, 0])
    return camera


def pulsar_camera(width: int = 64, height: int = 48, focal: float = 1.0, x: float = 0.0) -> camera_pb2.Camera:
    """A camera at (x, 0, 0) that looks along z."""
    camera = camera_pb2.Camera(width=width, height=height)
    camera.pulsar.parameters.extend([x, 0, 0, 0, 0, 0, focal, focal / 1.5])
    return camera


def spec_of(
    *cameras: camera_pb2.Camera, scene_id: str = "", outputs: Sequence[str] = (), **settings: Any
) -> render_pb2.RenderSpec:
    """The specification of a render, with exact semantics unless `settings` has others."""
    values = {"gamma": 0.1, "max_depth": 20.0, "min_depth": 0.5, **settings}
    return render_pb2.RenderSpec(
        scene_ref=scene_pb2.SceneRef(scene_id=scene_id) if scene_id else None,
        cameras=cameras or [opencv_camera()],
        spheres=spheres_pb2.SphereSettings(**values),
        outputs=outputs,
    )


def color_gradient(*shape: int) -> Array:
    """The gradient of some loss with respect to an output of that shape."""
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def failure(call: Callable[[], object]) -> grpc.RpcError:
    """The error that a call raises."""
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call succeeded")


def violation(error: grpc.RpcError) -> tuple[str, str]:
    """Field and description of the one field violation of an INVALID_ARGUMENT."""
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    bad_request = detail(error, details.error_details_pb2.BadRequest)
    assert len(bad_request.field_violations) == 1
    found = bad_request.field_violations[0]
    return found.field, found.description


def assert_refused(call: Callable[[], object], field: str, text: str) -> str:
    """Asserts that a call is refused for one field, whose description begins with a text; returns the description."""
    found, description = violation(failure(call))
    assert found == field
    assert description.startswith(text), description
    return description


def detail(error: grpc.RpcError, kind: type[Message]) -> Any:
    """The typed detail of an error."""
    found = details.find(error.trailing_metadata(), kind)
    assert found is not None, f"no {kind.__name__} in {error}"
    return found


def reply_of(frames: Iterator[Frame[Any]], tensors_of: Callable[[Any], Sequence[Any]]) -> Reply:
    """Read a whole streamed reply; `tensors_of` returns the tensors that its header lists."""
    header, reader, later, received = collected(frames)
    arrays = {
        entry.name: _widened(reader.read(entry.tensor, entry.name), entry.tensor.dtype) for entry in tensors_of(header)
    }
    return Reply(header, arrays, (later or [header])[-1].timings, received)


def _widened(array: Array, dtype: Any) -> Array:
    return dtypes.to_float32(array, dtype) if dtype in (dtypes.BFLOAT16, dtypes.FLOAT16) else array


def collected(frames: Iterator[Frame[Any]]) -> tuple[Any, PayloadReader, list[Any], list[Frame[Any]]]:
    """Header, payload, later messages, and all frames of a streamed reply."""
    received = list(frames)
    later: list[Any] = []
    header = received[0].message
    assembler = PayloadAssembler(header.payload_bytes, 1 << 32)
    return header, PayloadReader(collect(received[0], iter(received[1:]), assembler, later.append)), later, received
