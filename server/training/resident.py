"""Steps of a training without Python: those of plain trainings, between two changes of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any

import torch

from lumigrad.kernels import gaussians, resident
from lumigrad.kernels._native import Outcome, ResidentRun
from lumigrad.kernels.training import image_loss_values, statistics_of
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import CancelledError, DeviceLostError, DeviceTimeError, InvalidArgumentError
from lumigrad.server.core.limits import Limits
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.engines.gaussians import KIND
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.images import Planned
from lumigrad.server.training.parameters import Parameters, parameters_of
from lumigrad.server.training.spec import EXPOSURES, TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.step import Done
from lumigrad.v1 import gaussians_pb2

# The terms of losses that are means over images, and over parameters.
_OF_COLORS = ("l1", "l2", "dssim")
_OF_PARAMETERS = {"opacity": "opacities", "scale": "scales"}
_VALUES_OF_VIEW = 4


@dataclass(frozen=True, eq=False)
class RunReport:
    """What steps without Python report, in the order of their numbers on the device.

    Attributes:
        views: Of each step.
        parts: The terms of the loss that are means of parameters, with their weights.
        names: Of the parameters that have statistics.
    """

    run: Any
    views: Sequence[Sequence[int]]
    weights: dict[str, float]
    parts: Sequence[tuple[str, float]]
    names: Sequence[str]
    count: int

    @property
    def milliseconds(self) -> dict[str, float]:
        """The kernels' times, once the run is complete."""
        times: dict[str, float] = self.run.milliseconds
        return times

    def read(self) -> list[Done]:
        """The results, once the run is complete."""
        return [self._read(*step) for step in zip(self.views, self.run.numbers, strict=False)]

    def _read(self, views: Sequence[int], numbers: list[float]) -> Done:
        end = 1 + _VALUES_OF_VIEW * len(views)
        rows = [numbers[at : at + _VALUES_OF_VIEW] for at in range(1, end, _VALUES_OF_VIEW)]
        terms = image_loss_values(rows, self.weights)
        loss = terms.pop("total")
        for (name, weight), value in zip(self.parts, numbers[end:], strict=False):
            loss += weight * value
            terms[name] = value
        sums = numbers[end + len(self.parts) :]
        width = len(sums) // len(self.names)
        statistics = statistics_of(self.names, [sums[at : at + width] for at in range(0, len(sums), width)])
        return Done(views, loss, terms, self.count, int(numbers[0]), statistics, None)


@dataclass(eq=False)
class _Binding:
    """Steps that were bound to the extension, and what they were bound to."""

    native: Any
    plan: TrainingPlan
    parameters: Parameters
    density: DensityState | None
    degree: int
    views_of_step: int
    report: dict[str, Any]
    # Memory of a step, by the size of its images.
    costs: dict[tuple[int, int], int] = field(default_factory=dict)


class ResidentSteps:
    """The steps of one training that need no Python."""

    def __init__(self, make_machine: Callable[[], Any]) -> None:
        """`make_machine` makes the extension's machine, for the device."""
        self._make_machine = make_machine
        # None: no step was bound yet.
        self._machine: Any = None
        self._views = resident.Views()
        self._binding: _Binding | None = None

    def length(self, state: TrainingState, views: Sequence[Sequence[int]]) -> int:
        """The number of the next steps, which have these views, that can be made in one run; 0: the next one cannot."""
        if not _is_plain(state):
            return 0
        every, density = state.plan.message.snapshot_every, state.density
        degree, size = _degree(state, state.step), len(views[0])
        for index, each in enumerate(views):
            step = state.step + index
            is_due = density is not None and density.is_due(step)
            if is_due or _degree(state, step) != degree or len(each) != size:
                return index
            if not _are_plain(state, each):
                return index
            if every and (step + 1) % every == 0:
                return index + 1
        return len(views)

    def cost(self, state: TrainingState, views: Sequence[Sequence[int]], limits: Limits) -> int:
        """Bind the next steps; returns the memory that the largest of them needs."""
        binding = self._bound(state, views[0], limits)
        sizes: dict[tuple[int, int], Sequence[int]] = {}
        for each in views:
            camera = state.views.messages[each[0]].camera
            sizes.setdefault((camera.width, camera.height), each)
            for number in each:
                self._add(state, number, limits)
        for size in sizes.keys() - binding.costs.keys():
            planned = _planned(state, sizes[size], limits)
            device = next(iter(state.parameters.values.values())).device
            binding.costs[size] = planned.forward_bytes(device) + planned.backward_bytes(device)
        return max(binding.costs[size] for size in sizes)

    def run(
        self,
        state: TrainingState,
        views: Sequence[Sequence[int]],
        cost: Cost,
        chosen: int,
        executor: DeviceExecutor,
        memory: DeviceMemory,
        call: Call,
    ) -> RunReport | None:
        """Make the next steps, of which `cost` is the cost, until one cannot be made; None: none was.

        The worker has chosen `chosen` views of each. An error of a call that has ended, and of a device that is lost.
        """
        room = memory.room_bytes(cost, memory.free_bytes)
        binding = self._binding
        if room is None or binding is None:
            return None
        binding.native.next = state.step
        run = ResidentRun(
            executor.queue,
            binding.native,
            call.tenant,
            int(call.priority),
            cost.bytes,
            room,
            executor.numbers.of(cost.sequence),
            [list(each) for each in views],
        )
        cancel = run.cancel
        call.turn.give()
        call.on_end(cancel)
        outcome = run.make()
        call.off_end(cancel)
        state.step += run.done
        state.chosen += chosen * run.done
        call.times.add("queue", run.queued_milliseconds)
        if outcome == Outcome.LOST:
            raise DeviceLostError
        if not run.done:
            _check(outcome, run, call)
            return None
        return RunReport(run, views, **binding.report)

    def _bound(self, state: TrainingState, views: Sequence[int], limits: Limits) -> _Binding:
        binding, degree = self._binding, _degree(state, state.step)
        if (
            binding is None
            or binding.plan is not state.plan
            or binding.parameters is not state.parameters
            or binding.density is not state.density
            or (binding.degree, binding.views_of_step) != (degree, len(views))
        ):
            self._binding = None
            binding = self._binding = self._bind(state, views, degree, limits)
        return binding

    def _bind(self, state: TrainingState, views: Sequence[int], degree: int, limits: Limits) -> _Binding:
        parameters, optimizer, loss = state.parameters, state.plan.optimizer, state.plan.loss
        assert loss is not None
        self._machine = self._machine or self._make_machine()
        plan = _planned(state, views, limits).plan
        scene = gaussians.Gaussians(**parameters.values)
        noise, observation = (None, None) if state.density is None else state.density.bound(parameters, optimizer)
        parts = [
            (term, name)
            for term, name in _OF_PARAMETERS.items()
            if loss.weights[term] and parameters.by_name[name].value.numel()
        ]
        bound = {name: _parameter(name, parameters, optimizer) for name in parameters.wanted}
        native = resident.bind(
            self._machine,
            state.step,
            scene,
            plan.settings,
            self._views,
            plan.cameras[0],
            views_of_step=len(views),
            background=plan.background_on(scene.device),
            loss=resident.ImageTerms(**{name: loss.weights[name] for name in _OF_COLORS}, padding=loss.padding),
            means=[resident.MeanTerm(name, loss.weights[term], parameters.by_name[name].value) for term, name in parts],
            parameters=bound,
            adam=resident.Adam(optimizer.betas, optimizer.epsilon, optimizer.visible_only),
            noise=noise,
            observation=observation,
        )
        report = {
            "weights": {name: float(loss.weights[name]) for name in _OF_COLORS},
            "parts": [(term, loss.weights[term]) for term, _ in parts],
            "names": tuple(bound),
            "count": parameters.count,
        }
        return _Binding(native, state.plan, parameters, state.density, degree, len(views), report)

    def _add(self, state: TrainingState, number: int, limits: Limits) -> None:
        """Bind a view; InvalidArgumentError if it cannot be rendered."""
        if number in self._views:
            return
        plan = _planned(state, [number], limits).plan
        scene = gaussians.Gaussians(**state.parameters.values)
        target = _target(state, number)
        assert target is not None
        self._views.add(number, plan.cameras[0], scene, plan.settings, target)


