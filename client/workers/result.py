"""Results of workers: arrays and their forward states, and the merging of results that were computed in parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from lumigrad.client.base.arrays import Array, NamedArrays
from lumigrad.client.base.timings import Gradients, Timings
from lumigrad.client.errors import LumigradError
from lumigrad.client.transport.call import Call, Cancellable
from lumigrad.client.transport.connection import Reply
from lumigrad.client.wire.scenes import named_tensors
from lumigrad.client.workers.attempts import RoutedAttempts, Source
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.routing import Subject
from lumigrad.client.workers.worker import Context, Kept
from lumigrad.protos.tensors import PayloadWriter

R = TypeVar("R", bound="Result")
# Stands for values that were dropped.
_ZERO = np.zeros((), np.float32)


class Result(NamedArrays, Cancellable):
    """The arrays of a reply, as items and as attributes.

    A result can be copied and pickled. A copy lacks the forward state, which stays with the original; a pickled result
    also lacks the client, so only its arrays are left.

    Attributes:
        request: the request of the call.
        timings: the timings of the call.
    """

    # The results of the individual workers, if several computed this one.
    _parts: Sequence[Result] = ()

    def __init__(
        self, workers: Pool, request: Any, arrays: Mapping[str, Array], kept: Kept | None, timings: Timings
    ) -> None:
        """Stores the arrays; `kept` is the forward state on the worker, or None."""
        super().__init__(arrays)
        self.timings = timings
        self.request = request
        self._workers = workers
        self._context = Context(self, kept)

    def __getattr__(self, name: str) -> Array:
        if name == "_workers":
            kind = type(self).__name__
            raise LumigradError(f"this {kind} was unpickled and belongs to no client; ask a client again for gradients")
        return super().__getattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes except the forward state, which has one owner, and the client, tied to its process."""
        own = ("_workers", "_context", "_cancellation")
        return {name: value for name, value in super().__getstate__().items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._context = Context(self, None)

    def __copy__(self: R) -> R:
        """Returns a copy with the same arrays and client but no forward state, so its backward recomputes that."""
        return self._with(self.__getstate__() | {"_parts": [copy(part) for part in self._parts]})

    def __deepcopy__(self: R, memo: dict[int, Any]) -> R:
        return self._with(deepcopy(self.__getstate__(), memo))

    def _with(self: R, state: dict[str, Any]) -> R:
        made = object.__new__(type(self))
        made.__setstate__(state)
        vars(made).update({"_workers": self._workers} if "_workers" in vars(self) else {})
        return made

    def __enter__(self: R) -> R:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the forward state on the worker without waiting, as the end of a `with` block does.

        `backward` still works but recomputes the state.

        Example:
            with client.render(scene, camera, retain=True) as frame:  # released at the end
                gradients = frame.backward(frame.color - 0.5)
        """
        self._context.release()
        for part in self._parts:
            part.release()

    def _differentiate(
        self,
        service: str,
        subject: Subject,
        blank: Any,
        again: Callable[[Any, Source | None, PayloadWriter], None],
        output_gradients: Mapping[str, Array],
        call: Call,
        release: bool,
        most_reply_bytes: float,
    ) -> Reply[Any]:
        """Computes gradients from the forward state, which the worker recomputes if there is none.

        `service` names the stub whose Backward is called. `blank` is the request without the parts that depend on the
        worker; `again` adds the inputs of the forward pass to its spec, given the worker's reference to the scene. With
        `release` the worker drops the forward state. The gradients have at most `most_reply_bytes`.
        """
        attempts = RoutedAttempts(
            self._workers, subject, call, context=self._context, to_release=release, any_version=True
        )

        def build(payload: PayloadWriter) -> Any:
            request, kept = type(blank)(), attempts.kept
            request.CopyFrom(blank)
            if kept is None:
                again(request.spec, attempts.source, payload)
            else:
                request.spec.context_id, request.spec.release = kept.context_id, release
            request.spec.output_gradients.extend(named_tensors(output_gradients, payload))
            return request

        while True:
            with attempts as worker:
                method = getattr(worker.connection, service).Backward
                return worker.connection.exchange(method, build, attempts.call, most_reply_bytes)


def forget_values(result: Result) -> None:
    """Drops the arrays of a result's inputs and outputs; the outputs' shapes and the forward state remain.

    Before backward, `request` must be set to an equal request, since the worker may have to recompute the state.
    """
    result.request = None
    arrays = {name: np.broadcast_to(_ZERO, array.shape) for name, array in result.items()}
    result._arrays = MappingProxyType(arrays)


T = TypeVar("T")


def portions(count: int, parts: int) -> list[slice]:
    """Divides `count` items into slices whose lengths differ by at most one."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [slice(begin, end) for begin, end in pairwise(bounds)]


def together(asks: Sequence[Callable[[], T]]) -> list[T]:
    """Runs functions in parallel and returns their results; raises the first error after all have ended."""
    with ThreadPoolExecutor(len(asks), "lumigrad part") as pool:
        return [future.result() for future in [pool.submit(ask) for ask in asks]]


def slowest(timings: Sequence[Timings]) -> Timings:
    """Returns, for parts that ran at the same time, the longest duration of each stage."""
    names = dict.fromkeys(name for part in timings for name in part.stages)
    stages = {name: max(part.stages.get(name, 0.0) for part in timings) for name in names}
    return Timings(
        stages,
        max(part.worker_ms for part in timings),
        max(part.round_trip_ms for part in timings),
    )


def added(parts: Sequence[Gradients], rows: Collection[str], joined: Collection[str], axis: int = 0) -> Gradients:
    """Adds up the gradients of parts.

    Args:
        parts: the gradients of each part, in order.
        rows: names of arrays with a row per primitive, which are sparse if there is an "index".
        joined: names of arrays that are concatenated along `axis`; all others are summed.
        axis: the axis of concatenation.
    """
    first = parts[0]
    index = np.unique(np.concatenate([part["index"] for part in parts])) if "index" in first else None
    arrays: dict[str, Array] = {}
    for name in first:
        found = [part[name] for part in parts]
        if name == "index":
            assert index is not None
            arrays[name] = index
        elif name in joined:
            arrays[name] = np.concatenate(found, axis)
        elif index is not None and name in rows:
            arrays[name] = _summed_rows(index, [part["index"] for part in parts], found)
        else:
            total = found[0] + found[1]
            for array in found[2:]:
                total += array
            arrays[name] = total
    return Gradients(arrays, slowest([part.timings for part in parts]))


def _summed_rows(index: Array, indices: Sequence[Array], rows: Sequence[Array]) -> Array:
    total = np.zeros((len(index), *rows[0].shape[1:]), rows[0].dtype)
    for mine, values in zip(indices, rows, strict=True):
        # Both indices are ascending and without duplicates.
        total[np.searchsorted(index, mine)] += values
    return total
