"""A box of voxels in which distances are asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lumigrad.client.arguments import number, whole_number
from lumigrad.client.arrays import Float32, Float64, float64_array
from lumigrad.client.distance_query import Surroundings, check_surroundings
from lumigrad.client.distance_settings import DistanceSemantics
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.named_arrays import Array
from lumigrad.client.obstacle import MAX_ENVIRONMENTS
from lumigrad.client.pose import pose_array


@dataclass(frozen=True)
class FieldQuery:
    """One call of field.

    Attributes:
        world: as for a query.
        pose: [7] of the centre of the box.
        size: [3] edges of the box, metres.
        voxel_size: edge of a voxel, metres.
        environment: the one to look at.
        max_distance: how far to look, metres; None: any distance.
        semantics: "exact", or "curobo_field" for cuRobo's floor.
    """

    world: Surroundings
    pose: Float64
    size: Float64
    voxel_size: float
    environment: int = 0
    max_distance: float | None = None
    semantics: DistanceSemantics = "exact"

    def __post_init__(self) -> None:
        check_surroundings(self.world)
        values = {
            "pose": pose_array("pose", self.pose),
            "size": float64_array("size", self.size, (3,)),
            "voxel_size": number("voxel_size", self.voxel_size),
            "environment": whole_number("environment", self.environment, 0, MAX_ENVIRONMENTS - 1),
            "max_distance": None if self.max_distance is None else number("max_distance", self.max_distance),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.semantics not in ("exact", "curobo_field"):
            raise InvalidArgument.of("semantics", f'expected "exact" or "curobo_field", got {self.semantics!r}')

    def outward(self, values: Array) -> Float32:
        """What the worker returns, positive outside in every semantics."""
        if not np.isfinite(values).all():
            raise InvalidArgument.of(
                "max_distance", f"expected a largest distance, since there is nothing in environment {self.environment}"
            )
        return np.asarray(values if self.semantics == "exact" else -values, np.float32)
