"""Has the emulated device do its work as late as a GPU may: when the host waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Functions that read no values of a tensor; they may be called while work is queued.
_ATTRIBUTES = {
    "__get__",
    "dim",
    "size",
    "stride",
    "numel",
    "data_ptr",
    "is_contiguous",
    "__dlpack__",
    "__dlpack_device__",
}
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided"}
_VIEWS = {"view", "expand", "detach", "unsqueeze", "squeeze", "unbind", "split", "permute"}
# Functions for which the host would wait for a GPU; all others would be queued.
_READS = {"tolist", "item", "cpu", "numpy", "nonzero", "__int__", "__float__", "__bool__", "__index__"}
_PLAIN_INDICES = int, slice, type(None), type(Ellipsis)


@contextmanager
def deferred(native: ModuleType) -> Iterator[StreamOrder]:
    """Defers kernels of `native` until the host needs their results, and then runs only what it waits for.

    Tensors on the CPU are the memory of the emulated device. As on a GPU, functions of torch run after the queued work,
    and the memory of freed tensors is not reused before.
    """
    order = StreamOrder(native)
    native.set_deferred(True)
    try:
        with order:
            yield order
    finally:
        # `order` is still active: it keeps the tensors that queued work uses.
        native.set_deferred(False)


class StreamOrder(TorchFunctionMode):
    """Waits for the device before torch reads or writes a tensor, and keeps all tensors until then."""

    def __init__(self, native: ModuleType) -> None:
        super().__init__()
        self._native = native
        self._waits = 0
        self._kept: list[object] = []

    def take_waits(self) -> int:
        """Returns how often the host would have waited for a GPU since the last call."""
        waits, self._waits = self._waits + self._native.take_waits(), 0
        return waits

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not _may_overtake(function.__name__, args):
            self._waits += self._native.take_waits() + (function.__name__ in _READS)
            self._native.synchronize()
            self._native.take_waits()
            self._kept.clear()
        result = function(*args, **(kwargs or {}))
        self._kept.append((result, args))
        return result


def _may_overtake(name: str, args: Sequence[Any]) -> bool:
    if name in _ATTRIBUTES or name in _ALLOCATIONS or name in _VIEWS:
        return True
    if name == "contiguous":
        return bool(args[0].is_contiguous())
    if name == "__getitem__":
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(isinstance(index, _PLAIN_INDICES) for index in indices) and isinstance(args[0], torch.Tensor)
    return False
