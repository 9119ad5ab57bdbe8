"""RenderService: images and their gradients. DistanceService shares the base class of its methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from lumigrad.protos.frame_stream import FRAME_BYTES, Pieces, render_replies
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame, FrameCodec
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import require
from lumigrad.server.core.streams import Backward, Forward, Receiver, check_room, named_tensors, timed
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.content import Tensors, uploader
from lumigrad.server.engines.gaussians import GAUSSIANS, GaussianPlan
from lumigrad.server.engines.gradients import Wanted
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.levels import KIND as LEVELS
from lumigrad.server.engines.prepared import Example
from lumigrad.server.engines.requests import checked_gradients
from lumigrad.server.engines.runner import ForwardJob, ForwardState, Retained, Source, Task, timed_upload
from lumigrad.server.rpc.prepared_calls import Drawn, PreparedCalls
from lumigrad.server.rpc.prepared_passes import PreparedPasses
from lumigrad.server.rpc.render_batch import render_batch
from lumigrad.server.scenes.level_view import LevelView, of_pixels, plain
from lumigrad.server.scenes.lookup import CLOUDS, ENGINES, AcceptedKinds, InlineScene, find_scene
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime, Tenants
from lumigrad.v1 import image_pb2, render_pb2

RenderFrames = Iterator[Frame[render_pb2.RenderRequest]]
BatchFrames = Iterator[Frame[render_pb2.RenderBatchRequest]]
BackwardFrames = Iterator[Frame[render_pb2.BackwardRequest]]

# The interval at which a call that waits for its turn at a state checks whether it has ended.
_TURN_SECONDS = 0.05
_REQUESTS = FrameCodec(render_pb2.RenderRequest)
_KINDS = AcceptedKinds(
    (*ENGINES, LEVELS), "a scene of spheres or gaussians; DistanceService answers about a mesh or a world"
)


class EngineService(ABC):
    """Base of the services of all engines: forward and backward passes, and the release of forward states."""

    def __init__(self, tenants: Tenants, source: str, engines: Collection[str]) -> None:
        """`source` is the field of a Backward's spec that holds a forward spec; forward states belong to `engines`."""
        self._tenants = tenants
        self._source = source
        self._engines = engines

    def Release(self, request: render_pb2.ReleaseRequest, call: Call) -> render_pb2.ReleaseReply:
        """Drop a forward state; does nothing if it does not exist."""
        self._tenants.of(call).contexts.release(request.context_id)
        return render_pb2.ReleaseReply()

    @abstractmethod
    def _drew(self, example: Example, request: ForwardJob, state: ForwardState | None) -> None:
        """Note a successful forward pass; `state` is the state that it has retained."""

    def _differentiated(self, example: Example, state: Any, spec: Any) -> None:
        """Note a successful backward pass of a retained state."""
        del example, state, spec

    def _draw(self, call: Call) -> Drawn | None:
        """Let native code draw a call like one drawn before; None if it cannot."""
        del call
        return None

    @abstractmethod
    def _request(
        self,
        spec: Any,
        call: Call,
        field: str,
        formats: Sequence[image_pb2.OutputFormat] = (),
        *,
        is_differentiated: bool = False,
    ) -> ForwardJob:
        """Check a header; `field` is the path of the spec in the request."""

    def _forward(self, frames: Iterator[Frame[Any]], call: Call, reply: Forward) -> Iterator[Frame[Forward]]:
        """Compute outputs, and send them."""
        receiver = Receiver(frames, call)
        payload = self._outputs(receiver, call, reply)
        try:
            if reply.context_id:
                call.check()
            yield from timed(reply, payload, receiver.expect_end, call)
        except BaseException:
            # A caller that has gone, or does not read the whole reply, will not use the state.
            self._tenants.of(call).contexts.release(reply.context_id)
            raise

    def _outputs(self, receiver: Receiver[Any], call: Call, reply: Forward) -> PayloadWriter:
        """Compute outputs and describe them in the header of a reply; returns the payload."""
        call.record.operation = "forward"
        runtime = self._tenants.of(call)
        drawn = self._draw(call)
        if drawn is not None:
            prepared, payload = drawn.prepared, call.lane.writer(call.most_payload_bytes)
            reply.scene.CopyFrom(prepared.scene)
            reply.outputs.extend(prepared.formats.named(drawn.outputs, payload, call, runtime.jpegs))
            runtime.payload_memory.reserve(max(0, payload.length - prepared.payload_bytes), call)
            return payload
        header, limits, runner = receiver.header, runtime.limits, runtime.runner
        retain = header.retain
        with call.times.stage("decode"):
            formats = getattr(header, "formats", ())
            request = self._request(header.spec, call, "spec", formats, is_differentiated=retain)
            task, plan = request.task, request.task.plan
            scene = request.scene
            assert scene is not None
            reserved = request.formats.reply_bytes(plan, limits, task.field)
            memory = plan.forward_bytes(plan.outputs + task.more_outputs, retain=retain, device=runtime.transfer.device)
            check_room(call, reserved)
            cost = _admit(receiver, runtime, call, task, "retain" if retain else "forward", memory, reserved)
            request.receive(receiver.payload(limits.payload_bytes, runtime.payload_memory), runtime.transfer, call)
            scene.gather()
        entry = None if retain else runner.batch_entry(request, call)
        begin = partial(runner.forward, request, call, retain=retain)
        try:
            result = runtime.executor.deliver_steps(begin, call, cost, entry)
        finally:
            # Released now rather than once the reply is sent: frames of a stream are sent in order, and an earlier
            # frame may wait for this room.
            scene.drawn()
        if result.more:
            scene.note(result.more)
        payload = call.lane.writer(call.most_payload_bytes)
        if task.scene is not None:
            reply.scene.CopyFrom(task.scene)
        if task.cut is not None and isinstance(reply, render_pb2.RenderReply):
            reply.levels.CopyFrom(task.cut.report)
        reply.outputs.extend(request.formats.named(result.outputs, payload, call, runtime.jpegs))
        self._drew(Example(call, reply, payload.length, cost), request, result.state)
        # Image files may be larger than the pixels that they encode.
        runtime.payload_memory.reserve(max(0, payload.length - reserved), call)
        if result.state is not None:
            state = result.state.state
            parts = list(task.engine.shared(state)) + list(scene.parts)
            reply.context_id = runtime.contexts.add(result.state, state.bytes, parts)
        return payload

    def _backward(self, frames: Iterator[Frame[Any]], call: Call, reply: Backward) -> Iterator[Frame[Backward]]:
        """Differentiate a retained forward pass, or one that is recomputed, and send the gradients."""
        call.record.operation = "backward"
        receiver, runtime = Receiver(frames, call), self._tenants.of(call)
        spec, contexts, runner = receiver.header.spec, runtime.contexts, runtime.runner
        retained: Retained | None = None
        scene: Source | None = None
        with call.times.stage("decode"):
            if spec.WhichOneof("source") == "context_id":
                # Do not hold the state itself while the payload arrives: dropping it for other calls must free its
                # memory.
                task = contexts.peek(spec.context_id).task
                call.record.engine = name = task.engine.name
                limit = f"a forward state of {' or '.join(self._engines)}"
                require(name in self._engines, "spec.context_id", limit, f"one of {name}")
                wanted, reserve_rows, cost = _admit_backward(receiver, runtime, call, task, "backward", 0)
                _, upload = _receive_gradients(receiver, runtime, call, task)
                found = retained = contexts.find(spec.context_id)
                work = lambda: runner.backward(found, upload(), wanted, reserve_rows, call)  # noqa: E731
            else:
                forward_spec, where = getattr(spec, self._source), f"spec.{self._source}"
                request = self._request(forward_spec, call, where, is_differentiated=True)
                task = request.task
                names = [entry.name for entry in spec.output_gradients if entry.name in task.plan.output_shapes]
                forward = task.plan.forward_bytes(names, retain=True, device=runtime.transfer.device)
                operation = "forward and backward"
                wanted, reserve_rows, cost = _admit_backward(receiver, runtime, call, task, operation, forward)
                reader, upload = _receive_gradients(receiver, runtime, call, task)
                request.receive(reader, runtime.transfer, call)
                scene = request.scene
                assert scene is not None
                scene.gather()
                work = lambda: runner.forward_backward(  # noqa: E731
                    task, request.inputs(), upload(), wanted, reserve_rows, call
                )
        try:
            with nullcontext() if retained is None else _turn(retained, call):
                gradients = runtime.executor.deliver_steps(work, call, cost)
        finally:
            if scene is not None:
                scene.drawn()
        call.record.nonfinite = gradients.nonfinite()
        if spec.release:
            contexts.release(spec.context_id)
        elif retained is not None:
            contexts.resize(spec.context_id, retained.state.bytes)
        payload = call.lane.writer(call.most_payload_bytes)
        reply.gradients.extend(named_tensors(gradients.arrays, payload))
        if retained is not None:
            self._differentiated(Example(call, reply, payload.length, cost), retained, spec)
        yield from timed(reply, payload, receiver.expect_end, call)


