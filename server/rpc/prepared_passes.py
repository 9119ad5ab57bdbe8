"""Retained Renders and their Backwards that need no Python, after the first call of each kind."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from lumigrad.kernels._native import (
    BackwardCall,
    BackwardRequest,
    RenderRequest,
    RetainCall,
    ShortCall,
    read_backward_request,
)
from lumigrad.protos.dtypes import Array
from lumigrad.protos.errors import ProtocolError
from lumigrad.server.core.record import StageTimes
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.prepared import Example, PreparedReply
from lumigrad.server.engines.prepared_passes import (
    PassSource,
    PassState,
    PreparedBackward,
    PreparedPass,
    prepared_backward,
    prepared_pass,
)
from lumigrad.server.engines.runner import ForwardState
from lumigrad.server.rpc.lane_places import Place, place_by, place_in
from lumigrad.server.rpc.native_calls import AskingShort, Sent
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.shm.payload import OpenLane
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Tenants
from lumigrad.v1 import render_pb2, tensor_pb2


class _Backward(NamedTuple):
    """A Backward of a prepared kind."""

    prepared: PreparedBackward
    request: BackwardRequest
    state: PassState

    def uploads(self, lane: OpenLane) -> dict[int, Array] | None:
        """Return the gradients that lie in the caller's regions, by their places; None if it holds no such regions."""
        found = {}
        for place, (region, offset, length) in zip(self.prepared.uploads, self.request.spans, strict=True):
            span = tensor_pb2.RegionSpan(region=region, offset=offset, length=length)
            try:
                found[place] = lane.find(span, "")[0]
            except ProtocolError:
                return None
        return found if self.prepared.native.takes(found) else None


