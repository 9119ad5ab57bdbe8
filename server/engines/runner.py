"""Runs the engines' kernels for calls, on the device's thread; stops between steps once all the calls have ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from lumigrad.kernels._native import Renderer
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.gaussians.prepared_passes import Passes
from lumigrad.kernels.meshes import Queries
from lumigrad.kernels.steps import Steps
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.accounts import PayloadMemory
from lumigrad.server.core.call import Call, NoLane
from lumigrad.server.core.limits import Limits, arguments_of
from lumigrad.server.core.turns import Turns
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.gpu_jpegs import GpuJpegs
from lumigrad.server.device.jobs import BatchEntry
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.device.transfer import Delivery, Transfer
from lumigrad.server.engines.base import Engine, Forward, Sized
from lumigrad.server.engines.content import Content, Shapes, Tensors, uploader
from lumigrad.server.engines.detail import Cut
from lumigrad.server.engines.gradients import Gradients, Wanted, formatted, total_of
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.requests import Plan
from lumigrad.v1 import scene_pb2

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """The checked request of one call to an engine.

    Attributes:
        plan: The request as checked by the engine.
        field: The path of the spec in the request, for error texts.
        scene: The stored scene; None if the scene came with the request.
        cut: The part of a scene with levels that is drawn.
        more_outputs: Outputs that the worker itself uses.
    """

    engine: Engine
    plan: Plan
    field: str
    scene: scene_pb2.SceneRef | None
    cut: Cut | None = None
    more_outputs: tuple[str, ...] = ()

    def cost(self, operation: str, nbytes: int, payload_bytes: int, device: torch.device) -> Cost:
        """Return the cost of an operation.

        If the scene came with the request, its time is unknown, because it has no history. The time of long work is not
        recorded, because other jobs run between its steps.
        """
        kind = None
        if self.scene is not None and self.plan.kind is not None and not self.plan.is_long(device):
            kind = operation, self.engine.name, self.scene.scene_id, self.plan.kind
        return Cost(kind, self.plan.views, nbytes, payload_bytes, is_repeatable=True)


class Source:
    """A scene as a call draws it: stored, in the call, or the part of a scene with levels that is in view."""

    @property
    def parts(self) -> Sequence[Sized]:
        """The memory that a forward state of the scene refers to, besides the engine's own."""
        return ()

    def receive(self, reader: PayloadReader) -> None:
        """Check the scene's tensors in the payload of the call, if there are any."""

    def gather(self) -> None:
        """Wait for what is not in memory, and for room for it, which is held until `drawn`."""

    def load(self) -> Content:
        """Return the content; called on the device's thread."""
        raise NotImplementedError

    def drawn(self) -> None:
        """Release the room that `gather` has waited for; does nothing the second time."""

    def note(self, more: Mapping[str, Array]) -> None:
        """Take the outputs that the worker itself uses."""


class ForwardJob:
    """A forward pass of a call whose header was checked.

    Attributes:
        task: The task to compute.
        formats: How the outputs are encoded in the reply.
        scene: The scene; None for the stored scene of the task, which a RenderBatch looks up again before the work.
    """

    def __init__(self, task: Task, scene: Source | None, formats: ImageFormats | None = None) -> None:
        """Create the job; without `formats` the reply has raw tensors."""
        self.task = task
        self.scene = scene
        self.formats = formats or ImageFormats()
        self._upload: Callable[[], Tensors] | None = None

    def receive(self, reader: PayloadReader, transfer: Transfer, call: Call) -> None:
        """Check the tensors in the payload: those of the scene, and others that the engine takes."""
        if self.scene is not None:
            self.scene.receive(reader)
        tensors = self.task.plan.request_tensors
        if tensors:
            upload = uploader(tensors, reader, transfer, self.task.field)
            self._upload = partial(timed_upload, upload, call)

    def inputs(self) -> Any:
        """Return the engine's inputs; called on the device's thread."""
        assert self.scene is not None
        content = self.scene.load()
        return content.tensors if self._upload is None else self._joined(content, self._upload())

    def _joined(self, content: Content, tensors: Tensors) -> Any:
        return {**content.tensors, **tensors}


def timed_upload(upload: Callable[[], Tensors], call: Call) -> Tensors:
    """Upload tensors, and measure the time."""
    with call.times.stage("upload"):
        return upload()


class Retained(Protocol):
    """A forward pass that was retained for a backward pass."""

    @property
    def task(self) -> Task:
        """The task that was computed."""

    @property
    def state(self) -> Sized:
        """The state that the engine differentiates."""

    @property
    def turn(self) -> threading.Lock:
        """Held by the backward pass that uses the state, which keeps sums in it between its steps."""


