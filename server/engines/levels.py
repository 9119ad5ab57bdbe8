"""Tables of scenes with levels of detail: what their pages contain, and where the rows of each level are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels import gaussians
from lumigrad.protos import dtypes
from lumigrad.protos.hashing import tensors_of
from lumigrad.protos.tensors import ALIGNMENT, PayloadReader, nbytes
from lumigrad.server.core.limits import Limits, arguments_of, require
from lumigrad.server.engines.content import Tensors, check_shape, check_type
from lumigrad.v1 import scene_pb2

KIND = "levels"
# The most Gaussians of one level of a page.
PAGE_ROWS = 65536
# The most levels over all pages: room for a billion Gaussians.
_MOST_BLOCKS = 1 << 20
# The most levels of a page, whose numbers are int8.
_MOST_LEVELS = 64
_MOST_DEGREE = 4
_DIGEST_BYTES = 32
_TYPES = {"bounds": dtypes.FLOAT32, "counts": dtypes.INT64, "errors": dtypes.FLOAT32, "digests": dtypes.UINT8}
# Values of a row besides its harmonics.
_VALUES = {"means": 3, "quats": 4, "scales": 3, "opacities": 1}
_CHANNELS = 3


def check_header(levels: scene_pb2.GaussianLevels, limits: Limits, field: str) -> int:
    """Check types and shapes of the tensors, whose path is `field`; returns the bytes before the rows."""
    tensors = dict(tensors_of(levels))
    for name, dtype in _TYPES.items():
        require(name in tensors, f"{field}.{name}", "a tensor", "none")
        check_type(tensors[name], f"{field}.{name}", dtype)
        expected, place = nbytes(tensors[name], f"{field}.{name}"), tensors[name].payload
        require(place.length == expected, f"{field}.{name}.payload", f"a span of {expected} bytes", place.length)
    counts = list(tensors["counts"].shape)
    is_fit = len(counts) == 2 and min(counts) >= 1 and counts[1] <= _MOST_LEVELS and prod(counts) <= _MOST_BLOCKS
    limit = f"shape [P, L] with L = 1 to {_MOST_LEVELS}, and 1 to {_MOST_BLOCKS} levels in all"
    require(is_fit, f"{field}.counts", limit, counts)
    one_for_all = [counts[0], 2, 3]
    if list(tensors["bounds"].shape) != one_for_all:
        check_shape(tensors["bounds"].shape, [*counts, 2, 3], f"{field}.bounds")
    check_shape(tensors["errors"].shape, counts, f"{field}.errors")
    check_shape(tensors["digests"].shape, [*counts, _DIGEST_BYTES], f"{field}.digests")
    degree = levels.sh_degree
    require(degree <= _MOST_DEGREE, f"{field}.sh_degree", f"0 to {_MOST_DEGREE}", degree)
    end = max(tensor.payload.offset + tensor.payload.length for tensor in tensors.values())
    most = sum(tensor.payload.length + ALIGNMENT for tensor in tensors.values())
    require(end <= min(most, limits.payload_bytes), field, f"tensors that lie in {most} bytes of the payload", end)
    return end + -end % ALIGNMENT


@dataclass(frozen=True, eq=False)
class LevelTable:
    """The pages of a scene.

    Attributes:
        bounds: [P, L, 2, 3] float32, lowest and highest corners of each level, scene units; they contain the bounds of
            finer levels.
        counts: [P, L] int64, rows of each level.
        errors: [P, L] float32, scene units.
        digests: [P, L, 32] uint8, SHA-256 of the rows.
        sh_degree: Degree of the spherical harmonics.
        table_bytes: The offset of the rows in the payload.
    """

    bounds: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    errors: npt.NDArray[np.float32]
    digests: npt.NDArray[np.uint8]
    sh_degree: int
    table_bytes: int

    @staticmethod
    def of(levels: scene_pb2.GaussianLevels, reader: PayloadReader, table_bytes: int, field: str) -> LevelTable:
        """Read the tensors of a checked header, and check their values."""
        arrays: dict[str, Any] = {
            name: reader.read(tensor, f"{field}.{name}").copy() for name, tensor in tensors_of(levels)
        }
        bounds, counts, errors = arrays["bounds"], arrays["counts"], arrays["errors"]
        if bounds.ndim < 4:
            bounds = arrays["bounds"] = np.repeat(bounds[:, None], counts.shape[1], axis=1)
        low, high = bounds[:, :, 0], bounds[:, :, 1]
        is_box = np.isfinite(bounds).all() and (low <= high).all()
        require(bool(is_box), f"{field}.bounds", "finite corners, the lowest first", "others")
        is_nested = (np.diff(low, axis=1) <= 0).all() and (np.diff(high, axis=1) >= 0).all()
        require(bool(is_nested), f"{field}.bounds", "boxes that contain those of finer levels", "others")
        least, most = int(counts.min()), int(counts.max())
        require(0 <= least <= most <= PAGE_ROWS, f"{field}.counts", f"0 to {PAGE_ROWS}", f"{least} to {most}")
        is_rising = np.isfinite(errors).all() and (errors >= 0).all() and (np.diff(errors, axis=1) >= 0).all()
        require(bool(is_rising), f"{field}.errors", "finite values >= 0 that do not fall from level to level", "others")
        return LevelTable(**arrays, sh_degree=levels.sh_degree, table_bytes=table_bytes)

    @property
    def bytes(self) -> int:
        """The memory of the table."""
        return (
            self.bounds.nbytes + self.counts.nbytes + 2 * self.starts.nbytes + self.errors.nbytes + self.digests.nbytes
        )

    @property
    def row_bytes(self) -> int:
        """The bytes of one Gaussian."""
        return 4 * (sum(_VALUES.values()) + _CHANNELS * self.coefficients)

    @property
    def coefficients(self) -> int:
        """Spherical harmonics per channel."""
        return (self.sh_degree + 1) ** 2

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """The number of the first row of each level, [P, L], among all rows in the order of the payload."""
        ends = np.cumsum(self.counts).reshape(self.counts.shape)
        return np.asarray(ends - self.counts, np.int64)

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return int(self.counts.sum())

    @property
    def payload_bytes(self) -> int:
        """The bytes of the whole payload."""
        return self.table_bytes + self.rows * self.row_bytes

    def offset(self, page: int, level: int) -> int:
        """Return the offset of a level's rows in the payload."""
        return self.table_bytes + int(self.starts[page, level]) * self.row_bytes

    def shapes(self, count: int) -> dict[str, list[int]]:
        """Return the tensor shapes of `count` rows, in their order in the payload."""
        shapes = {name: [count, length] if length > 1 else [count] for name, length in _VALUES.items()}
        return {**shapes, "sh": [count, self.coefficients, _CHANNELS]}

    def tensors(self, rows: torch.Tensor) -> Tensors:
        """Return views of the tensors in one level's rows, which are given as float32 [bytes / 4]."""
        shapes = self.shapes(4 * rows.numel() // self.row_bytes)
        parts = torch.split(rows, [prod(shape) for shape in shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def check_rows(self, rows: memoryview, field: str) -> None:
        """Check that values are finite, scales >= 0, opacities in [0, 1]."""
        with arguments_of(field):
            gaussians.check_values(gaussians.Gaussians(**self.tensors(torch.frombuffer(rows, dtype=torch.float32))))
