"""Queries of distances as messages of the contract."""

from __future__ import annotations

from lumigrad.client.distances.query import DistanceQuery, FieldQuery
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings
from lumigrad.client.wire.worlds import world_message
from lumigrad.client.workers.attempts import InlineWorld, Source
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, world_pb2

_SEMANTICS: dict[DistanceSemantics, distance_pb2.DistanceSemantics] = {
    "exact": distance_pb2.DISTANCE_SEMANTICS_EXACT,
    "curobo": distance_pb2.DISTANCE_SEMANTICS_CUROBO,
    "curobo_field": distance_pb2.DISTANCE_SEMANTICS_CUROBO_FIELD,
}
_REDUCTIONS = {"sum": distance_pb2.REDUCTION_SUM, "max": distance_pb2.REDUCTION_MAX}


def fill_spec(
    spec: distance_pb2.DistanceSpec, query: DistanceQuery, source: Source | None, payload: PayloadWriter
) -> None:
    """Says what to ask; `source` is what the worker calls the world, or the world, which then travels with the call."""
    spec.spheres.CopyFrom(payload.add(query.spheres))
    spec.settings.CopyFrom(settings_message(query.settings))
    spec.outputs.extend(query.outputs)
    spec.per_obstacle = query.per_obstacle
    if query.environments is not None:
        spec.environments.CopyFrom(payload.add(query.environments))
    if query.poses is not None:
        spec.poses.CopyFrom(payload.add(query.poses))
    if isinstance(source, InlineWorld):
        spec.scene.world.CopyFrom(world_message(source.world, source.meshes, payload))
    elif source is not None:
        spec.scene_ref.CopyFrom(source)


def settings_message(settings: DistanceSettings) -> distance_pb2.DistanceSettings:
    """What a cost is; what is None stays absent."""
    values = dict(vars(settings))
    values |= {"semantics": _SEMANTICS[settings.semantics], "reduction": _REDUCTIONS[settings.reduction]}
    return distance_pb2.DistanceSettings(time_step=values.pop("time_step_s"), **values)


def field_message(query: FieldQuery, reference: scene_pb2.SceneRef) -> distance_pb2.FieldRequest:
    """Asks for the distances in a box near what is stored."""
    return distance_pb2.FieldRequest(
        scene_ref=reference,
        pose=world_pb2.Pose(values=query.pose.tolist()),
        size=query.size.tolist(),
        voxel_size=query.voxel_size,
        environment=query.environment,
        max_distance=query.max_distance,
        semantics=_SEMANTICS[query.semantics],
    )
