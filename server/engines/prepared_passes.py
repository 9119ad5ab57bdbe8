"""Retained Renders that differ only in poses, and their Backwards: prepared once, computed without Python."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from lumigrad.kernels import _native, gaussians
from lumigrad.kernels.gaussians.prepared_passes import Passes, images_of, state_of
from lumigrad.kernels.prepared import Place
from lumigrad.kernels.spheres import prepared as sphere_states
from lumigrad.kernels.spheres.forward import State as SphereState
from lumigrad.protos import dtypes
from lumigrad.server.core.limits import Limits
from lumigrad.server.device.jobs import Numbers
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.server.engines.gaussians import GaussianPlan
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.prepared import (
    Example,
    PreparedKinds,
    PreparedReply,
    encoding_of,
    head_of,
    is_plain,
    laid_out,
    message_bytes_of,
    native_render,
    placed,
    sphere_inputs,
)
from lumigrad.server.engines.runner import ForwardState, Task
from lumigrad.server.engines.spheres import SpherePlan
from lumigrad.v1 import render_pb2, scene_pb2, tensor_pb2

_ENCODINGS: Mapping[int, str] = {dtypes.FLOAT32: "plain", dtypes.FLOAT16: "float16", dtypes.BFLOAT16: "bfloat16"}
# Output gradients that native backward passes take, and gradients that they compute.
_INCOMING = {
    *("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth"),
    *("normals", "median_depth", "distortion", "means2d"),
}
_CAMERAS = {"camera_rotation", "camera_translation", "camera_intrinsics", "camera_pose"}
_GRADIENTS = {*gaussians.SCENE_GRADIENTS, *_CAMERAS, "background", "means2d", "means2d_abs"}
_SPHERE_INCOMING = {"color", "alpha", "depth"}
_SPHERE_GRADIENTS = {"positions", "colors", "radii", "opacities", "background"}
_PLACES = ("payload", "region")
# Placeholder for the name of a state.
_NAME = "0" * 32
_FIELD = "spec"


@dataclass(frozen=True)
class PassSource:
    """Everything that Python needs to take over states of one kind.

    Attributes:
        engine: The engine.
        tensors: The tensors of the stored scene.
        shapes: The shapes of the tensors.
        reference: The scene.
    """

    engine: RenderEngine
    tensors: Tensors
    shapes: Shapes
    reference: scene_pb2.SceneRef
    limits: Limits


@dataclass(frozen=True, kw_only=True)
class PreparedPass(PreparedReply):
    """A kind of retained Renders of one scene; their replies have a placeholder for the name of the state.

    Attributes:
        native: The native render, which holds the scene's tensors.
        passes: Computes the passes.
        source: The data that their states share.
        state_bytes: The size of a state without the kernels' part.
        backwards: The Backwards of its states.
    """

    native: _native.RetainedRender
    passes: Passes
    source: PassSource
    state_bytes: int
    backwards: PreparedKinds = field(default_factory=PreparedKinds)


class PassState:
    """A state that a prepared Render has retained, with the interface of a `ForwardState` for Python."""

    def __init__(self, kind: PreparedPass, native: _native.RetainedPass, raw: bytes) -> None:
        """Wrap a native state; `raw` is the request."""
        self.kind = kind
        self.native = native
        self.turn = threading.Lock()
        self._raw = raw

    @property
    def bytes(self) -> int:
        """The memory in use, the scene included."""
        return self.kind.state_bytes + self.native.bytes

    @cached_property
    def task(self) -> Task:
        """The checked request."""
        spec, source = render_pb2.RenderRequest.FromString(self._raw).spec, self.kind.source
        plan = source.engine.plan(spec, source.shapes, source.limits, _FIELD)
        return Task(source.engine, plan, _FIELD, source.reference)

    @cached_property
    def state(self) -> gaussians.State | SphereState:
        """The state as the kernels' functions take it."""
        plan, tensors = self.task.plan, self.kind.source.tensors
        if isinstance(plan, SpherePlan):
            images = self.kind.passes.parts(self.native)[1]
            return sphere_states.state_of(images, sphere_inputs(plan, tensors), plan.cameras, plan.settings)
        assert isinstance(plan, GaussianPlan)
        return state_of(
            self.kind.passes,
            self.native,
            gaussians.Gaussians(**tensors),
            plan.cameras,
            plan.settings,
            background=plan.background_on(tensors["means"].device),
            outputs=plan.outputs,
        )


