"""Long work in slices, between which other jobs run; and the device time of all jobs of a call together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from lumigrad.kernels.steps import Steps
from lumigrad.server.core.errors import CancelledError, DeviceMemoryError, DeviceTimeError
from lumigrad.server.device import jobs
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.device.transfer import Delivery, Download
from support.workers.held_device import StandInCall
from support.workers.slow_render import wait_until

CPU = torch.device("cpu")
MIB = 1 << 20
SECONDS = 100.0


@pytest.fixture
def memory() -> DeviceMemory:
    return DeviceMemory(CPU, 512 * MIB)


@pytest.fixture
def limit_seconds() -> float:
    """The device time that a call may take."""
    return math.inf


@pytest.fixture
def executor(memory: DeviceMemory, monkeypatch: pytest.MonkeyPatch, limit_seconds: float) -> Iterator[DeviceExecutor]:
    monkeypatch.setattr(jobs, "_SLICE_SECONDS", 0.0)
    made = DeviceExecutor(CPU, memory, 16, has_tenants=True, limit_seconds=limit_seconds)
    yield made
    made.close()


class Long:
    """Work in steps, each of which a test allows."""

    def __init__(self, steps: int, result: str = "done") -> None:
        self.may_go_on = threading.Semaphore(0)
        self.begun = 0
        self.tried = 0
        self.done = 0
        self._steps = steps
        self._result = result

    def begin(self) -> Steps[Delivery[str]]:
        self.begun += 1
        for _ in range(self._steps):
            yield
            self.tried += 1
            assert self.may_go_on.acquire(timeout=SECONDS)
            self.done += 1
        return Delivery(self._result, Download([]))


class Asking(threading.Thread):
    """A thread that waits for something, and keeps its result or error."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.result: object = None
        self._work = work
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.result = error


def test_others_run_between_the_slices_of_long_work(executor: DeviceExecutor) -> None:
    long, order = Long(3), []
    asked = Asking(lambda: executor.deliver_steps(long.begin, StandInCall("a"), Cost(bytes=MIB)))  # type: ignore[arg-type]
    for number in range(2):
        wait_until(lambda n=number: long.tried == n + 1, "the next step")  # type: ignore[misc]
        other = Asking(lambda n=number: executor.run(lambda: order.append((n, long.done)), StandInCall("b")))  # type: ignore[misc, arg-type]
        wait_until(lambda: executor.queue.depth >= 1, "the other's job in the queue")
        long.may_go_on.release()
        other.join(SECONDS)
    long.may_go_on.release()
    asked.join(SECONDS)
    assert asked.result == "done" and long.begun == 1
    assert order == [(0, 1), (1, 2)]


def test_what_long_work_has_allocated_counts_between_its_slices(executor: DeviceExecutor, memory: DeviceMemory) -> None:
    long, cost, seen = Long(2), Cost(bytes=300 * MIB, payload_bytes=100 * MIB), []
    asked = Asking(lambda: executor.deliver_steps(long.begin, StandInCall("a"), cost))  # type: ignore[arg-type]
    wait_until(lambda: long.tried == 1, "the first step")

    def look() -> None:
        seen.append(memory.free_bytes)
        with pytest.raises(DeviceMemoryError):
            memory.make_room(Cost(bytes=400 * MIB))

    other = Asking(lambda: executor.run(look, StandInCall("b")))  # type: ignore[arg-type]
    wait_until(lambda: executor.queue.depth >= 1, "the other's job in the queue")
    for _ in range(2):
        long.may_go_on.release()
    other.join(SECONDS)
    asked.join(SECONDS)
    assert asked.result == "done" and other.result is None
    assert seen == [312 * MIB]
    assert memory.free_bytes == 512 * MIB


def test_work_whose_call_ends_between_slices_gives_its_memory_back(
    executor: DeviceExecutor, memory: DeviceMemory
) -> None:
    long, call = Long(2), StandInCall("a")
    asked = Asking(lambda: executor.deliver_steps(long.begin, call, Cost(bytes=300 * MIB)))  # type: ignore[arg-type]
    wait_until(lambda: long.tried == 1, "the first step")
    other = Asking(lambda: executor.run(call.cancel, StandInCall("b")))  # type: ignore[arg-type]
    wait_until(lambda: executor.queue.depth >= 1, "the other's job in the queue")
    long.may_go_on.release()
    other.join(SECONDS)
    asked.join(SECONDS)
    assert isinstance(asked.result, CancelledError)
    assert long.done == 1
    assert memory.free_bytes == 512 * MIB


def test_work_that_fails_is_begun_anew_if_it_runs_again(executor: DeviceExecutor) -> None:
    begun = []

    def begin() -> Steps[Delivery[str]]:
        begun.append(1)
        yield
        if len(begun) == 1:
            raise MemoryError
        return Delivery("done", Download([]))

    cost = Cost(bytes=MIB, is_repeatable=True)
    assert executor.deliver_steps(begin, StandInCall("a"), cost) == "done"  # type: ignore[arg-type]
    assert len(begun) == 2


@pytest.mark.parametrize("limit_seconds", [0.5])
def test_a_call_has_one_limit_of_device_time_for_all_its_jobs(executor: DeviceExecutor) -> None:
    call, ran = StandInCall("a"), 0
    assert executor.run(lambda: 1, call) == 1  # type: ignore[arg-type]
    with pytest.raises(DeviceTimeError):
        for _ in range(20):
            executor.run(lambda: time.sleep(0.15), call)  # type: ignore[arg-type]
            ran += 1
    assert ran <= 4
    assert executor.run(lambda: 1, StandInCall("a")) == 1  # type: ignore[arg-type]
