"""Renders of a stored scene that differ in the poses of their cameras only: prepared once, and drawn without Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians.camera_sources import OpenCVSource
from lumigrad.kernels.gaussians.prepared import prepare as prepare_gaussians
from lumigrad.kernels.per_device import launches
from lumigrad.kernels.prepared import Place
from lumigrad.kernels.spheres.camera_sources import OpenCVSource as SphereLens
from lumigrad.kernels.spheres.inputs import check_inputs
from lumigrad.kernels.spheres.prepared import prepare as prepare_spheres
from lumigrad.protos.wire import varint
from lumigrad.server.device.jobs import Numbers
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.content import Tensors
from lumigrad.server.engines.gaussians import GaussianPlan
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.requests import Plan
from lumigrad.server.engines.runner import Task
from lumigrad.server.engines.spheres import SpherePlan
from lumigrad.v1 import image_pb2, render_pb2, tensor_pb2

_ENCODINGS: Mapping[int, str] = {
    image_pb2.IMAGE_FORMAT_UINT8: "levels",
    image_pb2.IMAGE_FORMAT_FLOAT16: "float16",
    image_pb2.IMAGE_FORMAT_BFLOAT16: "bfloat16",
}
# Kinds of requests for one scene that are kept.
_MOST = 64
_MOST_TOGETHER = 16


@dataclass(frozen=True)
class PreparedRender:
    """A kind of Renders of one scene.

    Attributes:
        native: Draws them; it holds the scene's tensors.
        cost: The cost of each.
        payload_bytes: Of a reply.
        engine: The name of the engine.
    """

    native: Any
    cost: Cost
    payload_bytes: int
    engine: str


class PreparedKinds:
    """What was prepared for one version of a scene, by the keys of requests. Thread-safe."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Any] = {}
        # What answers requests of a key; None: it has yet to be prepared, if it can be.
        self.find = self._by_key.get

    def add(self, key: bytes, kind: Any) -> None:
        """Keep a kind; of too many the oldest goes, and is prepared again if it is still in use."""
        self._by_key[key] = kind
        if len(self._by_key) > _MOST:
            self._by_key.pop(next(iter(self._by_key)), None)


def prepared_render(
    task: Task,
    tensors: Tensors,
    formats: ImageFormats,
    reply: render_pb2.RenderReply,
    payload_bytes: int,
    cost: Cost,
    numbers: Numbers,
) -> PreparedRender | None:
    """Prepare renders like one that has just succeeded; None: there is no faster way for its kind.

    Args:
        task: What it was.
        tensors: Those of the stored scene.
        formats: Its image formats.
        reply: Its reply, without payload and timings.
        payload_bytes: The size of its payload.
        cost: Its cost.
        numbers: Of the queue.
    """
    plan = task.plan
    made = native_render(plan, tensors, formats, reply, payload_bytes, head_of(reply, payload_bytes))
    if made is None:
        return None
    native, together = made.native, made.most_together
    # The key of a batch is the render itself. On the CPU a batch would only make its calls wait for each other.
    batch = 0 if next(iter(tensors.values())).device.type == "cpu" else numbers.of(native)
    fill = max(plan.fill, 1 / together)
    native.demand(kind=numbers.of(cost.kind), batch=batch, fill=fill, bytes=cost.bytes)
    return PreparedRender(native, cost, payload_bytes, task.engine.name)


@dataclass(frozen=True)
class NativeRender:
    """A native render, and how many of it run together at most."""

    native: Any
    most_together: int


def native_render(
    plan: Plan,
    tensors: Tensors,
    formats: ImageFormats,
    reply: render_pb2.RenderReply,
    payload_bytes: int,
    head: bytes,
) -> NativeRender | None:
    """What draws renders of a kind; None: there is no faster way for it. `head` comes before a reply's payload."""
    if not _is_plain(plan, formats, reply):
        return None
    together = _most_together(plan)
    if together == 0:
        return None
    places = [_place(plan, formats, output) for output in reply.outputs]
    if isinstance(plan, SpherePlan):
        inputs = check_inputs(
            **{"opacities": None, **tensors}, background=plan.background_on(tensors["positions"].device)
        )
        native = prepare_spheres(inputs, plan.cameras, plan.settings, places, payload_bytes, head)
    else:
        assert isinstance(plan, GaussianPlan)
        cloud = gaussians.Gaussians(**tensors)
        if cloud.scenes != 1:
            return None
        background = plan.background_on(cloud.device)
        options: dict[str, Any] = {"background": background, "most_together": together}
        native = prepare_gaussians(cloud, plan.cameras, plan.settings, places, payload_bytes, head, **options)
    return NativeRender(native, together)


def _is_plain(plan: Plan, formats: ImageFormats, reply: render_pb2.RenderReply) -> bool:
    return (
        (_are_plain_spheres(plan) or _are_plain_gaussians(plan))
        and not any(formats.are_files(name) for name in plan.outputs)
        and not reply.context_id
        and all(output.tensor.WhichOneof("location") == "payload" for output in reply.outputs)
    )


def _are_plain_spheres(plan: Plan) -> bool:
    return isinstance(plan, SpherePlan) and all(isinstance(camera.source, SphereLens) for camera in plan.cameras)


def _are_plain_gaussians(plan: Plan) -> bool:
    return (
        isinstance(plan, GaussianPlan)
        and plan.kind is not None
        and not plan.transforms
        and not plan.rays
        and "surface_normals" not in plan.outputs
        and all(isinstance(camera.source, OpenCVSource) for camera in plan.cameras)
    )


def _most_together(plan: Any) -> int:
    """The number of calls whose views fit into one launch of kernels, after which a call can be stopped; 0: not one."""
    camera = plan.cameras[0]
    work = int(camera.width * camera.height + plan.count)
    first = launches(plan.views * _MOST_TOGETHER, work, is_whole=False)[0]
    return min(_MOST_TOGETHER, int(first.stop - first.start) // plan.views)


def head_of(reply: Any, payload_bytes: int) -> bytes:
    """The bytes of a reply before its payload."""
    head = type(reply)()
    head.CopyFrom(reply)
    head.payload_bytes = payload_bytes
    tag = head.DESCRIPTOR.fields_by_name["data"].number << 3 | 2
    return bytes(head.SerializeToString() + varint(tag) + varint(payload_bytes))


def _place(plan: Plan, formats: ImageFormats, output: tensor_pb2.NamedTensor) -> Place:
    entry = formats.by_name.get(output.name)
    encoding = "plain" if entry is None else _ENCODINGS.get(entry.format, "plain")
    return Place(output.name, encoding, prod(plan.output_shapes[output.name]), output.tensor.payload.offset)
