"""Arrays by name: a read-only mapping whose items are attributes too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy.typing as npt

Array = npt.NDArray[Any]


class NamedArrays(Mapping[str, Array]):
    """`arrays["color"]` and `arrays.color` are the same; the error for a missing name says what there is."""

    # What to do about a missing name.
    _advice: ClassVar[str] = ""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = MappingProxyType(dict(arrays))

    def __getitem__(self, name: str) -> Array:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(self._missing(name)) from None

    def __getattr__(self, name: str) -> Array:
        # Only called for names that are no ordinary attributes; "_arrays" is missing while unpickling.
        if not name.startswith("_") and name in self._arrays:
            return self._arrays[name]
        raise AttributeError(self._missing(name) if not name.startswith("_") else name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._arrays]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in self._arrays.items())
        return f"{type(self).__name__}({shapes})"

    def _missing(self, name: str) -> str:
        return f'no "{name}" here, only {", ".join(self._arrays) or "nothing"}; {self._advice}'
