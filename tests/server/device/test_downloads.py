"""Results on their way to the host: complete, in order and given back, while the device goes on with other calls."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.errors import Stopped
from lumigrad.server.core.call import Priority
from lumigrad.server.core.errors import CancelledError, DeviceMemoryError, StoppingError
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.device.transfer import CudaTransfer, Delivery
from support.backends.emulated_copies import EmulatedCopies, emulated_transfer
from support.threads import run_at_once
from support.workers.held_device import StandInCall, held
from support.workers.slow_render import wait_until

CPU = torch.device("cpu")
LOST = "CUDA error: an illegal memory access was encountered"


class Device:
    """An executor, and the transfers of an emulated device whose copies a test delays."""

    def __init__(self, capacity_bytes: int = 1 << 30) -> None:
        self.copies = EmulatedCopies()
        self.transfer: CudaTransfer = emulated_transfer(self.copies)
        self.lost: list[BaseException] = []
        memory = DeviceMemory(CPU, capacity_bytes, transfer=self.transfer)
        self.executor = DeviceExecutor(CPU, memory, queue_size=16, has_tenants=True, on_lost=self.lost.append)

    def work(self, value: float, ran: list[float] | None = None, count: int = 1000) -> Callable[[], Delivery[Any]]:
        """Work whose result is an array of the value; notes the value in `ran`."""

        def run() -> Delivery[Any]:
            if ran is not None:
                ran.append(value)
            download = self.transfer.start_download([torch.full((count,), value)])
            return Delivery(download.arrays[0], download)

        return run


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.copies.go.set()
    made.executor.close()
    assert made.copies.mistakes == []


class Asked:
    """Work whose result is delivered to a thread of its own."""

    def __init__(
        self, device: Device, work: Callable[[], Delivery[Any]], cost: Cost | None = None, tenant: str = ""
    ) -> None:
        self.call = StandInCall(tenant)
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(device, work, cost))
        self._thread.start()

    def _run(self, device: Device, work: Callable[[], Delivery[Any]], cost: Cost | None) -> None:
        try:
            self.result = device.executor.deliver(work, self.call, cost)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> Asked:
        self._thread.join(60)
        assert self.is_done
        return self


def test_the_device_renders_while_results_are_copied(device: Device) -> None:
    ran: list[float] = []
    device.copies.go.clear()
    first = Asked(device, device.work(1.0, ran))
    wait_until(lambda: device.copies.begun == 1, "the first copy")
    second = Asked(device, lambda: (ran.append(2.0), device.work(2.0)())[1])
    wait_until(lambda: ran == [1.0, 2.0], "the second job, while the first is delivered")
    time.sleep(0.1)
    assert not first.is_done and not second.is_done
    wait_until(lambda: device.executor.is_busy, "a thread that waits for its result")
    device.copies.go.set()
    assert (first.wait().result == 1.0).all() and (second.wait().result == 2.0).all()
    assert not device.executor.is_busy
    assert "download" in first.call.times.milliseconds


def test_one_download_at_a_time_holds_memory_of_the_device(device: Device) -> None:
    device.copies.go.clear()
    asked = [Asked(device, device.work(value)) for value in (1.0, 2.0, 3.0)]
    wait_until(lambda: device.transfer.downloading_bytes > 0, "a download")
    time.sleep(0.1)
    assert device.transfer.downloading_bytes == 4000
    device.copies.go.set()
    assert sorted(float(one.wait().result[0]) for one in asked) == [1.0, 2.0, 3.0]
    device.transfer.settle()
    assert device.transfer.downloading_bytes == 0


def test_results_of_many_threads_are_their_own(device: Device) -> None:
    device.copies.before_copy = lambda: time.sleep(0.001)

    def ask(value: float) -> None:
        for _ in range(20):
            result = device.executor.deliver(device.work(value, count=20_000), StandInCall())  # type: ignore[arg-type]
            assert (result == value).all()

    errors: list[BaseException] = []

    def guarded(value: float) -> None:
        try:
            ask(value)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(float(value),)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_a_job_that_needs_the_memory_waits_for_the_download() -> None:
    device = Device(capacity_bytes=10_000)
    ran: list[float] = []
    device.copies.go.clear()
    first = Asked(device, device.work(1.0))
    wait_until(lambda: device.copies.begun == 1, "the first copy")
    small = Asked(device, device.work(2.0, ran), Cost(bytes=6000))
    wait_until(lambda: ran == [2.0], "a job that fits beside the download")
    large = Asked(device, device.work(3.0, ran), Cost(bytes=10_000))
    time.sleep(0.1)
    assert ran == [2.0]
    device.copies.go.set()
    assert [float(asked.wait().result[0]) for asked in (first, small, large)] == [1.0, 2.0, 3.0]
    too_large = Asked(device, device.work(4.0), Cost(bytes=10_001)).wait()
    assert isinstance(too_large.error, DeviceMemoryError)
    device.executor.close()


def test_a_device_that_is_lost_during_a_copy_is_reported_and_the_call_may_be_repeated_elsewhere(device: Device) -> None:
    def lose() -> None:
        raise RuntimeError(LOST)

    device.copies.before_copy = lose
    asked = Asked(device, device.work(1.0)).wait()
    assert isinstance(asked.error, StoppingError)
    assert [str(error) for error in device.lost] == [LOST]
    assert not device.executor.is_busy
    assert device.transfer.downloading_bytes == 0


def leaving(device: Device, ran: list[float]) -> Callable[[], Delivery[Any]]:
    """Work that leaves the device busy with a download."""

    def run() -> Delivery[Any]:
        delivery = device.work(1.0, ran)()
        device.executor.leave(delivery.download, "steps")
        return delivery

    return run


def test_only_jobs_of_its_sequence_run_before_the_end_of_what_a_job_has_left(device: Device) -> None:
    ran: list[float] = []
    device.copies.go.clear()
    first = Asked(device, leaving(device, ran), Cost(sequence="steps"))
    wait_until(lambda: ran == [1.0], "the first job")
    device.executor.run(lambda: ran.append(2.0), StandInCall(), Cost(sequence="steps"))  # type: ignore[arg-type]
    assert ran == [1.0, 2.0]
    other = Asked(device, device.work(3.0, ran))
    wait_until(lambda: device.executor.held_seconds > 0.05, "a device that is held")
    assert ran == [1.0, 2.0] and device.executor.is_busy
    device.copies.go.set()
    assert other.wait().result[0] == 3.0 and first.wait().result[0] == 1.0
    assert ran == [1.0, 2.0, 3.0]
    assert device.executor.run(lambda: 4.0, StandInCall()) == 4.0  # type: ignore[arg-type]


def test_a_job_of_the_same_sequence_waits_too_if_another_waits(device: Device) -> None:
    """The device's thread cannot tell beforehand which of the two is next."""
    ran: list[float] = []
    device.copies.go.clear()
    first = Asked(device, leaving(device, ran), Cost(sequence="steps"))
    wait_until(lambda: ran == [1.0], "the first job")
    with held(device.executor, sequence="steps"):
        others = [Asked(device, device.work(2.0, ran)), Asked(device, device.work(3.0, ran), Cost(sequence="steps"))]
        wait_until(lambda: device.executor.queue.depth == 2, "jobs that wait")
    time.sleep(0.2)
    assert ran == [1.0]
    device.copies.go.set()
    for one in (first, *others):
        one.wait()
    assert sorted(ran) == [1.0, 2.0, 3.0]


