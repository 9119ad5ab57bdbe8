"""RenderService: images, and the gradients of what made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.arrivals import uploader
from lumigrad.server.call import Call
from lumigrad.server.engines import engine_for
from lumigrad.server.gradients import gradient_bytes
from lumigrad.server.output_gradients import checked_gradients
from lumigrad.server.outputs import output_bytes
from lumigrad.server.renderer import Retained, Task
from lumigrad.server.replies import named_tensors, timed
from lumigrad.server.runtime import Runtime
from lumigrad.server.scenes import Tensors
from lumigrad.server.source import Source, source_of
from lumigrad.server.uploads import Receiver
from lumigrad.v1 import render_pb2

RenderFrames = Iterator[Frame[render_pb2.RenderRequest]]
BackwardFrames = Iterator[Frame[render_pb2.BackwardRequest]]


class RenderService:
    """The methods of `lumigrad.v1.RenderService`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def Render(self, frames: RenderFrames, call: Call) -> Iterator[Frame[render_pb2.RenderReply]]:
        """Render a scene, stored or sent along."""
        runtime = self._runtime
        call.operation = "forward"
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            request = receiver.header
            task, source = self._task(request.spec, call, "spec")
            runtime.transit.reserve(output_bytes(task.plan, runtime.limits, "spec"), call)
            load = source.receive(receiver.payload(runtime.limits.payload_bytes, runtime.transit))
        rendered = runtime.executor.run(
            lambda: runtime.renderer.render(task, load(), call, retain=request.retain), call
        )
        payload = PayloadWriter()
        reply = render_pb2.RenderReply(scene=source.reference, outputs=named_tensors(rendered.outputs, payload))
        if rendered.retained is not None:
            reply.context_id = runtime.contexts.add(rendered.retained, rendered.retained.state.bytes)
        yield from timed(reply, payload, receiver, call)

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[render_pb2.BackwardReply]]:
        """Differentiate a forward that was retained, or one that is computed again."""
        runtime = self._runtime
        call.operation = "backward"
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            spec = receiver.header.spec
            retained = None
            if spec.WhichOneof("source") == "context_id":
                retained = runtime.contexts.find(spec.context_id)
                work = self._retained(receiver, retained, call)
            else:
                work = self._recomputed(receiver, call)
        gradients = runtime.executor.run(work, call)
        if spec.release:
            runtime.contexts.release(spec.context_id)
        elif retained is not None:
            runtime.contexts.resize(spec.context_id, retained.state.bytes)
        payload = PayloadWriter()
        reply = render_pb2.BackwardReply(gradients=named_tensors(gradients, payload))
        yield from timed(reply, payload, receiver, call)

    def Release(self, request: render_pb2.ReleaseRequest, _: Call) -> render_pb2.ReleaseReply:
        """Forget a forward state; no harm if it has gone."""
        self._runtime.contexts.release(request.context_id)
        return render_pb2.ReleaseReply()

    def _task(self, spec: render_pb2.RenderSpec, call: Call, field: str) -> tuple[Task, Source]:
        """Who renders what; `field` is the path of the spec in the request."""
        source = source_of(spec, self._runtime, call, field)
        engine = engine_for(spec, source.kind, field)
        call.engine = engine.name
        return Task(engine, engine.plan(spec, source.shapes, self._runtime.limits, field), field), source

    def _retained(
        self, receiver: Receiver[render_pb2.BackwardRequest], retained: Retained, call: Call
    ) -> Callable[[], Mapping[str, Array]]:
        call.engine = retained.task.engine.name
        load = self._gradients(receiver, retained.task, call)[1]
        return lambda: self._runtime.renderer.backward(retained, load(), receiver.header.spec, call)

    def _recomputed(
        self, receiver: Receiver[render_pb2.BackwardRequest], call: Call
    ) -> Callable[[], Mapping[str, Array]]:
        runtime, spec = self._runtime, receiver.header.spec
        task, source = self._task(spec.render, call, "spec.render")
        reader, load = self._gradients(receiver, task, call)
        scene = source.receive(reader)
        return lambda: runtime.renderer.render_backward(task, scene(), load(), spec, call)

    def _gradients(
        self, receiver: Receiver[render_pb2.BackwardRequest], task: Task, call: Call
    ) -> tuple[PayloadReader, Callable[[], Tensors]]:
        """Receive the payload; returns its reader, and what uploads the output gradients."""
        runtime, spec = self._runtime, receiver.header.spec
        runtime.transit.reserve(gradient_bytes(spec, task.plan, runtime.limits), call)
        field = "spec.output_gradients"
        tensors = checked_gradients(spec.output_gradients, task.plan.upstream_shapes, field)
        reader = receiver.payload(runtime.limits.payload_bytes, runtime.transit)
        upload = uploader(tensors, reader, runtime.transfer, field)

        def load() -> Tensors:
            with call.times.stage("upload"):
                return upload()

        return reader, load
