"""Queries of stored worlds that need no Python between request and reply, after a first one of their kind."""

from __future__ import annotations

from typing import Any

from lumigrad.kernels._native import QueryCall, read_query_request
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import SceneNotFoundError, VersionMismatchError
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.distances import DISTANCES
from lumigrad.server.engines.prepared_queries import PreparedQuery, prepared_query
from lumigrad.server.rpc.native_calls import NativeCalls
from lumigrad.server.scenes.world import settled_world
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Tenants


class PreparedQueries:
    """Answers queries whose kind was prepared; all others, and all that fail, are left to the general way.

    A kind is prepared from a query that has succeeded. Queries of its kind differ from that in the values of spheres
    and environments only; the native job leaves those that would be refused.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._calls = NativeCalls()

    def __call__(self, raw: bytes, call: Call, most_bytes: int) -> bytes | None:
        """Answer a request by one message with at most so many bytes of payload; None: it takes the general way."""
        request = read_query_request(raw)
        if request is None or call.lane_name or call.times.spans is not None:
            return None
        runtime = self._tenants.of(call)
        try:
            scene = runtime.scenes.find(request.scene_id, request.version)
        except (SceneNotFoundError, VersionMismatchError):
            return None
        call.request_key = request.key
        prepared: PreparedQuery | None = scene.prepared.find(request.key)
        if prepared is None or prepared.payload_bytes > most_bytes:
            return None
        if prepared.world is not settled_world(scene.content):
            return None
        found = self._calls.run(QueryCall, prepared.native, request, prepared.cost, runtime, call)
        if found is None:
            return None
        call.record.batch_views, call.record.facts["rows"] = 1, prepared.rows
        self._calls.note(found, DISTANCES.name, "forward", request.payload_bytes, prepared.payload_bytes, call)
        return found.reply

    def prepare(self, request: Any, cost: Cost, reply: Any, payload_bytes: int, call: Call) -> None:
        """Prepare queries like one that has just succeeded, if they can be."""
        scene, runtime = request.scene, self._tenants.of(call)
        if call.request_key is None or not isinstance(scene, StoredScene):
            return
        world, numbers = settled_world(scene.content), runtime.executor.numbers
        if world is None:
            return
        plan, queries = request.task.plan, runtime.queries
        prepared = prepared_query(plan, world, reply, payload_bytes, cost, numbers, queries)
        if prepared is not None:
            scene.prepared.add(call.request_key, prepared)
