"""Steps are queued without waiting for the device; their reports follow while the device is at the next step."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lumigrad.kernels.gaussians.engine import CudaEngine
from lumigrad.server.core.call import NoLane
from lumigrad.server.core.errors import CancelledError, DeviceLostError, StepMismatchError
from lumigrad.server.core.turns import Turn, Turns
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import DeviceMemory
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.training.images import Planned, differentiate, render
from lumigrad.server.training.requests import Request
from lumigrad.server.training.session import Session
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.step import StepReport, step
from lumigrad.v1 import training_pb2
from support.backends import emulation
from support.backends.emulated_copies import EmulatedCopies, emulated_transfer
from support.calls.raw_training import RATES
from support.training.states import DENSITIES, LIMITS, Wanted, sensor_camera, state_of
from support.workers.slow_render import wait_until

CPU = torch.device("cpu")
# Functions that make the host wait for a GPU.
READS = {"item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__", "is_nonzero"}


class HostReads(TorchFunctionMode):
    """Refuses to read a tensor's numbers on the host."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        assert name not in READS, f"{name} waits for the device"
        if name == "__getitem__":
            assert not isinstance(args[1], list | torch.Tensor), "an index is copied to the device, or read from it"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", DENSITIES)
def test_a_step_reads_nothing_from_the_device(kind: str) -> None:
    state = state_of(kind, {**RATES, "exposures": 1e-2})
    planned = Planned.of(state, [2, 0], state.plan.loss.outputs, LIMITS, "step")  # type: ignore[union-attr]
    with HostReads():
        step(state, planned, Wanted(), lambda rendered: None)  # type: ignore[arg-type]
    assert state.step == 1


