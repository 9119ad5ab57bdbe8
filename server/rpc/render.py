"""RenderService: images and their gradients. DistanceService uses the same exchanges for its calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import require
from lumigrad.server.core.streams import Backward, Forward, Receiver, named_tensors, timed
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.queue import BatchEntry
from lumigrad.server.engines.content import Tensors, uploader
from lumigrad.server.engines.gradients import Wanted
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.requests import checked_gradients
from lumigrad.server.engines.runner import ForwardResult, ForwardState, Task
from lumigrad.server.scenes.kinds import ENGINES
from lumigrad.server.scenes.lookup import AcceptedKinds, InlineScene, find_scene
from lumigrad.server.storage.scenes import StoredScene
from lumigrad.server.storage.tenants import Runtime, Tenants
from lumigrad.v1 import image_pb2, render_pb2

RenderFrames = Iterator[Frame[render_pb2.RenderRequest]]
BackwardFrames = Iterator[Frame[render_pb2.BackwardRequest]]

_KINDS = AcceptedKinds(ENGINES, "a scene of spheres or gaussians; DistanceService answers about a mesh or a world")


class RenderService:
    """The methods of `lumigrad.v1.RenderService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def Render(self, frames: RenderFrames, call: Call) -> Iterator[Frame[render_pb2.RenderReply]]:
        """Render a scene, stored or inline."""
        receiver = Receiver(frames, call)
        exchange = ForwardExchange(receiver, self._tenants.of(call), call)
        with call.times.stage("decode"):
            exchange.receive(self._request(receiver.header.spec, call, "spec", receiver.header.formats))
        yield from exchange.reply(render_pb2.RenderReply())

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[render_pb2.BackwardReply]]:
        """Differentiate a retained forward pass, or one that is sent and computed again."""
        receiver = Receiver(frames, call)
        spec = receiver.header.spec
        exchange = BackwardExchange(receiver, self._tenants.of(call), call, spec.format)
        with call.times.stage("decode"):
            if exchange.is_of_context:
                exchange.receive_of_context(ENGINES)
            else:
                exchange.receive(self._request(spec.render, call, "spec.render"))
        yield from exchange.reply(render_pb2.BackwardReply())

    def Release(self, request: render_pb2.ReleaseRequest, call: Call) -> render_pb2.ReleaseReply:
        """Drop a forward state; no error if there is none."""
        self._tenants.of(call).contexts.release(request.context_id)
        return render_pb2.ReleaseReply()

    def _request(
        self, spec: render_pb2.RenderSpec, call: Call, field: str, formats: Sequence[image_pb2.OutputFormat] = ()
    ) -> ForwardRequest:
        """Check a header; `field` is the path of the spec in the request."""
        runtime, settings = self._tenants.of(call), spec.WhichOneof("settings")
        scene = find_scene(spec, _KINDS, runtime, call, field, settings)
        kind = scene.kind
        require(settings == kind, f"{field}.{kind}", f"settings of the {kind}", settings or "none")
        engine = ENGINES[kind]
        call.engine = engine.name
        task = Task(engine, engine.plan(spec, scene.outline.shapes, runtime.limits, field), field, scene.reference)
        call.facts["cameras"] = len(spec.cameras)
        call.facts["pixels"] = sum(camera.width * camera.height for camera in spec.cameras)
        return ForwardRequest(task, scene, ImageFormats.of(formats, task.plan, "formats"))


class ForwardRequest:
    """A forward pass of a scene, whose header was checked. Its engine takes the scene's tensors as inputs."""

    def __init__(self, task: Task, scene: InlineScene | StoredScene, formats: ImageFormats | None = None) -> None:
        """`formats` are the encodings of the outputs in the reply; None: raw tensors."""
        self.task = task
        self.scene = scene
        self.formats = formats or ImageFormats()

    def receive(self, reader: PayloadReader) -> None:
        """Check the tensors in the payload."""
        self.scene.receive(reader)

    def inputs(self) -> Any:
        """The engine's inputs; called on the device's thread."""
        return self.scene.load().tensors


class ForwardExchange:
    """One Render or Query."""

    def __init__(self, receiver: Receiver[Any], runtime: Runtime, call: Call) -> None:
        call.operation = "forward"
        self._receiver = receiver
        self._runtime = runtime
        self._call = call

    def receive(self, request: ForwardRequest) -> None:
        """Reserve memory for the request, and receive its payload."""
        runtime, receiver, task = self._runtime, self._receiver, request.task
        self._request, self._retain = request, receiver.header.retain
        received = receiver.length(runtime.limits.payload_bytes)
        self._reserved = request.formats.reply_bytes(task.plan, runtime.limits, task.field)
        memory = task.plan.forward_bytes(task.plan.outputs, retain=self._retain, device=runtime.transfer.device)
        operation = "retain" if self._retain else "forward"
        self._cost = task.cost(operation, memory + received, self._reserved + received)
        runtime.memory.check(self._cost)
        runtime.payload_memory.reserve(self._reserved, self._call)
        request.receive(receiver.payload(runtime.limits.payload_bytes, runtime.payload_memory))

    def reply(self, reply: Forward) -> Iterator[Frame[Forward]]:
        """Compute the outputs, and send them."""
        runtime, call, request, retain = self._runtime, self._call, self._request, self._retain
        runner = runtime.runner
        entry: BatchEntry[ForwardResult] | None = None if retain else runner.batch_entry(request, call)
        result = runtime.executor.run(lambda: runner.forward(request, call, retain=retain), call, self._cost, entry)
        payload = call.lane.writer()
        if request.task.scene is not None:
            reply.scene.CopyFrom(request.task.scene)
        reply.outputs.extend(request.formats.named(result.outputs, payload, call))
        # Encoded images may be larger than their pixels.
        runtime.payload_memory.reserve(max(0, payload.length - self._reserved), call)
        if result.state is not None:
            state = result.state.state
            reply.context_id = runtime.contexts.add(result.state, state.bytes, request.task.engine.shared(state))
        try:
            yield from timed(reply, payload, self._receiver.expect_end, call)
        except BaseException:
            # A caller that does not read the whole reply will not use the state.
            runtime.contexts.release(reply.context_id)
            raise


class BackwardExchange:
    """One Backward, of a retained forward pass or of one that is computed again."""

    def __init__(self, receiver: Receiver[Any], runtime: Runtime, call: Call, gradient_format: Any = None) -> None:
        """`gradient_format` is the request's, if its service has one."""
        call.operation = "backward"
        self._receiver = receiver
        self._spec = receiver.header.spec
        self._runtime = runtime
        self._call = call
        self._format = gradient_format or render_pb2.GradientFormat()
        self._retained: ForwardState | None = None

    @property
    def is_of_context(self) -> bool:
        """Whether the request names a retained forward pass."""
        return bool(self._spec.WhichOneof("source") == "context_id")

    def receive_of_context(self, engines: Collection[str]) -> None:
        """Find the forward state, of one of the service's engines, and receive the payload."""
        contexts, context_id, call, runner = (
            self._runtime.contexts,
            self._spec.context_id,
            self._call,
            self._runtime.runner,
        )
        # No reference to the state while the payload arrives: evicting it for other calls must free its memory.
        task = contexts.peek(context_id).task
        engine = task.engine.name
        require(engine in engines, "spec.context_id", f"a forward state of {' or '.join(engines)}", f"one of {engine}")
        call.engine = engine
        wanted = self._admit(task, "backward", 0)
        _, upload = self._receive_gradients(task)
        retained = self._retained = contexts.find(context_id)
        # The function must not refer to this object, which refers to it: the cycle would keep tensors alive.
        self._work = lambda: runner.backward(retained, upload(), wanted, call)

    def receive(self, request: ForwardRequest) -> None:
        """Reserve memory for the request, and receive its payload; the forward pass will be computed again."""
        task = request.task
        names = [entry.name for entry in self._spec.output_gradients if entry.name in task.plan.output_shapes]
        forward = task.plan.forward_bytes(names, retain=True, device=self._runtime.transfer.device)
        wanted = self._admit(task, "forward and backward", forward)
        reader, upload = self._receive_gradients(task)
        request.receive(reader)
        call, runner = self._call, self._runtime.runner
        self._work = lambda: runner.forward_backward(task, request.inputs(), upload(), wanted, call)

    def reply(self, reply: Backward) -> Iterator[Frame[Backward]]:
        """Compute the gradients, and send them."""
        runtime, call, spec = self._runtime, self._call, self._spec
        gradients: Mapping[str, Array] = runtime.executor.run(self._work, call, self._cost)
        if spec.release:
            runtime.contexts.release(spec.context_id)
        elif self._retained is not None:
            runtime.contexts.resize(spec.context_id, self._retained.state.bytes)
        payload = call.lane.writer()
        reply.gradients.extend(named_tensors(gradients, payload))
        yield from timed(reply, payload, self._receiver.expect_end, call)

    def _admit(self, task: Task, operation: str, forward_bytes: int) -> Wanted:
        """Check the wanted gradients, and reserve memory for them in addition to `forward_bytes`."""
        runtime, receiver = self._runtime, self._receiver
        wanted = Wanted.of(self._spec.wanted, self._format, task.plan)
        reserved, received = wanted.bytes(task.plan, runtime.limits), receiver.length(runtime.limits.payload_bytes)
        memory = forward_bytes + task.plan.backward_bytes(wanted.names, runtime.transfer.device)
        self._cost: Cost = task.cost(operation, memory + received, reserved + received)
        runtime.memory.check(self._cost)
        runtime.payload_memory.reserve(reserved, self._call)
        return wanted

    def _receive_gradients(self, task: Task) -> tuple[PayloadReader, Callable[[], Tensors]]:
        """Receive the payload; returns it and a function that uploads the output gradients on the device's thread."""
        runtime, times, field = self._runtime, self._call.times, "spec.output_gradients"
        tensors = checked_gradients(self._spec.output_gradients, task.plan.upstream_shapes, field)
        reader = self._receiver.payload(runtime.limits.payload_bytes, runtime.payload_memory)
        # In a lane the caller may change them while kernels read them. Kernels only multiply and add these values; they
        # are no indices and decide no branches, so only the caller's own gradients would be wrong.
        upload = uploader(tensors, reader, runtime.transfer, field, in_place=True)

        def timed_upload() -> Tensors:
            with times.stage("upload"):
                return upload()

        return reader, timed_upload
