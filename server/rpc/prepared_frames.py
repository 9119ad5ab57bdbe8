"""Frames of a stream that need no Python between request and reply, after a first one of their kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from lumigrad.kernels._native import FrameLine, read_render_request
from lumigrad.protos.frame_stream import FRAME_BYTES
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import SceneNotFoundError, VersionMismatchError
from lumigrad.server.core.notes import Notes
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.prepared import PreparedRender
from lumigrad.server.rpc.prepared_calls import staging
from lumigrad.server.rpc.stream_frames import METHOD, frame_id
from lumigrad.server.storage.tenants import Runtime, Tenants

# The memory that the kernels of a job may take; None if that has to be made first.
Room = Callable[[Cost, Runtime], int | None]


class _Kind(NamedTuple):
    """What frames have in common: the reference to their scene, and the key of the Renders that they stand for."""

    scene_id: str
    version: int
    key: bytes


class PreparedFrames:
    """The frames of one stream that are drawn without Python: those that differ in poses from a frame before.

    All other frames, and those that fail, take the general way, where all checks and error texts are.

    Attributes:
        line: Those on their way.
    """

    def __init__(self, tenants: Tenants, room: Room, places: Account, notes: Notes, call: Call) -> None:
        """Without a kind; `call` is the stream's, `places` are those of calls, and `notes` takes the records."""
        self._runtime = runtime = tenants.of(call)
        self._room = room
        self._find = runtime.scenes.find
        # Host memory for outputs on their way; None: kernels write to the reply.
        self._staging = None if runtime.transfer.device.type == "cpu" else partial(staging, runtime)
        # Only the general way traces calls.
        self._is_possible = call.times.spans is None
        # Of the frames that are taken; None: none are.
        self._kind: _Kind | None = None
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

    def learn(self, raw: bytes, request: bytes) -> None:
        """Take further frames as this one, which stands for a RenderRequest, if such a Render is prepared."""
        found = read_render_request(request) if self._is_possible else None
        self._kind = kind = None if found is None else _Kind(found.scene_id, found.version, found.key)
        prepared = None if kind is None else self._prepared(kind)
        if prepared is None or not self.line.expect(raw, prepared.engine):
            self.forget()

    def forget(self) -> None:
        """Take no frames any more: what they have in common changes."""
        self._kind = None
        self.line.forget()

    def current(self) -> tuple[Any, Any, int] | None:
        """What draws the next frame of the kind, its host memory, and its room; None: it takes the general way."""
        kind = self._kind
        prepared = None if kind is None else self._prepared(kind)
        room = None if prepared is None else self._room(prepared.cost, self._runtime)
        if prepared is None or room is None:
            return None
        native = prepared.native
        return native, None if self._staging is None else self._staging(native), room

    def _prepared(self, kind: _Kind) -> PreparedRender | None:
        """What is prepared for the scene as it is now."""
        try:
            prepared = self._find(kind.scene_id, kind.version).prepared.find(kind.key)
        except (SceneNotFoundError, VersionMismatchError):
            return None
        is_fit = isinstance(prepared, PreparedRender) and prepared.payload_bytes <= FRAME_BYTES
        return prepared if is_fit else None