class CountedReads(TorchFunctionMode):
    """Counts how often a tensor's numbers are read on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += getattr(function, "__name__", "") in READS
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("most", [45, 1000])
@pytest.mark.parametrize("kind", ["adaptive", "mcmc"])
def test_density_control_reads_once_from_the_device(kind: str, most: int) -> None:
    def change(spec: training_pb2.TrainingSpec) -> None:
        if kind == "adaptive":
            spec.density.max_count = most
        else:
            spec.density.mcmc.cap = most

    state, counts = state_of(kind, RATES, change), []
    assert state.plan.loss is not None
    for _ in range(5):
        planned = Planned.of(state, [2, 0], state.plan.loss.outputs, LIMITS, "step")
        with CountedReads() as reads:
            step(state, planned, Wanted(), lambda rendered: None)  # type: ignore[arg-type]
        counts.append(reads.count)
    # Rows come and go at steps 2 and 4.
    assert counts == [0, 0, 1, 0, 1]
    assert 0 < state.parameters.count <= most


def test_what_reads_is_noticed() -> None:
    for read in (
        lambda t: float(t.sum()),
        lambda t: t.tolist(),
        lambda t: t[[0]],
        lambda t: t.cpu(),
        lambda t: bool(t[0]),
    ):
        with pytest.raises(AssertionError), HostReads():
            read(torch.ones(3))


def test_gradients_of_harmonics_stay_factors_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CudaEngine(emulation.load("_emulation"), 0, lambda: 0)
    for name in ("forward", "backward"):
        monkeypatch.setattr(sys.modules[f"lumigrad.kernels.gaussians.{name}"], "engine_for", lambda _: engine)
    state, call = state_of("none"), Wanted()
    for views in ([1], [1, 2]):
        planned = Planned.of(state, views, ("color",), LIMITS, "step")
        rendered = render(state, planned, call)  # type: ignore[arg-type]
        upstream = {"color": torch.ones_like(rendered.outputs["color"])}
        found = differentiate(state, rendered, upstream, call)  # type: ignore[arg-type]
        assert (found.harmonics is not None, "sh" in found.by_name) == (len(views) == 1, len(views) == 2)


class Part(Wanted):
    """The part of one request."""

    tenant, priority, remaining, checked, lane = "", 1, float("inf"), 0.0, NoLane()
    device_seconds = 0.0
    turn = Turn(Turns(), "")

    def on_end(self, callback: Any) -> None:
        pass

    off_end = on_end

    def by_lane(self, name: str) -> Any:
        return nullcontext()


class Requests:
    """Requests that have all arrived."""

    def __init__(self, *kinds: dict[str, Any]) -> None:
        messages = [training_pb2.TrainRequest(**kind) for kind in kinds]
        self.open: list[Any] = [Request(message, memoryview(b""), Part()) for message in messages]  # type: ignore[arg-type]
        self._left = list(self.open)

    def __iter__(self) -> Iterator[Request]:
        while self._left:
            yield self._left.pop(0)

    @property
    def is_next_here(self) -> bool:
        return bool(self._left)

    def close(self, request: Request) -> None:
        self.open.remove(request)


def in_python() -> TrainingState:
    """A training whose steps need Python, since it refines lenses."""
    return state_of("none", {**RATES, "lenses": 1e-3, "exposures": 1e-2}, camera=sensor_camera)


@contextmanager
def session_of(state: TrainingState, requests: Requests, transfer: Transfer) -> Iterator[Session]:
    executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 40, transfer=transfer), 8)
    runtime = SimpleNamespace(
        trainings=SimpleNamespace(check_kept=lambda training: None),
        memory=SimpleNamespace(check=lambda cost, held: None),
        payload_memory=SimpleNamespace(reserve=lambda nbytes, call: None),
        scenes=SimpleNamespace(touch=lambda scene_id: None),
        limits=LIMITS, executor=executor, transfer=transfer,
    )  # fmt: skip
    try:
        yield Session(SimpleNamespace(state=state, training_id="training"), runtime, requests)  # type: ignore[arg-type]
    finally:
        executor.close()


def steps(count: int) -> list[dict[str, Any]]:
    return [{"step": {"number": number, "views": [number % 3]}} for number in range(count)]


def reports(replies: Sequence[Any]) -> list[training_pb2.StepDone]:
    return [frame.message.done for frame in replies]


def test_a_step_is_done_before_the_one_before_has_reported() -> None:
    plain, state = in_python(), in_python()
    requests = Requests(*steps(4))
    with session_of(plain, Requests(*steps(4)), Transfer(CPU)) as session:
        expected = reports(list(session.answer()))
    copies, replies = EmulatedCopies(), []
    copies.go.clear()
    with session_of(state, requests, emulated_transfer(copies)) as session:
        thread = threading.Thread(target=lambda: replies.extend(session.answer()))
        thread.start()
        wait_until(lambda: state.step == 2 and copies.begun == 1, "the second step, and the report of the first")
        assert not replies and len(requests.open) == 4
        copies.go.set()
        thread.join(60)
    assert reports(replies) == expected == list(state.recent_replies)
    assert [done.number for done in expected] == [0, 1, 2, 3] and expected[0].loss > 0
    assert not copies.mistakes and not requests.open
    assert {"kernel.blend", "loss", "optimize"} <= {stage.name for stage in replies[0].message.timings.stages}


def test_steps_report_although_the_next_request_is_refused() -> None:
    state, replies = in_python(), []
    requests = Requests(*steps(2), {"step": {"number": 7}})
    with session_of(state, requests, emulated_transfer(EmulatedCopies())) as session:
        with pytest.raises(StepMismatchError):
            replies.extend(session.answer())
        assert [done.number for done in reports(replies)] == [0, 1]


def test_a_step_whose_caller_is_gone_is_reported_to_the_next_call() -> None:
    state, copies = in_python(), EmulatedCopies()
    with session_of(state, Requests(*steps(3)), emulated_transfer(copies)) as session:
        replies = session.answer()
        assert next(replies).message.done.number == 0  # type: ignore[union-attr]
        replies.close()  # type: ignore[attr-defined]
        session.close()
    assert state.step == 2
    assert [done.number for done in state.recent_replies] == [0, 1]
    assert all(done.loss > 0 for done in state.recent_replies)


def test_another_job_runs_after_the_end_of_a_step_on_the_device() -> None:
    """The job's device time would otherwise contain the step's, and the step's errors would become the job's."""
    state, copies, ran = in_python(), EmulatedCopies(), []
    copies.go.clear()
    with session_of(state, Requests(*steps(1)), emulated_transfer(copies)) as session:
        answers = threading.Thread(target=lambda: list(session.answer()))
        answers.start()
        wait_until(lambda: copies.begun == 1, "the step")
        other = threading.Thread(target=lambda: session._runtime.executor.run(lambda: ran.append(1), Part()))
        other.start()
        time.sleep(0.1)
        assert not ran
        copies.go.set()
        other.join(60)
        answers.join(60)
    assert ran == [1] and [done.number for done in state.recent_replies] == [0]


def test_a_snapshot_comes_after_its_step_with_its_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    state = in_python()
    state.plan.message.snapshot_every = 2
    written: list[tuple[int, list[int]]] = []

    def write(*_: object) -> int:
        written.append((state.step, [done.number for done in state.recent_replies]))
        return 1

    monkeypatch.setattr("lumigrad.server.training.session.snapshots.write", write)
    with session_of(state, Requests(*steps(5)), emulated_transfer(EmulatedCopies())) as session:
        replies = reports(list(session.answer()))
    assert written == [(2, [0, 1]), (4, [0, 1, 2, 3])]
    assert [done.number for done in replies if done.snapshotted] == [1, 3]


def test_a_step_that_breaks_the_device_is_not_repeatable() -> None:
    state, copies = in_python(), EmulatedCopies()

    def strike() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    copies.before_copy = strike
    with session_of(state, Requests(*steps(2)), emulated_transfer(copies)) as session, pytest.raises(DeviceLostError):
        list(session.answer())
    assert not state.recent_replies


def test_no_step_is_reported_after_one_whose_report_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    state, replies, read = in_python(), [], StepReport.read

    def fails_at_first(report: StepReport, numbers: Any) -> Any:
        if report.views == [0]:
            raise ValueError("no numbers")
        return read(report, numbers)

    monkeypatch.setattr(StepReport, "read", fails_at_first)
    with session_of(state, Requests(*steps(3)), emulated_transfer(EmulatedCopies())) as session:
        with pytest.raises(ValueError, match="no numbers"):
            replies.extend(session.answer())
        session.close()
    assert not replies and not state.recent_replies


def test_a_caller_that_leaves_at_a_snapshot_is_told_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    state = in_python()
    state.plan.message.snapshot_every = 2

    def write(*_: object) -> int:
        raise CancelledError("the caller has gone")

    monkeypatch.setattr("lumigrad.server.training.session.snapshots.write", write)
    with session_of(state, Requests(*steps(2)), emulated_transfer(EmulatedCopies())) as session:
        replies = session.answer()
        next(replies)
        replies.close()  # type: ignore[attr-defined]
        session.close()
    assert [(done.number, done.snapshotted) for done in state.recent_replies] == [(0, False), (1, False)]