def _admit(
    receiver: Receiver[Any], runtime: Runtime, call: Call, task: Task, operation: str, memory: int, reserved: int
) -> Cost:
    """Check what an operation takes besides its payload, and reserve the bytes of its reply."""
    received = receiver.length(runtime.limits.payload_bytes)
    cost = task.cost(operation, memory + received, reserved + received, runtime.transfer.device)
    runtime.memory.check(cost)
    runtime.payload_memory.announce(reserved, call)
    return cost


def _admit_backward(
    receiver: Receiver[Any], runtime: Runtime, call: Call, task: Task, operation: str, forward_bytes: int
) -> tuple[Wanted, Callable[[int], None], Cost]:
    """Check the wanted gradients, and reserve what they take besides `forward_bytes` of a forward pass.

    The second result is a function that reserves the rows of a sparse reply once their number is known; it may raise
    InvalidArgumentError or BusyError. Repeated work reserves nothing twice.
    """
    spec = receiver.header.spec
    form = getattr(spec, "format", render_pb2.GradientFormat())
    wanted = Wanted.of(spec.wanted, form, task.plan, is_sparse=task.cut is not None)
    memory = forward_bytes + task.plan.backward_bytes(wanted.names, runtime.transfer.device)
    reserved = wanted.bytes(task.plan, runtime.limits)
    if not wanted.format.sparse:
        check_room(call, reserved)

    def reserve_rows(rows: int) -> None:
        nonlocal reserved
        size = wanted.bytes(task.plan, runtime.limits, rows)
        runtime.payload_memory.reserve(max(0, size - reserved), call)
        reserved = max(size, reserved)

    return wanted, reserve_rows, _admit(receiver, runtime, call, task, operation, memory, reserved)


