"""Converts scenes with levels of detail to protobuf messages; rows of Gaussians are read while they are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2

# Values in a row besides the spherical harmonics, which have 3 channels.
_VALUES = 11
_CHANNELS = 3


def levels_arrays(levels: GaussianLevels) -> Mapping[str, Array]:
    """Returns the tensors of a scene by name: its tables, and the digests of all rows, which the first call reads."""
    kept: dict[str, Array] | None = vars(levels).get("_arrays")
    if kept is None:
        digests = [np.frombuffer(hashlib.sha256(rows).digest(), np.uint8) for rows in _all_rows(levels)]
        kept = {
            "bounds": np.ascontiguousarray(levels.bounds, np.float32),
            "counts": np.ascontiguousarray(levels.counts, np.int64),
            "errors": np.ascontiguousarray(levels.errors, np.float32),
            "digests": np.reshape(digests, (*levels.counts.shape, -1)),
        }
        vars(levels)["_arrays"] = kept
    return kept


def levels_message(levels: GaussianLevels, payload: PayloadWriter) -> scene_pb2.GaussianLevels:
    """Returns the message of a scene, which fills `payload` with its tensors and then its rows."""
    message = scene_pb2.GaussianLevels(sh_degree=levels.sh_degree)
    for name, array in levels_arrays(levels).items():
        getattr(message, name).CopyFrom(payload.add_to_payload(array))
    payload.end_with(_all_rows(levels), int(levels.counts.sum()) * _row_bytes(levels))
    return message


def _row_bytes(levels: GaussianLevels) -> int:
    return 4 * (_VALUES + _CHANNELS * (levels.sh_degree + 1) ** 2)


def _all_rows(levels: GaussianLevels) -> Iterator[memoryview]:
    """Yields the rows of each level of each page, as they are sent."""
    for page in range(len(levels)):
        for level in range(levels.levels):
            yield _rows(levels, page, level)


def _rows(levels: GaussianLevels, page: int, level: int) -> memoryview:
    gaussians = levels.read(page, level)
    tensors = [getattr(gaussians, name) for name in ("means", "quats", "scales", "opacities", "sh")]
    rows = np.concatenate([np.empty(0, np.float32) if it is None else it.reshape(-1) for it in tensors])
    expected = int(levels.counts[page, level]) * _row_bytes(levels)
    if rows.nbytes != expected:
        text = f"expected {levels.counts[page, level]} Gaussians with quats, scales and sh of degree {levels.sh_degree}"
        raise InvalidArgument.of("levels", f"{text} at page {page}, level {level}, got {gaussians}")
    return rows.view(np.uint8).data
