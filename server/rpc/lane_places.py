"""Places in lanes for the tensors of replies that native jobs write."""

from __future__ import annotations

from typing import NamedTuple

from lumigrad.protos.dtypes import Array
from lumigrad.server.core.record import StageTimes
from lumigrad.server.engines.prepared import PreparedReply
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.shm.payload import OpenLane


class Place(NamedTuple):
    """Memory of a call's lane for all outputs of a reply, and the reply's bytes before its timings.

    The caller must call `lane.end` at the end of the call.
    """

    lane: OpenLane
    memory: Array
    head: bytes


def place_by(lanes: Lanes, name: str, tenant: str, prepared: PreparedReply) -> Place | None:
    """Lease a place from the lane that a call names; None if the lane is lost or has no room."""
    lane = lanes.find(name, tenant, StageTimes())
    place = None
    try:
        place = None if lane is None else place_in(lane, prepared)
    finally:
        if lane is not None and place is None:
            lane.end(delivered=False)
    return place


def place_in(lane: OpenLane, prepared: PreparedReply) -> Place | None:
    """Lease a place from an open lane; None if it has no room."""
    leased = lane.lease(prepared.payload_bytes)
    if leased is None:
        return None
    region, memory = leased
    return Place(lane, memory, prepared.head_in(region))
