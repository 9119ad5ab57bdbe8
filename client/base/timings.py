"""The timings of a call, and gradients by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from lumigrad.client.base.arrays import Array, NamedArrays
from lumigrad.v1 import timings_pb2


@dataclass(frozen=True)
class Timings:
    """Durations in milliseconds, measured by the worker, and the round trip, measured by the client.

    Attributes:
        stages: durations by stage, e.g. "queue", "upload", "kernel.blend", "download".
        worker_ms: time from the arrival of the request to the last byte of the reply.
        round_trip_ms: time that the caller waited, transport included.
    """

    stages: Mapping[str, float] = field(default_factory=dict)
    worker_ms: float = 0.0
    round_trip_ms: float = 0.0

    def __post_init__(self) -> None:
        vars(self)["stages"] = MappingProxyType(dict(self.stages))

    def __reduce__(self) -> tuple[type[Timings], tuple[dict[str, float], float, float]]:
        """Pickles the stages as a dict, since Python can neither pickle nor copy mapping proxies."""
        return Timings, (dict(self.stages), self.worker_ms, self.round_trip_ms)

    @property
    def kernel_ms(self) -> float:
        """The sum of the kernel stages."""
        return sum(value for name, value in self.stages.items() if name.startswith("kernel."))

    def __getattr__(self, name: str) -> Any:
        # Stages are parsed on first access: few callers need them, and parsing would double the time of a short reply.
        if name != "stages" or "_message" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        message = timings_pb2.Timings.FromString(vars(self)["_message"])
        stages = MappingProxyType({stage.name: stage.milliseconds for stage in message.stages})
        vars(self)["stages"] = stages
        return stages

    @staticmethod
    def of(message: timings_pb2.Timings | None, round_trip_ms: float) -> Timings:
        """Reads the worker's message; None: the worker reported no timings."""
        if message is None:
            return Timings(round_trip_ms=round_trip_ms)
        timings = object.__new__(Timings)
        raw, worker_ms = message.SerializeToString(), message.total_milliseconds
        vars(timings).update(_message=raw, worker_ms=worker_ms, round_trip_ms=round_trip_ms)
        return timings


class Gradients(NamedArrays):
    """Gradients of a loss, float32, as items and as attributes; only requested ones are present.

    Per sphere: `positions` [N, 3], `colors` [N, K], `radii` [N], `opacities` [N], summed over the cameras. Per
    Gaussian: `means`, `quats`, `scales`, `covariances`, `opacities`, `sh` and `colors`, shaped as in the scene. If
    these were requested as `sparse`, they hold only nonzero rows, and `index` [M] (int64, ascending) has the indices of
    the rows, which continue from scene to scene. Colours per camera stay dense. For scenes with levels of detail they
    are always sparse, and `index` counts the rows of page 0 level 0, then of its level 1 and so on, then of page 1.

    Of the settings: `background` [K] (for Gaussians [C, K] if it was passed like that), `gamma` [], `transforms`
    [T, 4, 4] and, if any of them moves, `transforms_end` [T, 4, 4], which is 0 for those that do not.

    Per camera, without the axis C if a single camera was rendered: for Pulsar's cameras `cameras`
    [C, 8 | 10 | 11 | 13]; for OpenCV's `camera_rotation` [C, 3, 3], `camera_translation` [C, 3] and
    `camera_intrinsics` [C, 4] (fx, fy, cx, cy), with Gaussians also `camera_pose` [C, 6] (of a motion exp(xi) in front
    of the view matrix, translation before rotation); for sensors the same names for the start of the exposure and, with
    the suffix `_end`, for its end, and with `wanted=["lenses"]` those of `lens_radial`, `lens_tangential`,
    `lens_thin_prism`, `lens_angle_to_pixel_distance`, `lens_pixel_distance_to_angle`, `lens_linear`,
    `windshield_horizontal` and `windshield_vertical` [C, k] that the lens has, or for lidars `lidar_elevations` and
    `lidar_offsets` [C, H] and `lidar_azimuths` [C, W]; for Inria's `camera_view` and `camera_projection` [C, 4, 4] and
    `camera_position` [C, 3]. For projected centres of Gaussians, in pixels: `means2d` [C, N, 2], and the sums of
    absolute values `means2d_abs`.

    Of distances: `spheres` shaped as the spheres (centres, radii), `poses` [I, 7] of all obstacles, including the
    normalisation of their quaternions, `weight` [].

    Attributes:
        timings: the timings of the call that computed them.
    """

    _advice: ClassVar[str] = "name what you need in backward(wanted=…)"

    def __init__(self, arrays: Mapping[str, Array], timings: Timings) -> None:
        super().__init__(arrays)
        self.timings = timings
