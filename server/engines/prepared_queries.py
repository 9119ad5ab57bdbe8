"""Queries of a stored world that differ only in their spheres: prepared once, answered without Python."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.kernels import meshes
from lumigrad.kernels._native import DistanceQuery
from lumigrad.server.device.jobs import Numbers
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.distances import DistancePlan, kernel_name
from lumigrad.server.engines.prepared import Example, head_of, message_bytes_of
from lumigrad.server.engines.requests import Plan


@dataclass(frozen=True)
class PreparedQuery:
    """A kind of queries of one world.

    Attributes:
        native: The native query.
        world: The world that the queries search, as long as none of its meshes moves.
        cost: The cost of each query.
        payload_bytes: The payload of a reply.
        message_bytes: The payload that a caller must accept in one message.
        rows: The number of spheres.
    """

    native: DistanceQuery
    world: meshes.World
    cost: Cost
    payload_bytes: int
    message_bytes: int
    rows: int


def prepared_query(
    example: Example, plan: Plan, world: meshes.World, numbers: Numbers, queries: meshes.Queries
) -> PreparedQuery | None:
    """Prepare queries like one that has just succeeded; None if there is no fast path for its kind.

    Args:
        example: The call.
        plan: The plan of the query.
        world: The world that it has searched.
        numbers: The numbers of the queue.
        queries: Answers prepared queries.
    """
    reply, payload_bytes, cost = example.reply, example.payload_bytes, example.cost
    if not isinstance(plan, DistancePlan) or plan.kind is None or plan.per_obstacle or plan.count == 0:
        return None
    if reply.context_id or any(output.tensor.WhichOneof("location") != "payload" for output in reply.outputs):
        return None
    spheres, environments = plan.tensors["spheres"], plan.tensors.get("environments")
    head = head_of(reply, payload_bytes)
    native = meshes.prepare(
        queries,
        world,
        plan.settings,
        spheres.shape[:3],
        spheres=spheres.payload.offset,
        environments=None if environments is None else environments.payload.offset,
        places=[(kernel_name(output.name), output.tensor.payload.offset) for output in reply.outputs],
        payload_bytes=payload_bytes,
        head=head,
        kind=numbers.of(cost.kind),
        cost_bytes=cost.bytes,
    )
    if native is None:
        return None
    return PreparedQuery(native, world, cost, payload_bytes, message_bytes_of(head, payload_bytes), plan.count)