def test_what_a_job_has_left_is_charged_to_its_tenant(device: Device) -> None:
    def order() -> list[str]:
        ran = tenants_after_a_job_that_leaves_work(device)
        assert ran[0] == "renders"
        return ran

    # The charge is of 0.2 s, which a render may also take on a busy machine.
    assert any(order() == ["renders", "renders", "trains", "trains"] for _ in range(10))


def tenants_after_a_job_that_leaves_work(device: Device) -> list[str]:
    """Returns the tenants of the jobs that waited for the end of the work, in the order in which they ran."""
    begun = device.copies.begun
    device.copies.go.clear()
    first = Asked(device, leaving(device, []), Cost(sequence="steps"), tenant="trains")
    wait_until(lambda: device.copies.begun == begun + 1, "the first job")
    ran: list[str] = []

    def asked(tenant: str) -> Asked:
        def work() -> Delivery[Any]:
            ran.append(tenant)
            return device.work(2.0)()

        return Asked(device, work, tenant=tenant)

    waiting = [asked("trains"), asked("trains"), asked("renders"), asked("renders")]
    wait_until(lambda: device.executor.queue.depth == 4, "jobs that wait")
    time.sleep(0.2)
    device.copies.go.set()
    for one in (first, *waiting):
        one.wait()
    return ran


