"""gsplat's dictionary of intermediate results; the lists of tiles in it are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any


class Meta(dict[str, Any]):
    """A dict some of whose values are functions of no arguments until they are read."""

    def __init__(self, values: dict[str, Any], later: dict[str, Callable[[], Any]]) -> None:
        super().__init__({**values, **{name: _Later(compute) for name, compute in later.items()}})

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, _Later):
            value = value.compute()
            self[name] = value
        return value

    def __iter__(self) -> Iterator[str]:
        # Its presence alone keeps dict(meta) and {**meta} from copying values that nobody has read.
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """As of any dict."""
        try:
            return self[name]
        except KeyError:
            return default

    def pop(self, name: str, *default: Any) -> Any:
        """As of any dict."""
        if name in self:
            _ = self[name]
        return super().pop(name, *default)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """As of any dict; computes all of them."""
        return dict(self).values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """As of any dict; computes all of them."""
        return dict(self).items()

    def copy(self) -> dict[str, Any]:
        """As of any dict; computes all values."""
        return dict(self)


class _Later:
    """A value that nobody has read."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute
