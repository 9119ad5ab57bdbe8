"""RenderService: images, and the gradients of what made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.streams import Receiver
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.passes import Task
from lumigrad.server.rpc.exchange import BackwardExchange, Question, answer_forward
from lumigrad.server.scenes.kinds import ENGINES, engine_for
from lumigrad.server.scenes.lookup import Subjects, source_of
from lumigrad.server.storage.tenants import Tenants
from lumigrad.v1 import image_pb2, render_pb2

RenderFrames = Iterator[Frame[render_pb2.RenderRequest]]
BackwardFrames = Iterator[Frame[render_pb2.BackwardRequest]]

_SUBJECTS = Subjects(ENGINES, "a scene of spheres or gaussians; DistanceService answers about a mesh or a world")


class RenderService:
    """The methods of `lumigrad.v1.RenderService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def Render(self, frames: RenderFrames, call: Call) -> Iterator[Frame[render_pb2.RenderReply]]:
        """Render a scene, stored or sent along."""
        receiver = Receiver(frames, call)
        spec = receiver.header.spec
        runtime = self._tenants.of(call)
        yield from answer_forward(
            lambda: self._question(spec, call, "spec", receiver.header.formats),
            receiver,
            render_pb2.RenderReply(),
            runtime,
            call,
        )

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[render_pb2.BackwardReply]]:
        """Differentiate a forward that was retained, or one that is computed again."""
        receiver = Receiver(frames, call)
        spec = receiver.header.spec
        exchange = BackwardExchange(receiver, self._tenants.of(call), call, spec.format)
        yield from exchange.answer(
            lambda: self._question(spec.render, call, "spec.render"), ENGINES, render_pb2.BackwardReply()
        )

    def Release(self, request: render_pb2.ReleaseRequest, call: Call) -> render_pb2.ReleaseReply:
        """Forget a forward state; no harm if it has gone."""
        self._tenants.of(call).contexts.release(request.context_id)
        return render_pb2.ReleaseReply()

    def _question(
        self, spec: render_pb2.RenderSpec, call: Call, field: str, formats: Sequence[image_pb2.OutputFormat] = ()
    ) -> Question:
        """Who renders what; `field` is the path of the spec in the request."""
        runtime = self._tenants.of(call)
        source = source_of(spec, _SUBJECTS, runtime, call, field, spec.WhichOneof("settings"))
        engine = engine_for(spec, source.kind, field)
        call.engine = engine.name
        task = Task(engine, engine.plan(spec, source.outline.shapes, runtime.limits, field), field, source.reference)
        call.facts["cameras"] = len(spec.cameras)
        call.facts["pixels"] = sum(camera.width * camera.height for camera in spec.cameras)
        return Question(task, source.reference, source.tensors, ImageFormats.of(formats, task.plan, "formats"))
