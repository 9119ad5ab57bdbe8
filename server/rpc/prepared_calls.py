"""Renders of stored scenes that need no Python between request and reply, after the first Render of their kind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from lumigrad.kernels._native import (
    ChangeCount,
    DrawingParts,
    Outcome,
    RenderJob,
    RenderRequest,
    ShortCall,
    read_render_request,
)
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import InvalidArgumentError, SceneNotFoundError, VersionMismatchError
from lumigrad.server.core.streams import check_room
from lumigrad.server.engines.prepared import Example, PreparedRender, prepared_render
from lumigrad.server.engines.prepared_passes import PreparedPass
from lumigrad.server.rpc.lane_places import place_by
from lumigrad.server.rpc.native_calls import check_outcome
from lumigrad.server.rpc.prepared_passes import PreparedPasses
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.named import may_change
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime, Tenants

# Seconds for which a scene and the room for its kernels are not looked up again: a lookup takes longer than everything
# else that Python does for a call. Files are looked up for each call, because they may be replaced without notice.
_LOOK_SECONDS = 0.01
# The scene's id, its version, and the key of a request. With the version `NAMED`, the id is a scene's name.
Kind = tuple[str, int, bytes]
NAMED = -1


def _is_file(kind: Kind) -> bool:
    return kind[1] == NAMED and may_change(kind[0])


class Lookup:
    """Finds prepared Renders of a tenant's scenes; caches results while the scene store does not change."""

    def __init__(self, runtime: Runtime) -> None:
        self._scenes, self._named, self._memory = runtime.scenes, runtime.named, runtime.memory
        self._changes = self._scenes.changes
        # Expiry of the results (monotonic clock), the store's change count, and the results. The references are weak:
        # only scenes keep alive what is prepared for them.
        self._known: tuple[float, int, dict[Kind, tuple[ReferenceType[Any], int]]] = (-math.inf, 0, {})

    def __call__(self, kind: Kind) -> tuple[Any, int] | None:
        """Return the prepared Render and the memory that its kernels may take; None if the general path must answer."""
        now, changes = time.monotonic(), self._changes.count
        until, at, found = self._known
        if now > until or changes != at:
            found = {}
            self._known = now + _LOOK_SECONDS, changes, found
        known = found.get(kind)
        prepared = None if known is None else known[0]()
        if known is not None and prepared is not None:
            return prepared, known[1]
        scene = self._scene(*kind[:2])
        prepared = None if scene is None else scene.prepared.find(kind[2])
        room = None if prepared is None else self._memory.room_bytes(prepared.cost)
        if room is None:
            return None
        if not _is_file(kind):
            found[kind] = ref(prepared), room
        return prepared, room

    def _scene(self, name: str, version: int) -> StoredScene | None:
        try:
            if version != NAMED:
                return self._scenes.find(name, version)
            named = self._named.get(name)
        except (InvalidArgumentError, SceneNotFoundError, VersionMismatchError):
            # The general path finds the same error, and ends the call or the frame with it.
            return None
        known = "" if named is None else named.content_hash
        return self._scenes.find_content(known, counts=False) if known else None


class _Way(NamedTuple):
    """The objects that draw the calls of one tenant, kept at hand."""

    look_up: Lookup
    changes: ChangeCount
    parts: DrawingParts
    # Allocates host memory for downloading outputs; None if kernels write to the reply directly.
    staging: Callable[..., Any] | None


class Drawn(NamedTuple):
    """Outputs that native code has drawn for a reply, by name."""

    prepared: PreparedRender
    outputs: Mapping[str, Array]


