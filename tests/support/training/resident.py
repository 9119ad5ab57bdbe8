"""Steps of a training without Python, and the same steps with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.training.images import Planned
from lumigrad.server.training.resident import ResidentSteps
from lumigrad.server.training.run_report import RunReport
from lumigrad.server.training.session import done_message
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.step import Done, step
from support.training.states import LIMITS, Wanted

CPU = torch.device("cpu")


class Part(Wanted):
    """A call of a tenant, which can be ended."""

    priority, remaining, checked, device_seconds = 1, float("inf"), 0.0, 0.0

    def __init__(self, tenant: str = "") -> None:
        super().__init__()
        self.tenant = tenant
        self.turn = SimpleNamespace(give=lambda: None)
        self.callbacks: list[Any] = []

    def on_end(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def off_end(self, callback: Any) -> None:
        self.callbacks.remove(callback)


class Maker:
    """Makes steps without Python, in this process."""

    def __init__(self, machine: Any = None, *, places: int = 8) -> None:
        self.memory = DeviceMemory(CPU, 1 << 40, transfer=Transfer(CPU))
        self.executor = DeviceExecutor(CPU, self.memory, places, has_tenants=True)
        self.steps = ResidentSteps(lambda: machine or _native.cpu_step_machine())

    def run(
        self, state: TrainingState, views: Sequence[Sequence[int]], call: Any = None, memory: Any = None
    ) -> RunReport | None:
        """Make the steps that can be made in one run."""
        views = views[: self.steps.length(state, views)]
        cost = Cost(bytes=self.steps.cost(state, views, LIMITS), sequence="steps")
        return self.steps.run(state, views, cost, 0, self.executor, memory or self.memory, call or Part())

    def control(self, state: TrainingState, views: Sequence[int]) -> RunReport:
        """Make a step in which density control is due."""
        self.steps.control_cost(state, views, LIMITS)
        call: Any = Part()
        return self.executor.run(lambda: self.steps.control(state, views, 0, LIMITS, call), call)

    def all(self, state: TrainingState, views: Sequence[Sequence[int]]) -> tuple[list[Done], int]:
        """Make all steps, with Python those that need it; returns how many did not."""
        done: list[Done] = []
        resident = 0
        while len(done) < len(views):
            rest = views[len(done) :]
            if self.steps.length(state, rest):
                report = self.run(state, rest)
                assert report is not None
            elif self.steps.is_controlled(state, rest[0]):
                report = self.control(state, rest[0])
            else:
                done.append(plain_step(state, rest[0]))
                continue
            report.wait()
            done += report.read()
            resident += len(report.reports)
        return done, resident


@contextmanager
def maker_of(machine: Any = None, **options: Any) -> Iterator[Maker]:
    """A maker whose thread ends with the block."""
    maker = Maker(machine, **options)
    try:
        yield maker
    finally:
        maker.executor.close()


def plain_step(state: TrainingState, views: Sequence[int]) -> Done:
    assert state.plan.loss is not None
    state.settle()
    planned = Planned.of(state, list(views), state.plan.loss.at(state.step).outputs, LIMITS, "step")
    call: Any = Wanted()
    with torch.no_grad():
        report = step(state, planned, call, lambda rendered: None)[1]
    return report.read([tensor.numpy() for tensor in report.numbers])


def assert_as_with_python(
    maker: Maker, state: TrainingState, expected: TrainingState, views: Sequence[Sequence[int]]
) -> tuple[list[Done], int]:
    """Makes all steps, and those of `expected` with Python; asserts that replies and states have the same bits.

    Returns the result of `Maker.all`.
    """
    found, resident = maker.all(state, views)
    for number, each in enumerate(views):
        assert done_message(number, found[number]) == done_message(number, plain_step(expected, each)), number
    assert everything(state) == everything(expected)
    return found, resident


def assert_restored_goes_on(
    state: TrainingState, restored: TrainingState, views: Sequence[Sequence[int]], before: int
) -> None:
    """Asserts that a state goes on alike where it is restored from another one after the steps `before`."""
    with maker_of() as maker:
        maker.all(state, views[:before])
        state.settle()
        restored.restore({name: tensor.clone() for name, tensor in state.tensors().items()})
        restored.views = copy.deepcopy(state.views)
        restored.step, restored.generation = state.step, state.generation
        found = maker.all(state, views[before:])[0]
    with maker_of() as maker:
        assert maker.all(restored, views[before:])[0] == found
    assert everything(restored) == everything(state)


def everything(state: TrainingState) -> dict[str, Any]:
    """The bits of everything that a step may change."""
    state.settle()
    found: dict[str, Any] = {name: tensor.numpy().tobytes() for name, tensor in state.tensors().items()}
    found["views"] = [view.SerializeToString(deterministic=True) for view in state.views.messages]
    found["counters"] = state.step, state.chosen, state.generation, list(state.recent_replies)
    return found


def failures_without_room(
    maker: Maker, state: TrainingState, expected: TrainingState, limit: Callable[[int], object] = lambda room: None
) -> int:
    """Give a step more and more memory until it succeeds; returns how often it failed. Failures must change nothing.

    The result must equal that of `expected`, which starts as an equal state. `limit` limits memory on the device's
    thread.
    """
    maker.all(state, [[0], [1]])
    for each in ([0], [1]):
        plain_step(expected, each)
    while not maker.steps.length(state, [[2]]):
        plain_step(state, [2])
        plain_step(expected, [2])
    before, failures = everything(state), 0
    for room in range(0, 1 << 20, 1 << 10):
        maker.executor.run(lambda room=room: limit(room), Part())  # type: ignore[misc]
        memory: Any = SimpleNamespace(room_bytes=lambda cost, room=room: room)
        if maker.run(state, [[2]], memory=memory) is not None:
            break
        failures += 1
        assert everything(state) == before, room
    maker.executor.run(lambda: limit(-1), Part())
    plain_step(expected, [2])
    assert everything(state) == everything(expected)
    return failures