def _is_plain(state: TrainingState) -> bool:
    """Whether the extension has steps of this kind of training."""
    plan, loss = state.plan, state.plan.loss
    if plan.kind != KIND or loss is None or not loss.compares_color or not state.parameters.count:
        return False
    known = (*_OF_COLORS, *_OF_PARAMETERS)
    if any(weight and name not in known for name, weight in loss.weights.items()):
        return False
    settings = plan.settings
    return (
        settings.primitive != gaussians_pb2.PRIMITIVE_SURFEL
        and settings.response != gaussians_pb2.RESPONSE_RAY
        and settings.projection_method != gaussians_pb2.PROJECTION_METHOD_UNSCENTED
        and EXPOSURES not in plan.optimizer.rates
        and not state.refinement.wanted
        and len(settings.background) in (0, _channels(state))
    )


def _are_plain(state: TrainingState, views: Sequence[int]) -> bool:
    """Whether the views of a step have cameras and target images that steps without Python can have."""
    try:
        state.views.check(views, "step.views")
    except InvalidArgumentError:
        # Of those that are made one by one, the step is refused.
        return False
    targets = [_target(state, number) for number in views]
    return (
        all(state.views.messages[number].camera.HasField("opencv") for number in views)
        and all(target is not None and target.shape[-1] == _channels(state) for target in targets)
        and len({target.dtype for target in targets if target is not None}) == 1
    )


def _channels(state: TrainingState) -> int:
    values = state.parameters.values
    return int((values["sh"] if "sh" in values else values["colors"]).shape[-1])


def _target(state: TrainingState, number: int) -> torch.Tensor | None:
    """The target image of a view, if it is nothing but colours."""
    tensors = state.views.tensors(number)
    return tensors["color"] if set(tensors) == {"color"} else None


def _degree(state: TrainingState, step: int) -> int:
    values = state.parameters.values
    return state.plan.sh_degree(step, isqrt(values["sh"].shape[1]) - 1) if "sh" in values else -1


def _planned(state: TrainingState, views: Sequence[int], limits: Limits) -> Planned:
    assert state.plan.loss is not None
    return Planned.of(state, list(views), state.plan.loss.at(state.step).outputs, limits, "step")


def _parameter(name: str, parameters: Parameters, optimizer: Any) -> resident.Parameter:
    parameter = parameters.by_name[name]
    assert parameter.first is not None and parameter.second is not None
    known = optimizer.rates
    rates = [known[part].numbers if part in known else (0.0, 0.0, 0) for part in parameters_of(name)]
    return resident.Parameter(
        raw=parameter.raw,
        first=parameter.first,
        second=parameter.second,
        value=None if parameter.value is parameter.raw else parameter.value,
        activation=parameter.activation,
        rate=rates[-1],
        head=int(parameter.raw.shape[-1]) if len(rates) > 1 else 0,
        head_rate=rates[0],
    )


def _check(outcome: Outcome, run: Any, call: Call) -> None:
    """Raise if a step was not made because its call has ended, or because it took too long."""
    if outcome == Outcome.CANCELLED:
        call.check()
        raise CancelledError
    if outcome == Outcome.OVERDUE:
        raise DeviceTimeError(run.overdue_limit)
