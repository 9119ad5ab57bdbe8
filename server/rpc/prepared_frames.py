"""Frames of a stream that need no Python between request and reply, after the first frame of their kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lumigrad.kernels._native import FrameLine, read_render_request
from lumigrad.protos.frame_stream import FRAME_BYTES
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call
from lumigrad.server.core.notes import Notes
from lumigrad.server.engines.prepared import PreparedRender
from lumigrad.server.rpc.lane_places import Place, place_by
from lumigrad.server.rpc.prepared_calls import Kind, Lookup, staging
from lumigrad.server.rpc.stream_frames import METHOD, frame_id
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.tenants import Tenants


class PreparedFrames:
    """The frames of one stream that are drawn without Python: those that differ only in poses from an earlier frame.

    All other frames, and frames that fail, take the general path, which has all checks and error texts.

    Attributes:
        line: The frames in progress.
    """

    def __init__(
        self,
        tenants: Tenants,
        lanes: Lanes,
        look_up: Callable[[str], Lookup],
        places: Account,
        notes: Notes,
        call: Call,
    ) -> None:
        """Begin without a kind. `call` is the stream's call, `places` limits calls, and `notes` takes their records."""
        runtime = tenants.of(call)
        self._lanes, self._tenant = lanes, call.tenant
        self._look_up = look_up(call.tenant)
        # Allocates host memory for downloading outputs; None if kernels write to the reply directly.
        self._staging = None if runtime.transfer.is_cpu else partial(staging, runtime)
        # Only the general path traces calls.
        self._is_possible = call.times.spans is None
        # The kind of the accepted frames; None if no frames are accepted.
        self._kind: Kind | None = None
        self.line = FrameLine(
            queue=runtime.executor.queue,
            renderer=runtime.renderer,
            places=places.books,
            payloads=runtime.payload_memory.account.books,
            records=notes.native,
            method=METHOD,
            request_id=frame_id(call, ""),
            tenant=call.tenant,
            priority=int(call.priority),
            deadline=call.deadline,
            progress=call.progress,
        )

    def learn(self, raw: bytes, request: bytes, *, has_lane: bool) -> None:
        """Accept frames like `raw`, which stands for the RenderRequest `request`, if such a Render is prepared."""
        found = read_render_request(request) if self._is_possible else None
        self._kind = None if found is None else found.kind
        ready = None if self._kind is None else self._look_up(self._kind)
        prepared = None if ready is None else ready[0]
        # Whatever is prepared for the same key later has the same type and size.
        is_fit = isinstance(prepared, PreparedRender) and (
            (has_lane and prepared.takes_region)
            or (prepared.lane_message_bytes if has_lane else prepared.message_bytes) <= FRAME_BYTES
        )
        if prepared is None or not is_fit or not self.line.expect(raw, prepared.engine):
            self.forget()

    def forget(self) -> None:
        """Accept no more frames, because the request that they build on changes."""
        self._kind = None
        self.line.forget()

    def current(self, lane_name: str) -> tuple[Any, Any, int, Place | None] | None:
        """Return the renderer, host memory and room for the next frame of the kind, and its place in a lane, if any.

        Returns None if the frame must take the general path.
        """
        found = None if self._kind is None else self._look_up(self._kind)
        if found is None:
            return None
        prepared, room = found
        native, by_lane = prepared.native, bool(lane_name) and prepared.takes_region
        staged = None if self._staging is None else self._staging(native, is_payload_pinned=by_lane)
        place = place_by(self._lanes, lane_name, self._tenant, prepared) if by_lane else None
        return None if by_lane and place is None else (native, staged, room, place)
