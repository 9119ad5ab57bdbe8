"""A step of a training happens as a whole or not at all, wherever it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from lumigrad.kernels import _native
from lumigrad.kernels._native import cpu_step_machine
from lumigrad.server.training.images import Planned, render
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.resident import ResidentSteps
from lumigrad.server.training.run_report import RunReport
from lumigrad.server.training.session import done_message
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.step import StepReport, apply, step
from lumigrad.server.training.views import Views
from lumigrad.v1 import training_pb2
from support.training.random_states import with_everything
from support.training.resident import plain_step
from support.training.states import LIMITS, Wanted, state_of

STEPS = 5
# The steps in which calls fail.
FAULTY = {"none": (1,), "adaptive": (2, 3), "mcmc": (1, 2)}
# Up to its last backward pass, a step only reads what it trains: in this part one call in STRIDE fails, afterwards
# every second one.
STRIDE = 60


class InjectedError(Exception):
    """The error of a call that is made to fail."""


class Faults(TorchDispatchMode):
    """Counts the calls of kernels and the operations of torch, and has one of them fail."""

    def __init__(self, parameters: Parameters, fail_at: int) -> None:
        super().__init__()
        self._own = {parameter.raw.data_ptr() for parameter in parameters.by_name.values()}
        self._fail_at = fail_at
        # The names of all calls so far that could fail.
        self.names: list[str] = []
        self._is_inside = False
        # The names of the calls since the parameters themselves began to change, none of which may fail.
        self.last: list[str] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(str(func))
        return func(*args, **(kwargs or {}))

    def native(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a kernel."""
        self._note(name)
        if name == "training_adam" and any(group["raw"].data_ptr() in self._own for group in arguments[1]):
            self.last = [name]
        before, self._is_inside = self._is_inside, True
        try:
            return function(*arguments, **options)
        finally:
            self._is_inside = before

    def _note(self, name: str) -> None:
        if self._is_inside:
            return
        if self.last is not None:
            self.last.append(name)
            return
        self.names.append(name)
        if len(self.names) - 1 == self._fail_at:
            raise InjectedError(name)