class PreparedPasses:
    """Answers retained Renders and Backwards whose kind was prepared; leaves all others to the general path.

    States of both paths are in one store, and each path accepts states of the other: Python makes its own state from
    one that a native Render has retained. A request with several replies may have further messages, which are refused
    only after the state has changed, so it takes the general path.
    """

    takes_lanes = True

    def __init__(self, tenants: Tenants, lanes: Lanes) -> None:
        """Answer calls of these tenants over these lanes."""
        self._tenants = tenants
        self._lanes = lanes

    def render(self, prepared: PreparedPass, request: RenderRequest, short: ShortCall) -> bytes | None:
        """Answer a retained Render by one message; None if the general path must answer it."""
        asking = AskingShort(self._tenants.of_tenant(short.tenant), short)
        if not (short.lane_name and prepared.takes_region):
            return self._retained(prepared, request, asking, None) if _fits_message(prepared, short) else None
        place = place_by(self._lanes, short.lane_name, short.tenant, prepared)
        if place is None:
            return None
        reply = None
        try:
            reply = self._retained(prepared, request, asking, place)
        finally:
            place.lane.end(delivered=reply is not None)
        return reply

    def _retained(
        self, prepared: PreparedPass, request: RenderRequest, asking: AskingShort, place: Place | None
    ) -> bytes | None:
        job = partial(RetainCall, **_written_to(place))
        found = asking.run(job, prepared.native, request, prepared.cost)
        if not isinstance(found, RetainCall):
            return None
        state, contexts = PassState(prepared, found.state, request.raw), asking.runtime.contexts
        name = contexts.add(state, state.bytes)
        try:
            asking.check()
        except Exception:
            # No caller will learn the name of the state.
            contexts.release(name)
            raise
        reply = found.named(name)
        asking.answered(found, Sent(prepared.source.engine.name, "forward", 0, _sent(prepared, place)))
        return reply

    def answer(self, raw: bytes, short: ShortCall) -> bytes | None:
        """Answer a Backward by one message; None if the general path must answer it."""
        request = read_backward_request(raw)
        if request is None:
            return None
        asking = AskingShort(self._tenants.of_tenant(short.tenant), short)
        state = asking.runtime.contexts.look(request.context_id)
        if not isinstance(state, PassState):
            return None
        asking.remember(request)
        prepared: PreparedBackward | None = state.kind.backwards.find(request.key)
        if prepared is None:
            return None
        work = _Backward(prepared, request, state)
        takes_region = bool(short.lane_name) and prepared.takes_region
        if not takes_region and not _fits_message(prepared, short):
            return None
        if not takes_region and not prepared.uploads:
            return self._differentiated(work, asking, {}, None)
        return self._differentiated_by_lane(work, asking, takes_region=takes_region)

    def _differentiated_by_lane(self, work: _Backward, asking: AskingShort, *, takes_region: bool) -> bytes | None:
        """Answer a Backward whose gradients come, or go back, by the call's lane."""
        lane = self._lanes.find(asking.short.lane_name, asking.short.tenant, StageTimes())
        if lane is None:
            return None
        reply = None
        try:
            uploads = work.uploads(lane)
            place = place_in(lane, work.prepared) if takes_region else None
            if uploads is not None and (place is not None or not takes_region):
                reply = self._differentiated(work, asking, uploads, place)
        finally:
            lane.end(delivered=reply is not None)
        return reply

    def _differentiated(
        self, work: _Backward, asking: AskingShort, uploads: dict[int, Array], place: Place | None
    ) -> bytes | None:
        prepared, request, state = work
        if not state.turn.acquire(blocking=False):
            return None
        try:
            job = partial(BackwardCall, uploads=uploads, **_written_to(place))
            found = asking.run(job, prepared.native, (request, state.native), prepared.cost)
        finally:
            state.turn.release()
        if not isinstance(found, BackwardCall) or found.nonfinite:
            # Values that are not finite are rare, and the general path records them. In bfloat16, the bits of NaN
            # depend on how torch converts on each processor.
            return None
        contexts = asking.runtime.contexts
        contexts.count_found()
        if prepared.releases:
            contexts.release(request.context_id)
        else:
            contexts.resize(request.context_id, state.bytes)
        received = request.payload_bytes + sum(array.nbytes for array in uploads.values())
        asking.answered(found, Sent(state.kind.source.engine.name, "backward", received, _sent(prepared, place)))
        return found.reply

    def prepare_render(self, example: Example, request: Any, state: ForwardState) -> None:
        """Prepare retained Renders like one that has just succeeded, if possible."""
        scene, call, runtime = request.scene, example.call, self._tenants.of(example.call)
        engine = state.task.engine
        if call.request is None or not isinstance(scene, StoredScene) or not isinstance(engine, RenderEngine):
            return
        content, numbers = scene.load(), runtime.executor.numbers
        source = PassSource(engine, content.tensors, scene.outline.shapes, scene.reference, runtime.limits)
        formats, passes, is_cpu = request.formats, runtime.passes, runtime.transfer.is_cpu
        prepared = prepared_pass(state, example, source, formats, numbers, passes, is_cpu=is_cpu)
        if prepared is not None:
            scene.prepared.add(call.request.key, prepared)

    def prepare_backward(self, example: Example, state: Any, spec: render_pb2.BackwardSpec) -> None:
        """Prepare Backwards like one that has just succeeded, if possible."""
        call = example.call
        if call.request is None or not isinstance(state, PassState):
            return
        numbers = self._tenants.of(call).executor.numbers
        prepared = prepared_backward(example, spec, state, numbers)
        if prepared is not None:
            state.kind.backwards.add(call.request.key, prepared)


def _fits_message(prepared: PreparedReply, short: ShortCall) -> bool:
    return (prepared.lane_message_bytes if short.lane_name else prepared.message_bytes) <= short.message_bytes


def _written_to(place: Place | None) -> dict[str, Any]:
    """Return the arguments of a native job that writes the payload of its reply to a place in a lane, if any."""
    return {} if place is None else {"memory": place.memory, "head": place.head}


def _sent(prepared: PreparedReply, place: Place | None) -> int:
    return prepared.payload_bytes if place is None else prepared.lane_bytes
