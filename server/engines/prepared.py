"""Renders of a stored scene that differ only in the poses of their cameras: prepared once, drawn without Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians.camera_sources import OpenCVSource
from lumigrad.kernels.gaussians.prepared import prepare as prepare_gaussians
from lumigrad.kernels.per_device import launches
from lumigrad.kernels.prepared import Place
from lumigrad.kernels.spheres.camera_sources import OpenCVSource as SphereLens
from lumigrad.kernels.spheres.inputs import Inputs, check_inputs
from lumigrad.kernels.spheres.prepared import prepare as prepare_spheres
from lumigrad.protos import dtypes
from lumigrad.protos.chunks import SHORT_BYTES
from lumigrad.protos.dtypes import Array, to_numpy
from lumigrad.protos.lane_tensors import LEAST_BYTES, small_message_bytes
from lumigrad.protos.tensors import ALIGNMENT
from lumigrad.protos.wire import varint
from lumigrad.server.core.call import Call
from lumigrad.server.device.jobs import Numbers
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.content import Tensors
from lumigrad.server.engines.gaussians import GaussianPlan
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.requests import Plan
from lumigrad.server.engines.runner import Task
from lumigrad.server.engines.spheres import SpherePlan
from lumigrad.v1 import image_pb2, render_pb2, scene_pb2, tensor_pb2

_ENCODINGS: Mapping[int, str] = {
    image_pb2.IMAGE_FORMAT_UINT8: "levels",
    image_pb2.IMAGE_FORMAT_JPEG: "levels",
    image_pb2.IMAGE_FORMAT_PNG: "levels",
    image_pb2.IMAGE_FORMAT_FLOAT16: "float16",
    image_pb2.IMAGE_FORMAT_BFLOAT16: "bfloat16",
}
# Returns the tensors of the reply of a Render or Backward.
_TENSORS: Mapping[type, Callable[[Any], Sequence[tensor_pb2.NamedTensor]]] = {
    render_pb2.RenderReply: attrgetter("outputs"),
    render_pb2.BackwardReply: attrgetter("gradients"),
}
# The number of request kinds that are kept for one scene.
_MOST = 64
_MOST_TOGETHER = 16
# The number of regions whose replies are kept.
_MOST_REGIONS = 256


class Part(NamedTuple):
    """An output as a native render writes it: for images sent as files, their levels."""

    name: str
    offset: int
    shape: Sequence[int]
    dtype: np.dtype[Any]

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class PreparedReply:
    """The common part of the replies to one kind of calls.

    Attributes:
        cost: The cost of each call.
        payload_bytes: The bytes of the tensors.
        message_bytes: The payload that a caller must accept in one message to get it as one; infinite if images must
            still be encoded as files.
        parts: The tensors in the payload.
        reply: The reply without payload; tensors other than files are at the places in `parts`.
    """

    cost: Cost
    payload_bytes: int
    message_bytes: float
    parts: Sequence[Part]
    reply: Any
    # Serialised replies whose payload lies in a region of a lane, by the region's number.
    _heads: dict[int, bytes] = field(default_factory=dict)

    @property
    def lane_bytes(self) -> int:
        """The bytes of the tensors without padding between them, which separate regions would not have."""
        return sum(self._sizes)

    @cached_property
    def takes_region(self) -> bool:
        """Whether a lane, if there is one, would carry all tensors, so that they may share a region."""
        return min(self._sizes, default=0) >= LEAST_BYTES and not math.isinf(self.message_bytes)

    @cached_property
    def lane_message_bytes(self) -> float:
        """`message_bytes` for a caller with a lane, as first calls estimate it; infinite if a tensor goes by lane."""
        if max(self._sizes, default=0) >= LEAST_BYTES or math.isinf(self.message_bytes):
            return math.inf
        return small_message_bytes(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [part.end - part.offset for part in self.parts]

    def head_in(self, region: int) -> bytes:
        """Return the bytes of a reply before its timings, if its payload lies in a region of a lane."""
        head = self._heads.get(region)
        if head is None:
            reply = type(self.reply)()
            reply.CopyFrom(self.reply)
            for entry in _TENSORS[type(reply)](reply):
                place = entry.tensor.payload
                entry.tensor.region.CopyFrom(
                    tensor_pb2.RegionSpan(region=region, offset=place.offset, length=place.length)
                )
            if len(self._heads) >= _MOST_REGIONS:
                self._heads.clear()
            head = self._heads[region] = reply.SerializeToString()
        return head


@dataclass(frozen=True, kw_only=True)
class PreparedRender(PreparedReply):
    """A kind of Renders of one scene.

    Attributes:
        native: The native render, which holds the scene's tensors.
        engine: The name of the engine.
        scene: The scene, for replies.
        formats: Formats of the images.
        head_bytes: The bytes written before the payload.
    """

    native: Any
    engine: str
    scene: scene_pb2.SceneRef
    formats: ImageFormats
    head_bytes: int

    def arrays(self, drawn: bytes | Array) -> dict[str, Array]:
        """Return the outputs in the drawn bytes, by name."""
        return {
            name: np.frombuffer(drawn, dtype, prod(shape), self.head_bytes + offset).reshape(shape)
            for name, offset, shape, dtype in self.parts
        }


class PreparedKinds:
    """Prepared kinds of requests for one version of a scene, by request key. Thread-safe."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Any] = {}
        # Returns the prepared kind for a key; None if it is not prepared yet, or cannot be.
        self.find = self._by_key.get

    def add(self, key: bytes, kind: Any) -> None:
        """Keep a kind. If there are too many, the oldest is dropped, and prepared again if still in use."""
        self._by_key[key] = kind
        if len(self._by_key) > _MOST:
            self._by_key.pop(next(iter(self._by_key)), None)


