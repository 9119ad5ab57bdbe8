"""What Backward returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lumigrad.client.named_arrays import Array, NamedArrays
from lumigrad.client.timings import Timings


class Gradients(NamedArrays):
    """Gradients of a loss, float32, as items and as attributes; those that were wanted are present.

    Per sphere: `positions` [N, 3], `colors` [N, K], `radii` [N], `opacities` [N], summed over the cameras. If they were
    asked for as `sparse`, they hold only rows that are not zero, and `index` [M] (int64, ascending) says which.
    Others: `background` [K], `gamma` []. Per camera, without the axis C if a single camera was rendered: `cameras`
    [C, 8 | 10 | 11 | 13] for Pulsar's; `camera_rotation` [C, 3, 3], `camera_translation` [C, 3] and
    `camera_intrinsics` [C, 4] (fx, fy, cx, cy) for OpenCV's.

    Attributes:
        timings: of the call that computed them.
    """

    _advice: ClassVar[str] = "name what you need in backward(wanted=…)"

    def __init__(self, arrays: Mapping[str, Array], timings: Timings) -> None:
        super().__init__(arrays)
        self.timings = timings
