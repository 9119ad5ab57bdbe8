"""A step of a training happens as a whole or not at all, wherever it fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lumigrad.kernels import _native
from lumigrad.server.core.call import StageTimes
from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.images import Planned, render
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.session import done_message
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.step import Done, apply, step
from lumigrad.server.training.views import Views
from lumigrad.v1 import density_pb2, gaussians_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import opencv_camera
from support.calls.raw_training import RATES

SIZE = (24, 16)
LIMITS = Limits.of(Config())
# At steps 2 and 4 rows come and go, at 3 opacities are cut.
DENSITIES: dict[str, density_pb2.DensityControl | None] = {
    "none": None,
    "adaptive": density_pb2.DensityControl(
        extent=2.0,
        adaptive=density_pb2.DefaultStrategy(
            start=0, every=2, grow_gradient=1e-7, grow_scale=0.05, prune_opacity=0.2, reset_every=3
        ),
    ),
    "mcmc": density_pb2.DensityControl(
        extent=2.0, mcmc=density_pb2.McmcStrategy(start=0, every=2, cap=50, min_opacity=0.3, noise=5e3)
    ),
}
STEPS = 5
# In these, something fails.
FAULTY = {"none": (1,), "adaptive": (2, 3), "mcmc": (1, 2)}
# While a step renders and differentiates, it only reads what it trains: of that part every so-manieth call fails.
STRIDE = 20


class InjectedError(Exception):
    """What fails."""


class Faults(TorchDispatchMode):
    """Counts the calls of kernels and the operations of torch, and has one of them fail."""

    def __init__(self, parameters: Parameters, fail_at: int) -> None:
        super().__init__()
        self._own = {parameter.raw.data_ptr() for parameter in parameters.by_name.values()}
        self._fail_at = fail_at
        # All calls so far that could fail.
        self.names: list[str] = []
        self._is_inside = False
        # What was called once the parameters themselves had begun to change: nothing stops there.
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
    """The compiled functions, each call of which `faults` hears of."""

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
    """In place of the extension, wherever it is used."""
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


class Wanted:
    """A call that nobody ends."""

    def __init__(self) -> None:
        self.times = StageTimes()

    def check(self) -> None:
        pass


def state_of(kind: str) -> TrainingState:
    """A training of few Gaussians that optimises everything."""
    cloud = {name: torch.from_numpy(array) for name, array in gaussian_cloud(40).items()}
    rates = {**RATES, "poses": 1e-3, "intrinsics": 1e-3, "exposures": 1e-2}
    spec = training_pb2.TrainingSpec(
        gaussians=gaussians_pb2.GaussianSettings(),
        optimizer=training_pb2.Optimizer(rates={name: training_pb2.Rate(initial=r) for name, r in rates.items()}),
        loss=training_pb2.Loss(l1=0.8, dssim=0.2, opacity=0.01, scale=0.01),
        density=DENSITIES[kind],
        seed=7,
    )
    shapes = {name: list(tensor.shape) for name, tensor in cloud.items()}
    plan = TrainingPlan.of(spec, "gaussians", shapes, LIMITS, "spec")
    generator = np.random.default_rng(0)
    pictures = [torch.from_numpy(generator.random((SIZE[1], SIZE[0], 3), np.float32)) for _ in range(3)]
    target_images: list[Any] = [SimpleNamespace(tensors={"color": color}, bytes=color.nbytes) for color in pictures]
    cameras = [training_pb2.TrainingView(camera=opencv_camera(*SIZE, x=0.1 * index)) for index in range(3)]
    parameters = Parameters.of_scene(cloud, plan.optimizer)
    density = None if plan.density is None else DensityState(plan.density, parameters)
    reservation: Any = SimpleNamespace(grow=lambda count: None)
    return TrainingState("scene", plan, Views(cameras, target_images), parameters, density, reservation)


def stepped(state: TrainingState, is_own: bool) -> Done:
    """Make a step, with the training's loss or with one's own, of views that the worker chooses."""
    call: Any = Wanted()
    views = state.views.chosen(7, state.chosen, 2)
    planned = Planned.of(state, views, ("color", "alpha"), LIMITS, "step", 2)
    if not is_own:
        return step(state, planned, call, lambda rendered: None)[1]
    rendered = render(state, planned, call)
    return apply(state, rendered, {"color": rendered.outputs["color"] - 0.5}, None, call)


def everything(state: TrainingState) -> dict[str, Any]:
    """All that a step may change, in bits."""
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
    """The calls of a step that are to fail, one after the other."""
    changing = 1 + max(index for index, name in enumerate(names) if "backward" in name)
    return [*range(0, changing, STRIDE), *range(changing, len(names))]


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
        assert done_message(number, done) == done_message(number, expected)
        assert everything(state) == everything(undisturbed), number
    # What is done in place comes last: nothing is allocated then, and nothing but kernels called.
    in_place = {"none": {("training_adam",)}, "adaptive": {()}, "mcmc": {("training_adam", "density_add_noise"), ()}}
    assert last == in_place[kind]
    assert state.generation == (0 if kind == "none" else 2)


def test_views_come_once_in_each_round_and_rounds_differ() -> None:
    views = Views([training_pb2.TrainingView()] * 6, [None] * 6)
    chosen = views.chosen(7, 0, 24)
    rounds = [tuple(chosen[start : start + 6]) for start in range(0, 24, 6)]
    assert all(sorted(each) == list(range(6)) for each in rounds)
    assert len(set(rounds)) == 4
    assert views.chosen(7, 4, 9) == chosen[4:13]
    assert views.chosen(8, 0, 24) != chosen