@dataclass(frozen=True)
class Example:
    """A call that has just succeeded, from which its kind is prepared.

    Attributes:
        reply: The reply without payload, timings and the name of a state.
        payload_bytes: The size of its payload.
        cost: The cost of the call.
    """

    call: Call
    reply: Any
    payload_bytes: int
    cost: Cost


def prepared_render(
    example: Example, task: Task, tensors: Tensors, formats: ImageFormats, numbers: Numbers, *, is_cpu: bool
) -> PreparedRender | None:
    """Prepare renders like one that has just succeeded; None if there is no fast path for its kind.

    Args:
        example: The call.
        task: The render that was made on the general path.
        tensors: Tensors of the stored scene.
        formats: Image formats of the render.
        numbers: Numbers of the queue.
        is_cpu: Whether the CPU draws them.
    """
    plan, cost = task.plan, example.cost
    if not is_plain(plan, example.reply):
        return None
    # Files are written as levels.
    parts = laid_out(example.reply, plan.output_shapes, set(filter(formats.are_files, plan.outputs)))
    reply, payload_bytes, head, message_bytes = placed(example.reply, parts), parts[-1].end, b"", math.inf
    if not any(formats.are_files(name) for name in plan.outputs):
        head = head_of(reply, payload_bytes)
        message_bytes = message_bytes_of(head, payload_bytes)
    places = [Place(part.name, encoding_of(formats, part.name), prod(part.shape), part.offset) for part in parts]
    native = native_render(plan, tensors, places, payload_bytes, head, is_cpu=is_cpu)
    if native is None:
        return None
    # The key of a batch is the native render itself. On the CPU, a batch would only make its calls wait for each other.
    batch = 0 if is_cpu else numbers.of(native)
    fill = max(plan.fill, 1 / _most_together(plan, is_cpu=is_cpu))
    native.demand(kind=numbers.of(cost.kind), batch=batch, fill=fill, bytes=cost.bytes)
    scene = task.scene or scene_pb2.SceneRef()
    return PreparedRender(
        native=native,
        cost=cost,
        payload_bytes=payload_bytes,
        engine=task.engine.name,
        scene=scene,
        formats=formats,
        message_bytes=message_bytes,
        head_bytes=len(head),
        parts=parts,
        reply=reply,
    )