class PreparedCalls:
    """Answers Renders whose kind was prepared; leaves all others, and those that fail, to the general path.

    Checks and error texts therefore exist only once. A kind is prepared from a Render that has succeeded, and requests
    of its kind differ only in finite poses, which are never refused.
    """

    takes_lanes = True

    def __init__(self, tenants: Tenants, lanes: Lanes, passes: PreparedPasses) -> None:
        """Answer calls of these tenants over these lanes; `passes` answers calls that retain a state."""
        self._tenants = tenants
        self._lanes = lanes
        self._passes = passes
        self._ways: dict[str, _Way] = {}

    def answer(self, raw: bytes, short: ShortCall) -> bytes | None:
        """Answer a request by one message; None if the general path must answer it."""
        way = self._ways.get(short.tenant) or self._add_way(short.tenant)
        reply = short.draw_known(way.parts, raw)
        if reply is None and short.outcome == Outcome.PENDING:
            reply = self._look_up_and_answer(way, raw, short)
        if reply is None and short.outcome != Outcome.PENDING:
            check_outcome(short.outcome, short.overdue_limit)
        return reply

    def _look_up_and_answer(self, way: _Way, raw: bytes, short: ShortCall) -> bytes | None:
        request = read_render_request(raw)
        if request is None:
            return None
        short.request = request
        changes = way.changes.count
        found = way.look_up(request.kind)
        if found is None:
            return None
        prepared, room = found
        if isinstance(prepared, PreparedPass):
            return self._passes.render(prepared, request, short)
        if short.lane_name and prepared.takes_region:
            return self._answer_by_lane(way, prepared, request, room, short)
        if (prepared.lane_message_bytes if short.lane_name else prepared.message_bytes) > short.message_bytes:
            return None
        native, engine = prepared.native, prepared.engine
        staged = None if way.staging is None else way.staging(native)
        reply = short.draw(way.parts, native, request, staged, room, engine)
        if reply is not None and not short.lane_name and not _is_file(request.kind):
            way.parts.keep(request, native, engine, room, int(prepared.message_bytes), changes)
        return reply

    def _answer_by_lane(
        self, way: _Way, prepared: PreparedRender, request: RenderRequest, room: int, short: ShortCall
    ) -> bytes | None:
        """Answer with all outputs in one region of the call's lane; None if the general path must answer."""
        place = place_by(self._lanes, short.lane_name, short.tenant, prepared)
        if place is None:
            return None
        native, reply = prepared.native, None
        try:
            staged = None if way.staging is None else way.staging(native, is_payload_pinned=True)
            reply = short.draw(way.parts, native, request, staged, room, prepared.engine, place.memory, place.head)
        finally:
            place.lane.end(delivered=reply is not None)
        return reply

    def __call__(self, raw: bytes, call: Call, most_bytes: int) -> bytes | None:
        """Answer a call of the general path by a message with at most `most_bytes` of payload; None if not possible."""
        request = read_render_request(raw)
        if request is None or call.times.spans is not None:
            return None
        call.request = request
        found = self.look_up(call.tenant)(request.kind)
        if found is None:
            return None
        prepared, room = found
        if isinstance(prepared, PreparedPass):
            return None
        if call.lane_name and prepared.takes_region:
            return self._draw_to_lane(prepared, request, room, call)
        if (prepared.lane_message_bytes if call.lane_name else prepared.message_bytes) > most_bytes:
            return None
        drawn = self._draw(prepared, request, room, call)
        if drawn is not None:
            call.record.bytes_sent = prepared.payload_bytes
        return drawn

    def draw(self, call: Call) -> Drawn | None:
        """Draw a Render of a known kind that takes more than one message, or files; None if the general path must."""
        request = call.request
        if not isinstance(request, RenderRequest):
            return None
        found = self.look_up(call.tenant)(request.kind)
        if found is None:
            return None
        prepared, room = found
        if not isinstance(prepared, PreparedRender) or prepared.message_bytes <= call.message_bytes:
            return None
        check_room(call, prepared.cost.payload_bytes)
        transfer = self._tenants.of(call).transfer
        memory = None
        if math.isinf(prepared.message_bytes) and not transfer.is_cpu:
            # The levels of files: the device writes them to memory from which a GPU's encoder can read them itself.
            memory = np.frombuffer(transfer.allocate(prepared.payload_bytes), np.uint8)
        drawn = self._draw(prepared, request, room, call, memory)
        if drawn is None:
            return None
        return Drawn(prepared, prepared.arrays(drawn if memory is None else memory))

    def prepare(self, example: Example, request: Any) -> None:
        """Prepare Renders like one that has just succeeded, if possible."""
        scene, call = request.scene, example.call
        if call.request is None or not isinstance(scene, StoredScene):
            return
        tensors, runtime = scene.load().tensors, self._tenants.of(call)
        numbers, is_cpu = runtime.executor.numbers, runtime.transfer.is_cpu
        prepared = prepared_render(example, request.task, tensors, request.formats, numbers, is_cpu=is_cpu)
        if prepared is not None:
            scene.prepared.add(call.request.key, prepared)

    def look_up(self, tenant: str) -> Lookup:
        """Return the lookup of the tenant's prepared Renders."""
        return (self._ways.get(tenant) or self._add_way(tenant)).look_up

    def _draw_to_lane(self, prepared: PreparedRender, request: RenderRequest, room: int, call: Call) -> bytes | None:
        """Draw all outputs to one region of the call's lane; None if it has no room."""
        leased = call.lane.lease(prepared.payload_bytes)
        if leased is None:
            return None
        region, memory = leased
        drawn = self._draw(prepared, request, room, call, memory, prepared.head_in(region))
        if drawn is not None:
            call.lane.bytes_sent += prepared.lane_bytes
        return drawn

    def _draw(
        self,
        prepared: PreparedRender,
        request: RenderRequest,
        room: int,
        call: Call,
        memory: Array | None = None,
        head: bytes = b"",
    ) -> bytes | None:
        """Draw into a message, or into `memory`, which the message with this `head` then describes."""
        runtime = self._tenants.of(call)
        account = runtime.payload_memory.account
        payload = account.take(call.tenant, prepared.payload_bytes) if prepared.native.takes(request) else None
        if payload is None:
            return None
        job = RenderJob(
            runtime.executor.queue,
            prepared.native,
            request,
            runtime.renderer,
            staging(runtime, prepared.native, is_payload_pinned=memory is not None),
            payload,
            call.tenant,
            int(call.priority),
            call.deadline,
            room,
            memory,
            head,
        )
        call.job = job
        call.on_end(job.end)
        outcome = job.run(call.times.arrived)
        if outcome == Outcome.DONE:
            record = call.record
            record.engine, record.operation = prepared.engine, "forward"
            record.batch_views = job.batch_views
            call.times.milliseconds = job.stages
            return job.reply
        if outcome == Outcome.CANCELLED:
            call.check()
        check_outcome(outcome, job.overdue_limit)
        payload.release()
        return None

    def _add_way(self, tenant: str) -> _Way:
        runtime = self._tenants.of_tenant(tenant)
        stage = None if runtime.transfer.is_cpu else partial(staging, runtime)
        queue, books, changes = runtime.executor.queue, runtime.payload_memory.account.books, runtime.scenes.changes
        parts = DrawingParts(queue, runtime.renderer, books, stage, changes, _LOOK_SECONDS)
        way = self._ways[tenant] = _Way(Lookup(runtime), changes, parts, stage)
        return way


def staging(runtime: Runtime, native: Any, *, is_payload_pinned: bool = False) -> Any:
    """Allocate host memory for downloading the outputs of a render; None if it needs none.

    Devices can write to a pinned payload, so most outputs need none.
    """
    staged = runtime.renderer.staging_bytes(native, is_payload_pinned)
    return runtime.transfer.allocate(staged) if staged else None