@dataclass(frozen=True)
class ForwardState:
    """A forward pass that the runner has retained."""

    task: Task
    state: Sized
    turn: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class ForwardResult:
    """The outputs on the host, those that the worker itself uses, and the state if it is retained."""

    outputs: Mapping[str, Array]
    state: ForwardState | None
    more: Mapping[str, Array] = field(default_factory=dict)


class EngineRunner:
    """Runs forward and backward passes of all engines on one device."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def forward(self, request: ForwardJob, call: Call, *, retain: bool) -> Steps[Delivery[ForwardResult]]:
        """Compute the outputs of the plan, in steps."""
        task, names = request.task, request.task.plan.outputs
        inputs = request.inputs()
        lanes = request.formats.lanes(names, call)
        into = self._buffers(task.engine, task.plan, [request.formats], lanes, retain=retain)
        more = task.more_outputs
        forward = yield from self._forward(task, inputs, (*names, *more), call, retain=retain, into=into)
        with call.times.stage("download"):
            tensors = request.formats.converted({name: forward.outputs[name] for name in names})
            tensors += map(forward.outputs.__getitem__, more)
            download = self._transfer.start_download(tensors, [*lanes, *[NoLane()] * len(more)])
        state = None if forward.state is None else ForwardState(task, forward.state)
        # The first arrays are those of the reply.
        outputs = dict(zip(names, download.arrays, strict=False))
        others = dict(zip(more, download.arrays[len(names) :], strict=True))
        return Delivery(ForwardResult(outputs, state, others), download)

    def batch_entry(self, request: ForwardJob, call: Call) -> BatchEntry | None:
        """Return the batch entry of a forward pass that is not retained; None if it runs alone."""
        task = request.task
        plan, scene = task.plan, task.scene
        if scene is None or plan.kind is None or plan.is_long(self._transfer.device):
            return None
        key = task.engine.name, scene.scene_id, scene.version, plan.kind
        return BatchEntry(key, plan.fill, (request, call), self._forward_batch)

    def backward(
        self,
        retained: Retained,
        output_gradients: Tensors,
        wanted: Wanted,
        reserve_rows: Callable[[int], None],
        call: Call,
    ) -> Steps[Delivery[Gradients]]:
        """Differentiate a retained forward pass, in steps; see `formatted`."""
        task, before_view = retained.task, self._transfer.paced(call.check)
        state, options = retained.state, dict[str, Any]()
        if self._transfer.is_cpu and wanted.is_plain:
            options = _rooms(task.engine.rows(state), wanted.names, call.lane)
        elif wanted.format.sparse and task.engine.skips_untouched:
            # Gradients with other rows, such as those of colours per camera, are sent whole.
            sent_whole = {*wanted.names}.difference(task.plan.row_gradients)
            options = {"touched_only": sent_whole.isdisjoint(task.engine.rows(state))}
        with arguments_of("spec"):
            steps = task.engine.backward_steps(state, output_gradients, wanted.names, **options)
            result = yield from checked(steps, before_view)
        self._transfer.finish()
        call.times.add_kernel(result.times.milliseconds())
        with call.times.stage("download"):
            gradients = formatted(result, task.plan.row_gradients, wanted.format, reserve_rows, task.cut)
            tensors = [*gradients.values(), total_of(gradients.values())]
            download = self._transfer.start_download(tensors, [*[call.lane] * len(gradients), NoLane()])
        *arrays, total = download.arrays
        return Delivery(Gradients(dict(zip(gradients, arrays, strict=True)), total), download)

    def forward_backward(
        self,
        task: Task,
        inputs: Any,
        output_gradients: Tensors,
        wanted: Wanted,
        reserve_rows: Callable[[int], None],
        call: Call,
    ) -> Steps[Delivery[Gradients]]:
        """Recompute the outputs that have gradients, and differentiate them, in steps."""
        forward = yield from self._forward(task, inputs, tuple(output_gradients), call, retain=True)
        assert forward.state is not None
        retained = ForwardState(task, forward.state)
        return (yield from self.backward(retained, output_gradients, wanted, reserve_rows, call))

    def _forward(
        self,
        task: Task,
        inputs: Any,
        outputs: Sequence[str],
        call: Call,
        *,
        retain: bool,
        into: Tensors | None = None,
    ) -> Steps[Forward]:
        before_view, engine = self._transfer.paced(call.check), task.engine
        with arguments_of(task.field):
            steps = engine.forward_steps(task.plan, inputs, outputs, retain=retain, into=into)
            forward = yield from checked(steps, before_view)
        self._transfer.finish()
        call.times.add_kernel(forward.times.milliseconds())
        return forward

    def _forward_batch(self, items: Sequence[tuple[ForwardJob, Call]]) -> list[Delivery[ForwardResult]]:
        """Compute several calls' outputs in one forward pass; each call's timings get its share of the time."""
        requests, calls = [request for request, _ in items], [call for _, call in items]
        task = requests[0].task
        plan, inputs = task.engine.batched(
            [request.task.plan for request in requests], [request.inputs() for request in requests]
        )
        before_view = self._transfer.paced(lambda: _check_any(calls))
        into = self._buffers(
            task.engine,
            plan,
            [request.formats for request in requests],
            [NoLane()] * len(plan.outputs),
            retain=False,
        )
        with arguments_of(task.field):
            forward = task.engine.forward(plan, inputs, plan.outputs, retain=False, before_view=before_view, into=into)
        self._transfer.finish()
        ends = list(accumulate(request.task.plan.lead for request in requests))
        slices = [slice(end - request.task.plan.lead, end) for request, end in zip(requests, ends, strict=True)]
        shares = [request.task.plan.lead / ends[-1] for request in requests]
        for call, share in zip(calls, shares, strict=True):
            call.times.add_kernel({stage: ms * share for stage, ms in forward.times.milliseconds().items()})
        started = time.perf_counter()
        converted: list[torch.Tensor] = []
        lanes: list[NoLane] = []
        for request, call, part in zip(requests, calls, slices, strict=True):
            converted += request.formats.converted({name: forward.outputs[name][part] for name in plan.outputs})
            lanes += request.formats.lanes(plan.outputs, call)
        download = self._transfer.start_download(converted, lanes)
        arrays = iter(download.arrays)
        milliseconds = (time.perf_counter() - started) * 1e3
        for call, share in zip(calls, shares, strict=True):
            call.times.add("download", milliseconds * share)
        results = [ForwardResult({name: next(arrays) for name in plan.outputs}, None) for _ in requests]
        return [Delivery(result, download) for result in results]

    def _buffers(
        self, engine: Engine, plan: Plan, formats: Sequence[ImageFormats], lanes: Sequence[NoLane], *, retain: bool
    ) -> Tensors:
        """Return buffers for images that kernels can write in the form sent to all calls; on the CPU, in lanes."""
        # A retained state keeps float images, and must not refer to memory that the caller can change.
        floats = () if retain else formats[0].unchanged(plan.outputs)
        buffers: dict[str, torch.Tensor] = {}
        for name, lane in zip(plan.outputs, lanes, strict=True):
            shape, are_levels = plan.output_shapes[name], _are_levels(name, engine, formats)
            if not are_levels and name not in floats:
                continue
            dtype = np.dtype(np.uint8 if are_levels else np.float32)
            shared = lane.allocate(shape, dtype) if self._transfer.is_cpu else None
            if shared is not None:
                buffers[name] = torch.from_numpy(shared)
            elif are_levels:
                buffers[name] = empty(shape, torch.uint8, self._transfer.device)
        return buffers


def _rooms(shapes: Shapes, names: Sequence[str], lane: NoLane) -> dict[str, Tensors]:
    """Return the `into` argument of a backward pass for gradients for which a lane has room; empty without room."""
    shared = {name: lane.allocate(shapes[name], np.dtype(np.float32)) for name in names if name in shapes}
    into = {name: torch.from_numpy(array) for name, array in shared.items() if array is not None}
    return {"into": into} if into else {}


def _are_levels(name: str, engine: Engine, formats: Sequence[ImageFormats]) -> bool:
    """Return whether the kernels can write an image as levels, and all formats take levels."""
    return name in engine.levels and all(each.are_levels(name) for each in formats)


def checked(
    steps: Steps[T], check: Callable[[], object], within: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Steps[T]:
    """Run steps, each in a context of `within`, with a check between them; returns their result."""
    while True:
        with within():
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        yield
        check()


def _check_any(calls: Sequence[Call]) -> None:
    """Raise if all calls have ended; until then, the views of all are computed."""
    # `ended` also notes in each call that it was checked.
    ended = [call.ended() for call in calls]
    if None not in ended:
        raise next(filter(None, ended))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The parts of a worker that all tenants share: the device and its queue."""

    limits: Limits
    memory: DeviceMemory
    transfer: Transfer
    payload_memory: PayloadMemory
    executor: DeviceExecutor
    runner: EngineRunner
    renderer: Renderer
    queries: Queries
    passes: Passes
    # Encodes JPEG files on the device; None if the CPU does.
    jpegs: GpuJpegs | None
    # Turns of the tenants for long work outside the device's thread.
    builds: Turns = field(default_factory=Turns)