@contextmanager
def _turn(retained: Retained, call: Call) -> Iterator[None]:
    """Hold a state for one backward pass; waits for earlier passes."""
    while not retained.turn.acquire(timeout=_TURN_SECONDS):
        call.check()
    try:
        yield
    finally:
        retained.turn.release()


def _receive_gradients(
    receiver: Receiver[Any], runtime: Runtime, call: Call, task: Task
) -> tuple[PayloadReader, Callable[[], Tensors]]:
    """Receive the payload; returns its reader, and a function for the device's thread that uploads the gradients."""
    entries, field = receiver.header.spec.output_gradients, "spec.output_gradients"
    tensors = checked_gradients(entries, task.plan.upstream_shapes, field)
    reader = receiver.payload(runtime.limits.payload_bytes, runtime.payload_memory)
    # The caller may change gradients in shared memory while kernels read them. Kernels only multiply and add these
    # numbers: none is an index or decides a branch, so only the caller's own gradients would be wrong.
    upload = uploader(tensors, reader, runtime.transfer, field, in_place=True)
    return reader, partial(timed_upload, upload, call)


class RenderService(EngineService):
    """The methods of `lumigrad.v1.RenderService`."""

    def __init__(self, tenants: Tenants, lanes: Lanes) -> None:
        super().__init__(tenants, "render", ENGINES)
        self._passes = PreparedPasses(tenants, lanes)
        self._renders = PreparedCalls(tenants, lanes, self._passes)
        self.shortcuts = {"Render": self._renders, "Backward": self._passes}
        self.look_up = self._renders.look_up

    def _drew(self, example: Example, request: ForwardJob, state: ForwardState | None) -> None:
        if state is None:
            self._renders.prepare(example, request)
        else:
            self._passes.prepare_render(example, request, state)

    def _differentiated(self, example: Example, state: Any, spec: Any) -> None:
        self._passes.prepare_backward(example, state, spec)

    def _draw(self, call: Call) -> Drawn | None:
        return self._renders.draw(call)

    def Render(self, frames: RenderFrames, call: Call) -> Iterator[Frame[render_pb2.RenderReply]]:
        """Render a scene, stored or inline."""
        yield from self._forward(frames, call, render_pb2.RenderReply())

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[render_pb2.BackwardReply]]:
        """Differentiate a retained forward pass, or one that is sent again and recomputed."""
        yield from self._backward(frames, call, render_pb2.BackwardReply())

    def RenderBatch(self, frames: BatchFrames, call: Call) -> Iterator[Frame[render_pb2.RenderBatchReply]]:
        """Render many items, each with a status of its own."""
        yield from render_batch(frames, self._tenants.of(call), call, self._request)

    def frame(self, raw: bytes, call: Call) -> Iterator[Pieces]:
        """Render one RenderRequest; request and reply are bytes."""
        whole = self._renders(raw, call, FRAME_BYTES)
        if whole is not None:
            yield (whole,)
            return
        frame = _REQUESTS.deserialize(raw)
        call.record.bytes_received += frame.data.nbytes
        reply = render_pb2.RenderReply()
        payload = self._outputs(Receiver(iter((frame,)), call), call, reply)
        reply.timings.CopyFrom(call.times.message())
        call.record.bytes_sent += payload.length
        try:
            yield from render_replies(reply, payload)
        except BaseException:
            self._tenants.of(call).contexts.release(reply.context_id)
            raise

    def _request(
        self,
        spec: render_pb2.RenderSpec,
        call: Call,
        field: str,
        formats: Sequence[image_pb2.OutputFormat] = (),
        *,
        is_differentiated: bool = False,
    ) -> ForwardJob:
        """Check a header; `field` is the path of the spec in the request."""
        runtime, settings = self._tenants.of(call), spec.WhichOneof("settings")
        scene: InlineScene | StoredScene | LevelView = find_scene(spec, _KINDS, runtime, call, field, settings)
        kind, cut = scene.kind, None
        if kind == LEVELS:
            require(isinstance(scene, StoredScene), f"{field}.scene.levels", "none: put levels first", "some")
            assert isinstance(scene, StoredScene)
            is_fit = settings in (GAUSSIANS.name, None)
            require(is_fit, f"{field}.gaussians", "settings of the gaussians", settings)
            scene = LevelView(scene, spec, runtime, call, field, is_differentiated=is_differentiated)
            kind, spec = scene.kind, plain(spec)
        if spec.tensors:
            where = f"{field}.tensors"
            if not isinstance(scene, StoredScene):
                raise InvalidArgumentError(where, "none without scene_ref", len(spec.tensors))
            scene = InlineScene(kind, CLOUDS[kind].replacement(scene, spec.tensors, runtime, where), call)
        require(settings in (kind, None), f"{field}.{kind}", f"settings of the {kind}", settings)
        engine = ENGINES[kind]
        call.record.engine = engine.name
        plan = engine.plan(spec, scene.outline.shapes, runtime.limits, field)
        if isinstance(scene, LevelView):
            assert isinstance(plan, GaussianPlan)
            cut = scene.choose(spec, plan)
            plan = engine.plan(spec, scene.outline.shapes, runtime.limits, field)
        if cut is None:
            task = Task(engine, plan, field, scene.reference)
        else:
            task = Task(engine, of_pixels(plan), field, scene.reference, cut, cut.more_outputs)
        call.record.facts["cameras"] = len(spec.cameras)
        call.record.facts["pixels"] = sum(camera.width * camera.height for camera in spec.cameras)
        images = ImageFormats.of(formats, task.plan, f"{field.removesuffix('spec')}formats")
        return ForwardJob(task, scene, images)
