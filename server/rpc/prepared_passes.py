"""Retained Renders and their Backwards that need no Python, after the first call of each kind."""

from __future__ import annotations

from typing import Any

from lumigrad.kernels._native import (
    BackwardCall,
    RenderRequest,
    RetainCall,
    ShortCall,
    read_backward_request,
)
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.prepared import Example
from lumigrad.server.engines.prepared_passes import (
    PassSource,
    PassState,
    PreparedBackward,
    PreparedPass,
    prepared_backward,
    prepared_pass,
)
from lumigrad.server.engines.runner import ForwardState
from lumigrad.server.rpc.native_calls import AskingShort, Sent
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Tenants
from lumigrad.v1 import render_pb2


class PreparedPasses:
    """Answers retained Renders and Backwards whose kind was prepared; leaves all others to the general path.

    States of both paths are in one store, and each path accepts states of the other: Python makes its own state from
    one that a native Render has retained. A request with several replies may have further messages, which are refused
    only after the state has changed, so it takes the general path.
    """

    takes_lanes = False

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def render(self, prepared: PreparedPass, request: RenderRequest, short: ShortCall) -> bytes | None:
        """Answer a retained Render by one message; None if the general path must answer it."""
        asking = AskingShort(self._tenants.of_tenant(short.tenant), short)
        if prepared.message_bytes > asking.most_bytes:
            return None
        found = asking.run(RetainCall, prepared.native, request, prepared.cost)
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
        asking.answered(found, Sent(prepared.source.engine.name, "forward", 0, prepared.payload_bytes))
        return reply

    def answer(self, raw: bytes, short: ShortCall) -> bytes | None:
        """Answer a Backward by one message; None if the general path must answer it."""
        request = read_backward_request(raw)
        if request is None:
            return None
        asking = AskingShort(self._tenants.of_tenant(short.tenant), short)
        contexts = asking.runtime.contexts
        state = contexts.look(request.context_id)
        if not isinstance(state, PassState):
            return None
        asking.remember(request)
        prepared: PreparedBackward | None = state.kind.backwards.find(request.key)
        if prepared is None or prepared.message_bytes > asking.most_bytes:
            return None
        if not state.turn.acquire(blocking=False):
            return None
        try:
            found = asking.run(BackwardCall, prepared.native, (request, state.native), prepared.cost)
        finally:
            state.turn.release()
        if not isinstance(found, BackwardCall) or found.nonfinite:
            # Values that are not finite are rare, and the general path records them. In bfloat16, the bits of NaN
            # depend on how torch converts on each processor.
            return None
        contexts.count_found()
        if prepared.releases:
            contexts.release(request.context_id)
        else:
            contexts.resize(request.context_id, state.bytes)
        reply, received, sent = found.reply, request.payload_bytes, prepared.payload_bytes
        asking.answered(found, Sent(state.kind.source.engine.name, "backward", received, sent))
        return reply

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
