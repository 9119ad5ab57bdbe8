"""The meta.json of a SOG scene, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.errors import InvalidArgument

Array = npt.NDArray[Any]

LEVELS = 256
# Version 1's bounds for all channels are repeated for each channel.
_BOUND_COUNTS = {"means": 3, "scales": 3, "sh0": 4, "shN": 3}


class SogMeta:
    """The values of a meta.json, by entry: "means", "scales", "quats", "sh0", "shN".

    Version 1 has bounds where version 2 has code books.

    Attributes:
        version: 1 or 2.
        count: number of Gaussians.
        antialiased: whether it was trained with antialiasing.
    """

    def __init__(self, values: Any, fail: Callable[[str], InvalidArgument]) -> None:
        self._fail = fail
        if not isinstance(values, dict):
            raise fail(f"expected an object in meta.json, got {type(values).__name__}")
        self._values = values
        self.version = values.get("version", 1)
        if self.version not in (1, 2):
            raise fail(f"expected version 1 or 2 in meta.json, got {self.version!r}")
        shape = self._entry("means").get("shape") if self.version == 1 else [values.get("count")]
        count = shape[0] if isinstance(shape, list) and shape else None
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise fail(f"expected a number of Gaussians >= 1 in meta.json, got {count!r}")
        self.count = count
        self.antialiased = values.get("model") == "antialiased" or values.get("antialias") is True

    def has(self, entry: str) -> bool:
        """Whether an entry exists."""
        return self._values.get(entry) is not None

    def file(self, entry: str, place: int) -> str:
        """Returns the file name of one of an entry's images."""
        files = self._entry(entry).get("files")
        name = files[place] if isinstance(files, list) and len(files) > place else None
        if not isinstance(name, str):
            raise self._fail(f"expected at least {place + 1} file names in {entry}.files of meta.json, got {files!r}")
        return name

    def between(self, entry: str, channel: int, fractions: Array) -> Array:
        """Interpolates between an entry's lower and upper bound."""
        low, high = (self._numbers(entry, name, _BOUND_COUNTS[entry])[channel] for name in ("mins", "maxs"))
        return np.asarray(low + (high - low) * fractions)

    def decode(self, entry: str, levels: Array) -> Array:
        """Returns the values of an entry's levels 0 to 255 [..., 3]."""
        if self.version == 1:
            channels = [self.between(entry, channel, levels[..., channel] / 255.0) for channel in range(3)]
            return np.stack(channels, axis=-1)
        return np.asarray(self._numbers(entry, "codebook", LEVELS)[levels])

    def degree(self, coefficients: int) -> int:
        """Returns the degree of the harmonics, from the meta.json or in version 1 from the size of a palette entry."""
        bands = round(math.sqrt(coefficients + 1)) - 1 if self.version == 1 else self._entry("shN").get("bands")
        if bands not in (1, 2, 3):
            raise self._fail(f"expected shN.bands 1, 2 or 3 in meta.json, got {bands!r}")
        return int(bands)

    def palette_count(self, room: int) -> int:
        """Returns the number of entries in the palette of harmonics."""
        count = room if self.version == 1 else self._entry("shN").get("count")
        if not isinstance(count, int) or count < 1:
            raise self._fail(f"expected shN.count >= 1 in meta.json, got {count!r}")
        return count

    def _entry(self, entry: str) -> dict[str, Any]:
        values = self._values.get(entry)
        if not isinstance(values, dict):
            raise self._fail(f"expected an object {entry!r} in meta.json, got {type(values).__name__}")
        return values

    def _numbers(self, entry: str, name: str, count: int) -> Array:
        values = self._entry(entry).get(name)
        listed = values if isinstance(values, list) else [values] * count
        # Code books of one early writer start with null instead of the next value.
        if name == "codebook" and len(listed) > 1 and listed[0] is None:
            listed = [listed[1], *listed[1:]]
        numbers = [value for value in listed[:count] if isinstance(value, (int, float))]
        if len(numbers) < count:
            raise self._fail(f"expected {count} numbers in {entry}.{name} of meta.json")
        # JSON integers may exceed the range of float.
        return np.array([float(value) if abs(value) < 1e300 else math.inf for value in numbers])
