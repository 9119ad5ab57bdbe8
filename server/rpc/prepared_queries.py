"""Queries of stored worlds that need no Python between request and reply, after the first query of their kind."""

from __future__ import annotations

from typing import Any

from lumigrad.kernels._native import QueryCall, ShortCall, read_query_request
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import SceneNotFoundError, VersionMismatchError
from lumigrad.server.engines.distances import DISTANCES
from lumigrad.server.engines.prepared import Example
from lumigrad.server.engines.prepared_queries import PreparedQuery, prepared_query
from lumigrad.server.rpc.native_calls import Asking, AskingCall, AskingShort, Sent
from lumigrad.server.scenes.world import settled_world
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Tenants


class PreparedQueries:
    """Answers queries whose kind was prepared; leaves all others, and those that fail, to the general path.

    A kind is prepared from a query that has succeeded. Queries of its kind differ only in the values of spheres and
    environments; the native job does not answer those that would be refused.
    """

    takes_lanes = False

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def answer(self, raw: bytes, short: ShortCall) -> bytes | None:
        """Answer a request by one message; None if the general path must answer it."""
        return self._answer(raw, AskingShort(self._tenants.of_tenant(short.tenant), short))

    def __call__(self, raw: bytes, call: Call, most_bytes: int) -> bytes | None:
        """Answer a call of the general path by a message with at most `most_bytes` of payload; None if not possible."""
        if call.lane_name or call.times.spans is not None:
            return None
        return self._answer(raw, AskingCall(self._tenants.of(call), most_bytes, call))

    def _answer(self, raw: bytes, asking: Asking) -> bytes | None:
        request = read_query_request(raw)
        if request is None:
            return None
        try:
            scene = asking.runtime.scenes.find(request.scene_id, request.version)
        except (SceneNotFoundError, VersionMismatchError):
            return None
        asking.remember(request)
        prepared: PreparedQuery | None = scene.prepared.find(request.key)
        if prepared is None or prepared.message_bytes > asking.most_bytes:
            return None
        if prepared.world is not settled_world(scene.content):
            return None
        found = asking.run(QueryCall, prepared.native, request, prepared.cost)
        if found is None:
            return None
        reply = found.reply
        asking.answered(
            found, Sent(DISTANCES.name, "forward", request.payload_bytes, prepared.payload_bytes, batch_views=1)
        )
        return reply

    def prepare(self, example: Example, request: Any) -> None:
        """Prepare queries like one that has just succeeded, if possible."""
        scene, call, runtime = request.scene, example.call, self._tenants.of(example.call)
        if call.request is None or not isinstance(scene, StoredScene):
            return
        world, numbers = settled_world(scene.content), runtime.executor.numbers
        if world is None:
            return
        plan, queries = request.task.plan, runtime.queries
        prepared = prepared_query(example, plan, world, numbers, queries)
        if prepared is not None:
            scene.prepared.add(call.request.key, prepared)