def test_the_device_is_done_with_a_job_that_failed_before_the_next(device: Device) -> None:
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("after its kernels were queued")

    device.copies.finish = lambda: ran.append("the device is done")
    with pytest.raises(ValueError, match="kernels were queued"):
        device.executor.run(fail, StandInCall())  # type: ignore[arg-type]
    device.executor.run(lambda: ran.append("the next job"), StandInCall())  # type: ignore[arg-type]
    assert ran == ["the device is done", "the next job"]


def test_a_device_lost_by_what_a_job_that_failed_has_queued_is_that_jobs_error(device: Device) -> None:
    def lose() -> None:
        raise RuntimeError(LOST)

    def fail() -> None:
        raise ValueError("after its kernels were queued")

    device.copies.finish = lose
    with pytest.raises(RuntimeError, match=LOST):
        device.executor.run(fail, StandInCall())  # type: ignore[arg-type]
    assert [str(error) for error in device.lost] == [LOST]


def test_what_an_urgent_job_has_left_counts_against_its_priority(device: Device) -> None:
    """The time counts towards the turn of less urgent calls, which comes after a second of more urgent ones."""
    until, counts = time.monotonic() + 100.0, {"trains": 0, "renders": 0}
    device.copies.before_copy = lambda: time.sleep(0.04)

    def goes_on() -> bool:
        # Both are served often, or it takes long, or so many steps that renders had to get their turns.
        return time.monotonic() < until and min(counts.values()) <= 20 and counts["trains"] < 1000

    def train() -> None:
        while goes_on():
            call = StandInCall("trains", Priority.NORMAL)
            device.executor.deliver(leaving(device, []), call, Cost(sequence="steps"))  # type: ignore[arg-type]
            counts["trains"] += 1

    def render() -> None:
        while goes_on():
            call = StandInCall("renders", Priority.BATCH)
            device.executor.run(lambda: time.sleep(0.005), call)  # type: ignore[arg-type]
            counts["renders"] += 1

    run_at_once(train, train, render, render)
    assert counts["renders"] > 20 and counts["trains"] > 20, counts


def test_device_lost_by_what_a_job_has_left_is_not_the_error_of_the_next(device: Device) -> None:
    def lose() -> None:
        raise RuntimeError(LOST)

    device.executor._on_lost = lambda error: (device.lost.append(error), device.executor.abandon())
    device.copies.go.clear()
    device.copies.before_copy = lose
    Asked(device, leaving(device, []), Cost(sequence="steps"))
    wait_until(lambda: device.copies.begun == 1, "the first job")
    ran: list[float] = []
    other = Asked(device, device.work(3.0, ran))
    wait_until(lambda: device.executor.queue.depth == 1, "a job that waits")
    device.copies.go.set()
    assert isinstance(other.wait().error, StoppingError)
    assert ran == [] and {str(error) for error in device.lost} == {LOST}


def test_an_error_that_passes_is_the_calls_own(device: Device) -> None:
    def fail() -> None:
        device.copies.before_copy = lambda: None
        raise RuntimeError("something passes")

    device.copies.before_copy = fail
    assert str(Asked(device, device.work(1.0)).wait().error) == "something passes"
    assert device.lost == []
    assert Asked(device, device.work(2.0)).wait().result[-1] == 2.0


