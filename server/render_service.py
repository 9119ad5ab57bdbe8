"""RenderService: images, and the gradients of what made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.gradients import check_format, gradient_bytes
from lumigrad.server.limits import require
from lumigrad.server.output_gradients import checked_gradients
from lumigrad.server.replies import named_tensors, timed
from lumigrad.server.runtime import Runtime
from lumigrad.server.scenes import Tensors
from lumigrad.server.sphere_cloud import PER_SPHERE, uploader
from lumigrad.server.sphere_engine import SphereState
from lumigrad.server.sphere_plan import SpherePlan
from lumigrad.server.sphere_source import source_of
from lumigrad.server.uploads import Receiver
from lumigrad.v1 import render_pb2

_ENGINE = "spheres"
_WANTED = (*PER_SPHERE, "cameras", "background", "gamma")

RenderFrames = Iterator[Frame[render_pb2.RenderRequest]]
BackwardFrames = Iterator[Frame[render_pb2.BackwardRequest]]


class RenderService:
    """The methods of `lumigrad.v1.RenderService`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def Render(self, frames: RenderFrames, call: Call) -> Iterator[Frame[render_pb2.RenderReply]]:
        """Render a scene, stored or sent along."""
        runtime = self._runtime
        call.engine, call.operation = _ENGINE, "forward"
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            request = receiver.header
            plan = SpherePlan.of(request.spec, runtime.limits, "spec")
            source = source_of(request.spec, runtime, call, "spec")
            reply_bytes = plan.check_scene(source.channels, runtime.limits, "spec")
            runtime.transit.reserve(reply_bytes, call)
            load = source.receive(receiver.payload(runtime.limits.payload_bytes, runtime.transit))
        rendered = runtime.executor.run(lambda: runtime.spheres.render(plan, load(), call, retain=request.retain), call)
        payload = PayloadWriter()
        reply = render_pb2.RenderReply(scene=source.reference, outputs=named_tensors(rendered.outputs, payload))
        if rendered.state is not None:
            reply.context_id = runtime.contexts.add(rendered.state, rendered.state.state.bytes)
        yield from timed(reply, payload, receiver, call)

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[render_pb2.BackwardReply]]:
        """Differentiate a forward that was retained, or one that is computed again."""
        runtime = self._runtime
        call.engine, call.operation = _ENGINE, "backward"
        receiver = Receiver(frames, call)
        with call.times.stage("decode"):
            spec = receiver.header.spec
            for name in spec.wanted:
                require(name in _WANTED, "spec.wanted", f"names out of {', '.join(_WANTED)}", name)
            check_format(spec.format, "spec.format")
            if spec.WhichOneof("source") == "context_id":
                work = self._retained(receiver, runtime.contexts.find(spec.context_id), call)
            else:
                work = self._recomputed(receiver, call)
        gradients = runtime.executor.run(work, call)
        if spec.release:
            runtime.contexts.release(spec.context_id)
        payload = PayloadWriter()
        reply = render_pb2.BackwardReply(gradients=named_tensors(gradients, payload))
        yield from timed(reply, payload, receiver, call)

    def Release(self, request: render_pb2.ReleaseRequest, _: Call) -> render_pb2.ReleaseReply:
        """Forget a forward state; no harm if it has gone."""
        self._runtime.contexts.release(request.context_id)
        return render_pb2.ReleaseReply()

    def _retained(
        self, receiver: Receiver[render_pb2.BackwardRequest], state: SphereState, call: Call
    ) -> Callable[[], Mapping[str, Array]]:
        spec = receiver.header.spec
        self._runtime.transit.reserve(gradient_bytes(state.count, state.channels), call)
        load = self._gradients(receiver, state.plan.shapes(state.channels), call)[1]
        return lambda: self._runtime.spheres.backward(state.state, load(), spec, call)

    def _recomputed(
        self, receiver: Receiver[render_pb2.BackwardRequest], call: Call
    ) -> Callable[[], Mapping[str, Array]]:
        runtime, spec = self._runtime, receiver.header.spec
        plan = SpherePlan.of(spec.render, runtime.limits, "spec.render")
        source = source_of(spec.render, runtime, call, "spec.render")
        plan.check_scene(source.channels, runtime.limits, "spec.render")
        runtime.transit.reserve(gradient_bytes(source.count, source.channels), call)
        reader, load = self._gradients(receiver, plan.shapes(source.channels), call)
        scene = source.receive(reader)
        return lambda: runtime.spheres.render_backward(plan, scene(), load(), spec, call)

    def _gradients(
        self,
        receiver: Receiver[render_pb2.BackwardRequest],
        shapes: Mapping[str, Sequence[int]],
        call: Call,
    ) -> tuple[PayloadReader, Callable[[], Tensors]]:
        """Receive the payload; returns its reader, and what uploads the output gradients."""
        runtime = self._runtime
        field = "spec.output_gradients"
        tensors = checked_gradients(receiver.header.spec.output_gradients, shapes, field)
        reader = receiver.payload(runtime.limits.payload_bytes, runtime.transit)
        upload = uploader(tensors, reader, runtime.transfer, field)

        def load() -> Tensors:
            with call.times.stage("upload"):
                return upload()

        return reader, load
