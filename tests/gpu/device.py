"""The measured device: a GPU, or for a dry run the emulated one, whose times mean nothing."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

Call = Callable[[int], object]
N = TypeVar("N", int, float, str)
# Number of views, or other inputs, that take turns; together they do not fit into a cache.
VARIANTS = 4
# The host waits for the device after this many rounds, so that the queue stays short and times are known.
_ROUNDS = 10


class Device:
    """A GPU ("cuda"), the emulated one ("emulation"), or the CPU's own engines ("cpu")."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The host computes, so sizes are small, and its clock measures the work.
        self.on_host = name != "cuda"
        self.torch = torch.device("cpu" if self.on_host else "cuda:0")
        self.warm, self.runs = (1, 2) if self.on_host else (20, 100)

    def size(self, whole: N, small: N) -> N:
        """A size of a case: `small` for a dry run."""
        return small if self.on_host else whole

    def tensor(self, values: Any) -> torch.Tensor:
        """Numbers on the device."""
        return torch.as_tensor(values).to(self.torch)

    def synchronize(self) -> None:
        """Waits for the device; raises what failed on it."""
        if not self.on_host:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """A point in the current stream."""
        if self.on_host:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, start: Any, stop: Any) -> float:
        """Milliseconds between two marks, once the device has passed them."""
        return float((stop - start) * 1e3 if self.on_host else start.elapsed_time(stop))

    @contextmanager
    def engines(self) -> Iterator[None]:
        """Has the CUDA engines take this device's tensors within the block; those of a GPU always do."""
        with ExitStack() as stack:
            if self.name == "emulation":
                _use_emulation(stack)
            yield


def _use_emulation(stack: ExitStack) -> None:
    from lumigrad.kernels import density, gaussians, meshes, spheres, training
    from support.backends import emulation
    from support.backends.engines import using

    native = emulation.load("_emulation")
    for package in (density, gaussians, meshes, spheres, training):
        engine = sys.modules[f"{package.__name__}.engine"].CudaEngine(native, 0, lambda: 0)
        stack.enter_context(using(package, engine))


@dataclass(frozen=True)
class Times:
    """The times of one call: milliseconds on the device, and of the host until it had queued the work."""

    median_ms: float
    p99_ms: float
    host_ms: float
    runs: int


def in_turns(
    device: Device, calls: Mapping[str, Call], *, prepare: Mapping[str, Call] | None = None, seconds: float = 6.0
) -> dict[str, Times]:
    """Times calls in turns, so that other work on the machine affects all of them.

    A call gets the number of its round, by which it chooses its inputs, or the result of its function in `prepare`,
    which is not timed. After `seconds` no more rounds are begun, but at least five are made.
    """
    before = prepare or {}
    for number in range(device.warm):
        for name, call in calls.items():
            call(before[name](number) if name in before else number)
    device.synchronize()
    marks: dict[str, list[tuple[Any, Any, float]]] = {name: [] for name in calls}
    until = time.perf_counter() + seconds
    for number in range(device.runs):
        if number % _ROUNDS == 0:
            device.synchronize()
        if number >= 5 and time.perf_counter() > until:
            break
        for name, call in calls.items():
            argument = before[name](number) if name in before else number
            start, host = device.mark(), time.perf_counter()
            call(argument)
            taken = (time.perf_counter() - host) * 1e3
            marks[name].append((start, device.mark(), taken))
    device.synchronize()
    return {name: _times(device, taken) for name, taken in marks.items()}


# Calls of one kind in a row; their total time gives that of one call when the device always has work.
IN_A_ROW = 20


@dataclass(frozen=True)
class Regimes:
    """Milliseconds of one call: alone, from the call to the end of its work, and as one of many in a row."""

    latency_ms: float
    throughput_ms: float


def regimes(device: Device, calls: Mapping[str, Call], *, seconds: float = 2.0) -> dict[str, Regimes]:
    """Times calls in both regimes, each of which treats all kinds alike: no host hides behind another call's work.

    The kinds take turns. After `seconds` for each regime no more turns are begun, but at least two are made.
    """
    alone = {name: partial(_alone, device, call) for name, call in calls.items()}
    rows = {name: partial(_row, device, call, device.size(IN_A_ROW, 2)) for name, call in calls.items()}
    latency, throughput = (_medians(device, each, seconds) for each in (alone, rows))
    return {name: Regimes(round(latency[name], 4), round(throughput[name], 4)) for name in calls}


def _medians(device: Device, takes: Mapping[str, Callable[[int], float]], seconds: float) -> dict[str, float]:
    """Median times by name, without a first turn that warms up."""
    for take in takes.values():
        take(0)
    taken: dict[str, list[float]] = {name: [] for name in takes}
    until = time.perf_counter() + seconds
    for number in range(device.runs):
        if number >= 2 and time.perf_counter() > until:
            break
        for name, take in takes.items():
            taken[name].append(take(number))
    return {name: statistics.median(times) for name, times in taken.items()}


def _alone(device: Device, call: Call, number: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    call(number)
    device.synchronize()
    return (time.perf_counter() - start) * 1e3


def _row(device: Device, call: Call, count: int, number: int) -> float:
    device.synchronize()
    start = time.perf_counter()
    for one in range(count):
        call(number * count + one)
    device.synchronize()
    return (time.perf_counter() - start) * 1e3 / count


def _times(device: Device, marks: list[tuple[Any, Any, float]]) -> Times:
    times = sorted(device.milliseconds(start, stop) for start, stop, _ in marks)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    host = statistics.median(taken for _, _, taken in marks)
    return Times(round(statistics.median(times), 4), round(p99, 4), round(host, 4), len(times))