class NativeProxy(ModuleType):
    """The compiled functions; `faults` is notified of each call."""

    faults: Faults | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(_native, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if self.faults is None:
                return found(*arguments, **options)
            return self.faults.native(name, found, *arguments, **options)

        return call


@pytest.fixture(scope="module")
def native() -> Iterator[NativeProxy]:
    """A proxy in place of the extension, wherever that is used."""
    proxy = NativeProxy("_native")
    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("lumigrad.kernels.") and getattr(module, "_native", None) is _native
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module in users:
            patch.setattr(module, "_native", proxy)
        yield proxy


def stepped(state: TrainingState, is_own: bool) -> StepReport:
    """Make a step, with the training's loss or the caller's own, of views that the worker chooses."""
    call: Any = Wanted()
    views = state.views.chosen(7, state.chosen, 2)
    planned = Planned.of(state, views, ("color", "alpha"), LIMITS, "step", 2)
    if not is_own:
        return step(state, planned, call, lambda rendered: None)[1]
    rendered = render(state, planned, call)
    return apply(state, rendered, {"color": rendered.outputs["color"] - 0.5}, None, call)


def told(number: int, report: StepReport) -> training_pb2.StepDone:
    """Return the message that the client receives."""
    return done_message(number, report.read([tensor.numpy() for tensor in report.numbers]))


def everything(state: TrainingState) -> dict[str, Any]:
    """Return everything that a step may change, in bits."""
    found: dict[str, Any] = {name: tensor.numpy().tobytes() for name, tensor in state.tensors().items()}
    found |= {name: list(tensor.shape) for name, tensor in state.parameters.values.items()}
    found["views"] = [view.SerializeToString() for view in state.views.messages]
    found["counters"] = state.step, state.chosen, state.generation, list(state.recent_replies), state.snapshots
    return found


@contextmanager
def failing(native: NativeProxy, state: TrainingState, fail_at: int) -> Iterator[Faults]:
    with Faults(state.parameters, fail_at) as faults:
        native.faults = faults
        try:
            yield faults
        finally:
            native.faults = None


def places_of(names: list[str]) -> list[int]:
    """Return the calls of a step that are to fail, one after the other."""
    changing = 1 + max(index for index, name in enumerate(names) if "backward" in name)
    return [*range(0, changing, STRIDE), *range(changing, len(names), 2)]


@pytest.mark.parametrize(("kind", "is_own"), [("none", False), ("none", True), ("adaptive", False), ("mcmc", False)])
def test_a_step_that_fails_anywhere_changes_nothing(kind: str, is_own: bool, native: NativeProxy) -> None:
    undisturbed, state = state_of(kind), state_of(kind)
    last = set()
    for number in range(STEPS):
        with failing(native, undisturbed, -1) as faults:
            expected = stepped(undisturbed, is_own)
        if number in FAULTY[kind]:
            last.add(tuple(faults.last or ()))
            before, places = everything(state), places_of(faults.names)
            assert len(places) > 30
            for place in places:
                with pytest.raises(InjectedError) as caught, failing(native, state, place):
                    stepped(state, is_own)
                assert everything(state) == before, f"{caught.value}, call {place} of step {number}"
        done = stepped(state, is_own)
        assert told(number, done) == told(number, expected)
        assert everything(state) == everything(undisturbed), number
    # Changes in place come last: nothing is allocated any more, and only kernels are called.
    in_place = {"none": {("training_adam",)}, "adaptive": {()}, "mcmc": {("training_adam", "density_add_noise"), ()}}
    assert last == in_place[kind]
    assert state.generation == (0 if kind == "none" else 2)


@pytest.mark.parametrize("of_sensors", [False, True])
@pytest.mark.parametrize("kind", ["adaptive", "mcmc"])
def test_a_controlled_step_without_python_that_fails_anywhere_changes_nothing(
    kind: str, of_sensors: bool, native: NativeProxy
) -> None:
    undisturbed, state = (with_everything(kind, of_sensors=of_sensors) for _ in range(2))
    steps = ResidentSteps(cpu_step_machine)
    call: Any = Wanted()

    def control(of: TrainingState) -> RunReport:
        return steps.control(of, [0], 0, LIMITS, call)

    for of in (undisturbed, state):
        while not steps.is_controlled(of, [0]):
            plain_step(of, [0])
    steps.control_cost(state, [0], LIMITS)
    with failing(native, undisturbed, -1) as faults:
        expected = control(undisturbed)
    before = everything(state)
    assert len(faults.names) > 60 and faults.last is None
    for place in range(0, len(faults.names), 2):
        with pytest.raises(InjectedError) as caught, failing(native, state, place):
            control(state)
        assert everything(state) == before, f"{caught.value}, call {place}"
    assert control(state).read() == expected.read()
    assert everything(state) == everything(undisturbed)


def test_views_come_once_in_each_round_and_rounds_differ() -> None:
    views = Views([training_pb2.TrainingView()] * 6, [None] * 6)
    chosen = views.chosen(7, 0, 24)
    rounds = [tuple(chosen[start : start + 6]) for start in range(0, 24, 6)]
    assert all(sorted(each) == list(range(6)) for each in rounds)
    assert len(set(rounds)) == 4
    assert views.chosen(7, 4, 9) == chosen[4:13]
    assert views.chosen(8, 0, 24) != chosen


@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize(("count", "size"), [(3, 2), (5, 4), (6, 4), (7, 3), (4, 4)])
def test_no_step_has_a_view_twice_though_rounds_do_not_end_with_a_step(count: int, size: int, phase: int) -> None:
    views = Views([training_pb2.TrainingView()] * count, [None] * count)
    begin = views.chosen(7, 0, phase) if phase else []
    steps = [views.chosen(7, position, size) for position in range(phase, 40 * count * size + phase, size)]
    assert all(len(set(step)) == size for step in steps)
    shown = [*begin, *(number for step in steps for number in step)][count:]
    for start in range(0, len(shown) - count, count):
        assert sorted(shown[start : start + count]) == list(range(count))


def test_a_resumed_training_chooses_the_views_that_it_would_have_chosen() -> None:
    # Steps of two views that begin at odd positions: each round depends on all rounds before.
    count, size, end = 4, 2, 6001
    views, resumed = (Views([training_pb2.TrainingView()] * count, [None] * count) for _ in range(2))
    last = resumed.chosen(7, end, size)
    steps = [views.chosen(7, position, size) for position in range(1, end + 1, size)]
    assert last == steps[-1]
    again = [resumed.chosen(7, position, size) for position in (1, end - size, 3, end)]
    assert again == [steps[0], steps[-2], steps[1], steps[-1]]


def test_the_report_of_leaks_at_exit_is_of_leaks_alone() -> None:
    """Not of what is in caches, such as that of cameras."""
    name = test_a_controlled_step_without_python_that_fails_anywhere_changes_nothing.__name__
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{name}[adaptive-False]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    assert "leaked" not in done.stderr, done.stderr