def prepared_pass(
    forward: ForwardState,
    example: Example,
    source: PassSource,
    formats: ImageFormats,
    numbers: Numbers,
    passes: Passes,
    *,
    is_cpu: bool,
) -> PreparedPass | None:
    """Prepare retained Renders like one that has just succeeded; None if there is no fast path for its kind.

    Args:
        forward: The state of the call.
        example: The call.
        source: The data that states of its kind share.
        formats: The image formats of the call.
        numbers: The numbers of the queue.
        passes: Computes retained passes.
        is_cpu: Whether the CPU computes them.
    """
    plan, state = forward.task.plan, forward.state
    cost = example.cost
    # Only the CPU has native passes of spheres.
    if (
        not isinstance(state, gaussians.State | SphereState)
        or plan.count == 0
        or (isinstance(plan, SpherePlan) and not is_cpu)
    ):
        return None
    if not is_plain(plan, example.reply) or any(formats.are_files(name) for name in plan.outputs):
        return None
    parts = laid_out(example.reply, plan.output_shapes)
    reply, payload_bytes = placed(example.reply, parts), parts[-1].end
    reply.context_id = _NAME
    head = head_of(reply, payload_bytes)
    places = [Place(part.name, encoding_of(formats, part.name), prod(part.shape), part.offset) for part in parts]
    render = native_render(plan, source.tensors, places, payload_bytes, head, is_cpu=is_cpu, retain=True)
    if render is None:
        return None
    images = sphere_states.images_of(state) if isinstance(state, SphereState) else images_of(state)
    native = _native.RetainedRender(
        render=render,
        images=list(images.items()),
        engine=passes.engine,
        kind=numbers.of(cost.kind),
        bytes=cost.bytes,
        backward=plan.settings.native(track=True) if isinstance(plan, SpherePlan) else None,
    )
    return PreparedPass(
        native=native,
        passes=passes,
        source=source,
        cost=cost,
        payload_bytes=payload_bytes,
        message_bytes=message_bytes_of(head, payload_bytes),
        parts=parts,
        reply=reply,
        state_bytes=state.bytes - state.kept.bytes,
    )


@dataclass(frozen=True, kw_only=True)
class PreparedBackward(PreparedReply):
    """A kind of Backwards of one kind of states.

    Attributes:
        native: Computes the backward passes.
        uploads: The gradients of outputs that lie in shared memory, by their places in the request.
        releases: Whether the calls release the state.
    """

    native: _native.BackwardKind
    uploads: Sequence[int]
    releases: bool


def prepared_backward(
    example: Example, spec: render_pb2.BackwardSpec, state: PassState, numbers: Numbers
) -> PreparedBackward | None:
    """Prepare Backwards like one that has just succeeded; None if there is no fast path for its kind.

    Args:
        example: The call.
        spec: The request of the call.
        state: The state that it has differentiated.
        numbers: The numbers of the queue.
    """
    cost, entries, gradients = example.cost, spec.output_gradients, example.reply.gradients
    plan = state.task.plan
    has_spheres = isinstance(plan, SpherePlan)
    known, computed = (_SPHERE_INCOMING, _SPHERE_GRADIENTS) if has_spheres else (_INCOMING, _GRADIENTS)
    if spec.format.sparse or not _are_plain(entries, known) or not _are_plain(gradients, computed):
        return None
    # Surfels have no gradient of the intrinsics.
    if (
        isinstance(plan, GaussianPlan)
        and plan.settings.surfels
        and not _CAMERAS.isdisjoint(gradient.name for gradient in gradients)
    ):
        return None
    parts = laid_out(example.reply, {entry.name: entry.tensor.shape for entry in gradients})
    reply, payload_bytes = placed(example.reply, parts), parts[-1].end if parts else 0
    head = head_of(reply, payload_bytes)
    native = _native.BackwardKind(
        incoming=[_part(entry) for entry in entries],
        gradients=[_part(entry) for entry in reply.gradients],
        payload_bytes=payload_bytes,
        head=head,
        engine=state.kind.passes.engine,
        kind=numbers.of(cost.kind),
        views=plan.views,
        bytes=cost.bytes,
        has_spheres=has_spheres,
    )
    return PreparedBackward(
        native=native,
        cost=cost,
        payload_bytes=payload_bytes,
        message_bytes=message_bytes_of(head, payload_bytes),
        parts=parts,
        reply=reply,
        uploads=[place for place, entry in enumerate(entries) if entry.tensor.WhichOneof("location") == "region"],
        releases=spec.release,
    )


def _are_plain(entries: Sequence[tensor_pb2.NamedTensor], names: set[str]) -> bool:
    return all(
        entry.name in names and entry.tensor.dtype in _ENCODINGS and entry.tensor.WhichOneof("location") in _PLACES
        for entry in entries
    )


def _part(entry: tensor_pb2.NamedTensor) -> tuple[str, str, int, int]:
    tensor = entry.tensor
    return entry.name, _ENCODINGS[tensor.dtype], prod(tensor.shape), tensor.payload.offset