def test_a_copy_that_does_not_end_is_a_device_that_hangs(device: Device) -> None:
    device.copies.go.clear()
    asked = Asked(device, device.work(1.0))
    wait_until(lambda: device.executor.held_seconds > 0.05, "a device that is held")
    device.copies.go.set()
    asked.wait()
    assert device.executor.held_seconds == 0.0


@pytest.mark.parametrize("ends", ["delivered", "cancelled", "failed"])
def test_pinned_memory_comes_back_however_a_call_ends(device: Device, ends: str) -> None:
    device.copies.go.clear()

    def work() -> Delivery[Any]:
        delivery = device.work(1.0)()
        if ends == "failed":
            raise ValueError("after the download has begun")
        return delivery

    asked = Asked(device, work)
    wait_until(lambda: device.copies.begun == 1, "the copy")
    if ends == "cancelled":
        asked.call.cancel()
    assert device.transfer.pinned_bytes > 0
    device.transfer.trim()
    assert device.transfer.pinned_bytes > 0, "it is in use"
    device.copies.go.set()
    asked.wait()
    device.transfer.settle()
    del asked
    gc.collect()
    wait_until(lambda: _trimmed(device.transfer) == 0, "memory that comes back")
    assert device.copies.pinned == {}


def _trimmed(transfer: CudaTransfer) -> int:
    transfer._pool.trim(0.0)
    return transfer.pinned_bytes


def test_all_types_and_shapes_arrive() -> None:
    copies = EmulatedCopies()
    transfer = emulated_transfer(copies)
    tensors = [
        torch.rand(3, 5, 7),
        torch.rand(4, 6).t(),
        torch.zeros(0, 3),
        torch.arange(9),
        torch.arange(256, dtype=torch.int32).to(torch.uint8),
        torch.rand(33).to(torch.bfloat16),
        torch.rand(2, 2).half(),
        torch.tensor([True, False]),
        torch.tensor(2.5),
    ]
    arrays = transfer.download(tensors)
    for tensor, array in zip(tensors, arrays, strict=True):
        expected = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        assert array.dtype == expected.numpy().dtype
        assert np.array_equal(array, expected.numpy())
    assert transfer.download([]) == []
    assert copies.mistakes == []


def test_memory_is_kept_until_the_copy_has_ended_though_nobody_wants_the_result_any_more(device: Device) -> None:
    device.copies.go.clear()
    device.transfer.start_download([torch.ones(1000)])
    device.copies.go.set()
    device.transfer.settle()
    assert (device.transfer.download([torch.zeros(1000)])[0] == 0).all()
    assert device.copies.begun == 2


@pytest.mark.parametrize("fault", [RuntimeError("the device failed"), Stopped("the kernels were stopped")])
def test_what_a_job_that_fails_holds_is_freed_at_once(device: Device, fault: Exception) -> None:
    """Python's next garbage collection would be too late, since it may be the memory of a device or of a caller."""
    alive: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def fail(payload: np.ndarray[Any, Any]) -> None:
        on_device = np.ones(1000)
        alive.extend([weakref.ref(payload), weakref.ref(on_device)])
        raise type(fault)(*fault.args)

    def ask() -> None:
        payload = np.ones(1000)
        try:
            device.executor.run(lambda: fail(payload), call, Cost(is_repeatable=True))  # type: ignore[arg-type]
        except (RuntimeError, CancelledError):
            return

    call = StandInCall()
    gc.collect()
    gc.disable()
    try:
        ask()
        call.cancel()
        wait_until(lambda: not device.executor.is_busy, "the end of the job")
        # The device's thread leaves the function that ran the job a moment later.
        wait_until(lambda: not any(reference() is not None for reference in alive), "memory that is freed", 60.0)
        assert len(alive) == 2
    finally:
        gc.enable()
