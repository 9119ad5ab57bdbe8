"""Times of one kind of call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lumigrad.client.timings import Timings

_MOST = 200
_LEAST = 3


@dataclass(frozen=True)
class Measurement:
    """One line of the result.

    Attributes:
        what: e.g. "render 512x512".
        calls: that were timed.
        median_ms: of a call, as the client waits for it.
        p90_ms: likewise.
        kernel_ms: median of what the worker's kernels took of it; None: it computes nothing.
        rest_ms: median of all else: the network, queues, copies and conversions.
        bytes: payload of a call, where that is what is measured.
        mib_per_s: of that payload, at the median.
    """

    what: str
    calls: int
    median_ms: float
    p90_ms: float
    kernel_ms: float | None = None
    rest_ms: float | None = None
    bytes: int | None = None
    mib_per_s: float | None = None


def measure(what: str, call: Callable[[], Timings | None], seconds: float, nbytes: int | None = None) -> Measurement:
    """Makes a call again and again.

    Args:
        what: the line's name.
        call: makes one; returns what the worker says of it, if anything.
        seconds: for how long; at least three calls, at most 200, after one that is not counted.
        nbytes: payload of a call, if that is what is measured.
    """
    call()
    waited: list[float] = []
    kernels: list[float] = []
    until = time.perf_counter() + seconds
    while len(waited) < _LEAST or (len(waited) < _MOST and time.perf_counter() < until):
        began = time.perf_counter()
        timings = call()
        waited.append((time.perf_counter() - began) * 1e3)
        if timings is not None:
            kernels.append(timings.kernel_ms)
    median, p90 = (float(value) for value in np.percentile(waited, (50, 90)))
    rest = [whole - kernel for whole, kernel in zip(waited, kernels, strict=False)]
    return Measurement(
        what,
        len(waited),
        median,
        p90,
        float(np.median(kernels)) if kernels else None,
        float(np.median(rest)) if kernels else None,
        nbytes,
        None if nbytes is None else nbytes / 2**20 / (median / 1e3),
    )