def laid_out(reply: Any, shapes: Mapping[str, Sequence[int]], levels: Collection[str] = ()) -> list[Part]:
    """Return the places of a reply's tensors in a payload, the same as `PayloadWriter`'s without files and lanes.

    Those in `levels` are written as levels.
    """
    parts: list[Part] = []
    for entry in _TENSORS[type(reply)](reply):
        dtype = to_numpy(dtypes.UINT8 if entry.name in levels else entry.tensor.dtype, entry.name)
        offset = -(-parts[-1].end // ALIGNMENT) * ALIGNMENT if parts else 0
        parts.append(Part(entry.name, offset, shapes[entry.name], dtype))
    return parts


def placed(reply: Any, parts: Sequence[Part]) -> Any:
    """Return a copy of a reply with its tensors at the places in `parts`."""
    copy = type(reply)()
    copy.CopyFrom(reply)
    for entry, part in zip(_TENSORS[type(copy)](copy), parts, strict=True):
        entry.tensor.payload.CopyFrom(tensor_pb2.Span(offset=part.offset, length=part.end - part.offset))
    return copy


def native_render(
    plan: Plan,
    tensors: Tensors,
    places: Sequence[Place],
    payload_bytes: int,
    head: bytes,
    *,
    is_cpu: bool,
    retain: bool = False,
) -> Any:
    """Prepare renders of a plain kind; None if there is no fast path. `head` precedes a reply's payload."""
    together = _most_together(plan, is_cpu=is_cpu)
    if together == 0:
        return None
    if isinstance(plan, SpherePlan):
        inputs = sphere_inputs(plan, tensors)
        return prepare_spheres(inputs, plan.cameras, plan.settings, places, payload_bytes, head, retain=retain)
    assert isinstance(plan, GaussianPlan)
    cloud = gaussians.Gaussians(**tensors)
    if cloud.scenes != 1:
        return None
    background = plan.background_on(cloud.device)
    options: dict[str, Any] = {"background": background, "most_together": together}
    return prepare_gaussians(cloud, plan.cameras, plan.settings, places, payload_bytes, head, **options)


def sphere_inputs(plan: SpherePlan, tensors: Tensors) -> Inputs:
    """Return the scene as the kernels take it."""
    given: dict[str, Any] = {"opacities": None, **tensors}
    return check_inputs(**given, background=plan.background_on(tensors["positions"].device))


def is_plain(plan: Plan, reply: render_pb2.RenderReply) -> bool:
    """Return whether a Render is of a kind that native code draws."""
    return (_are_plain_spheres(plan) or _are_plain_gaussians(plan)) and not reply.context_id


def _are_plain_spheres(plan: Plan) -> bool:
    return (
        isinstance(plan, SpherePlan)
        and plan.kind is not None
        and all(isinstance(camera.source, SphereLens) for camera in plan.cameras)
    )


def _are_plain_gaussians(plan: Plan) -> bool:
    return (
        isinstance(plan, GaussianPlan)
        and plan.kind is not None
        and not plan.transforms
        and not plan.rays
        and "surface_normals" not in plan.outputs
        and all(isinstance(camera.source, OpenCVSource) for camera in plan.cameras)
    )


def _most_together(plan: Any, *, is_cpu: bool) -> int:
    """Return how many calls' views fit into one kernel launch, after which other jobs may run; 0 if not even one's."""
    if is_cpu:
        return 0 if plan.is_long(torch.device("cpu")) else 1
    camera = plan.cameras[0]
    work = int(camera.width * camera.height + plan.count)
    first = launches(plan.views * _MOST_TOGETHER, work, is_cuda=True, is_whole=False)[0]
    return min(_MOST_TOGETHER, int(first.stop - first.start) // int(plan.views))


def head_of(reply: Any, payload_bytes: int) -> bytes:
    """Return the bytes of a reply before its payload."""
    head = type(reply)()
    head.CopyFrom(reply)
    head.payload_bytes = payload_bytes
    tag = head.DESCRIPTOR.fields_by_name["data"].number << 3 | 2
    return bytes(head.SerializeToString() + varint(tag) + varint(payload_bytes))


def message_bytes_of(head: bytes, payload_bytes: int) -> int:
    """Return the payload that a caller must accept for the reply to be one message, as `fits_message` decides."""
    return payload_bytes if payload_bytes <= SHORT_BYTES else len(head) + payload_bytes


def encoding_of(formats: ImageFormats, name: str) -> str:
    """Return how native code writes an output; files are written as levels."""
    entry = formats.by_name.get(name)
    return "plain" if entry is None else _ENCODINGS.get(entry.format, "plain")
