"""RenderService: images, and the gradients of what made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import require
from lumigrad.server.core.streams import Receiver
from lumigrad.server.engines.images import ImageFormats
from lumigrad.server.engines.runner import Task
from lumigrad.server.rpc.exchange import BackwardExchange, ForwardExchange, ForwardRequest
from lumigrad.server.scenes.kinds import ENGINES
from lumigrad.server.scenes.lookup import AcceptedKinds, find_scene
from lumigrad.server.storage.tenants import Tenants
from lumigrad.v1 import image_pb2, render_pb2

RenderFrames = Iterator[Frame[render_pb2.RenderRequest]]
BackwardFrames = Iterator[Frame[render_pb2.BackwardRequest]]

_KINDS = AcceptedKinds(ENGINES, "a scene of spheres or gaussians; DistanceService answers about a mesh or a world")


class RenderService:
    """The methods of `lumigrad.v1.RenderService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def Render(self, frames: RenderFrames, call: Call) -> Iterator[Frame[render_pb2.RenderReply]]:
        """Render a scene, stored or sent along."""
        receiver = Receiver(frames, call)
        exchange = ForwardExchange(receiver, self._tenants.of(call), call)
        with call.times.stage("decode"):
            exchange.receive(self._request(receiver.header.spec, call, "spec", receiver.header.formats))
        yield from exchange.reply(render_pb2.RenderReply())

    def Backward(self, frames: BackwardFrames, call: Call) -> Iterator[Frame[render_pb2.BackwardReply]]:
        """Differentiate a forward pass that was retained, or one that is computed again."""
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
        """Forget a forward state; no error if it has gone."""
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
