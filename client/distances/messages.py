"""Queries of distances -> messages of the contract."""

from __future__ import annotations

from lumigrad.client.distances.query import FieldQuery
from lumigrad.client.settings.distances import DistanceSemantics, DistanceSettings
from lumigrad.v1 import distance_pb2, scene_pb2, world_pb2

_SEMANTICS: dict[DistanceSemantics, distance_pb2.DistanceSemantics] = {
    "exact": distance_pb2.DISTANCE_SEMANTICS_EXACT,
    "curobo": distance_pb2.DISTANCE_SEMANTICS_CUROBO,
    "curobo_field": distance_pb2.DISTANCE_SEMANTICS_CUROBO_FIELD,
}
_REDUCTIONS = {"sum": distance_pb2.REDUCTION_SUM, "max": distance_pb2.REDUCTION_MAX}


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
