"""Training steps without Python, between two changes of rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

import torch

from lumigrad.kernels import gaussians, resident
from lumigrad.kernels._native import Outcome, ResidentRun
from lumigrad.kernels.spheres.inputs import check_inputs
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import CancelledError, DeviceLostError, DeviceTimeError, InvalidArgumentError
from lumigrad.server.core.limits import Limits
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.engines.cameras import makes_sensors
from lumigrad.server.engines.spheres import KIND as SPHERES
from lumigrad.server.engines.spheres import SpherePlan
from lumigrad.server.training.cameras import CameraRefinement
from lumigrad.server.training.density import DensityState, has_changed_rows
from lumigrad.server.training.images import Planned
from lumigrad.server.training.parameters import Parameters, Refinement, parameters_of
from lumigrad.server.training.run_report import OF_COLORS, OF_PLANES, OF_SURFACES, RunReport
from lumigrad.server.training.spec import EXPOSURES, TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import spheres_pb2

# Loss terms that are means of parameters.
_OF_PARAMETERS = (("opacity", "opacities"), ("scale", "scales"), ("scale", "radii"))


@dataclass(frozen=True, eq=False)
class _Key:
    """The key of a bound step: the parts of the state that are replaced when rows change, and the numbers of a step."""

    plan: TrainingPlan
    parameters: Parameters
    density: DensityState | None
    exposures: Refinement | None
    refinement: CameraRefinement
    numbers: tuple[int, ...]

    @staticmethod
    def of(state: TrainingState, views: Sequence[int]) -> _Key:
        """Return the key of the next step."""
        numbers = _degree(state, state.step), len(views), int(_has_surfaces(state, state.step))
        return _Key(state.plan, state.parameters, state.density, state.exposures, state.refinement, numbers)

    def copied(self) -> _Key:
        """Return this key with copies of everything that steps change."""
        density, exposures = self.density, self.exposures
        return replace(
            self,
            parameters=self.parameters.copied(),
            density=None if density is None else density.copied(),
            exposures=None if exposures is None else exposures.copied(),
            refinement=self.refinement.copied(),
        )

    def fits(self, other: _Key) -> bool:
        """Return whether steps bound for this key can also be made for another."""
        names = ("plan", "parameters", "density", "exposures", "refinement")
        are_kept = (getattr(self, name) is getattr(other, name) for name in names)
        return self.numbers == other.numbers and all(are_kept)


@dataclass(eq=False)
class _Binding:
    """Steps bound to the extension, and the key they were bound for."""

    native: Any
    key: _Key
    report: dict[str, Any]
    # The memory of a step, by the size of its images.
    costs: dict[tuple[int, int], int] = field(default_factory=dict)


class ResidentSteps:
    """Makes those steps of one training that need no Python."""

    def __init__(self, make_machine: Callable[[], Any]) -> None:
        """Create it without a machine; `make_machine` makes the extension's machine for the device."""
        self._make_machine = make_machine
        # None until a step is bound.
        self._machine: Any = None
        self._views = resident.Views()
        self._are_sensors = False
        self._binding: _Binding | None = None

    def length(self, state: TrainingState, views: Sequence[Sequence[int]]) -> int:
        """Return how many of the next steps, which have these views, one run can make; 0 if not even the next one."""
        every = state.plan.message.snapshot_every
        degree, size, surfaces = _degree(state, state.step), len(views[0]), _has_surfaces(state, state.step)
        for index, each in enumerate(views):
            step = state.step + index
            if _is_due(state, step) or _degree(state, step) != degree or len(each) != size:
                return index
            if not (_is_plain(state, step) and _are_plain(state, each)) or _has_surfaces(state, step) != surfaces:
                return index
            if every and (step + 1) % every == 0:
                return index + 1
        return len(views)

    def is_controlled(self, state: TrainingState, views: Sequence[int]) -> bool:
        """Return whether density control is due in the next step, which has these views, and `control` can make it."""
        return _is_due(state, state.step) and _is_plain(state, state.step) and _are_plain(state, views)

    def cost(self, state: TrainingState, views: Sequence[Sequence[int]], limits: Limits) -> int:
        """Bind the next steps; returns the memory that the largest of them needs."""
        binding = self._bound(state, views[0], limits)
        self._add_all(state, views, limits)
        sizes: dict[tuple[int, int], Sequence[int]] = {}
        for each in views:
            camera = state.views.messages[each[0]].camera
            sizes.setdefault((camera.width, camera.height), each)
        for size in sizes.keys() - binding.costs.keys():
            binding.costs[size] = _bytes(state, sizes[size], limits)
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
        """Make the next steps, whose cost is `cost`, until one cannot be made. Returns None if no step was made.

        The worker has chosen `chosen` views of each step. Raises the error of a call that has ended, or
        DeviceLostError.
        """
        room = memory.room_bytes(cost)
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
        if run.done:
            state.refinement.note_steps()
        call.times.add("queue", run.queued_milliseconds)
        if outcome == Outcome.LOST:
            raise DeviceLostError
        if not run.done:
            _check(outcome, run, call)
            return None
        return RunReport(run.reports, views, _targets(state, views), **binding.report)

    def control_cost(self, state: TrainingState, views: Sequence[int], limits: Limits) -> int:
        """Prepare the next step, in which density control is due; returns the memory that it needs."""
        self._add_all(state, [views], limits)
        return _bytes(state, views, limits) + state.copied_bytes

    def control(self, state: TrainingState, views: Sequence[int], chosen: int, limits: Limits, call: Call) -> RunReport:
        """Make the next step, in which density control is due; on the device's thread.

        The step changes copies, which replace the state at the end, because control may fail after the optimiser has
        stepped. The host waits for the device once, for the new number of rows.
        """
        key, step = _Key.of(state, views).copied(), state.step
        assert key.density is not None
        binding = self._bind(state, views, key, limits, adds_noise=False)
        report = binding.native.step(list(views))
        done, density = key.density.controlled(key.parameters, step, state.reservation)
        density.noise(key.parameters, key.plan.optimizer, step)()
        call.check()
        made = RunReport([report], [views], _targets(state, [views]), **binding.report)
        made = replace(made, count=key.parameters.count, density=done)
        key.refinement.note_steps()
        state.parameters, state.density = key.parameters, density
        state.exposures, state.refinement = key.exposures, key.refinement
        state.generation += has_changed_rows(done)
        state.chosen += chosen
        state.step += 1
        return made

    def _bound(self, state: TrainingState, views: Sequence[int], limits: Limits) -> _Binding:
        binding, key = self._binding, _Key.of(state, views)
        if binding is None or not binding.key.fits(key):
            self._binding = None
            binding = self._binding = self._bind(state, views, key, limits)
        return binding

    def _bind(
        self, state: TrainingState, views: Sequence[int], key: _Key, limits: Limits, *, adds_noise: bool = True
    ) -> _Binding:
        """Bind the steps of a key."""
        parameters, optimizer = key.parameters, state.plan.optimizer
        assert state.plan.loss is not None
        loss = state.plan.loss.at(state.step)
        self._machine = self._machine or self._make_machine()
        plan = _planned(state, views, limits).plan
        exposures = None
        if key.exposures is not None:
            exposures = key.exposures.bound(optimizer.rates[EXPOSURES], is_centered=optimizer.changes_colors)
        noise, observation = (None, None) if key.density is None else key.density.bound(parameters, optimizer)
        parts = [
            (term, name)
            for term, name in _OF_PARAMETERS
            if loss.weights[term] and name in parameters.by_name and parameters.by_name[name].value.numel()
        ]
        bound = {name: _parameter(name, parameters, optimizer) for name in parameters.wanted}
        native = resident.bind(
            self._machine,
            state.step,
            _scene(parameters, plan),
            self._views,
            views_of_step=len(views),
            loss=resident.ImageTerms(
                **{name: loss.weights[name] for name in (*OF_COLORS, *OF_PLANES, *OF_SURFACES)}, padding=loss.padding
            ),
            means=[resident.MeanTerm(name, loss.weights[term], parameters.by_name[name].value) for term, name in parts],
            parameters=bound,
            adam=resident.Adam(optimizer.betas, optimizer.epsilon, optimizer.visible_only),
            exposures=exposures,
            **key.refinement.bound(state.views, optimizer, _device(parameters), are_sensors=_are_sensors(plan)),
            noise=noise if adds_noise else None,
            observation=observation,
        )
        report = {
            "weights": {name: float(weight) for name, weight in loss.weights.items()},
            "parts": [*(name for name in OF_SURFACES if loss.weights[name]), *(term for term, _ in parts)],
            "names": tuple(bound),
            "count": parameters.count,
        }
        return _Binding(native, key, report)

    def _add_all(self, state: TrainingState, views: Sequence[Sequence[int]], limits: Limits) -> None:
        for each in views:
            if not all(number in self._views for number in each) or (len(each) > 1 and self._are_sensors):
                self._add(state, each, limits)

    def _add(self, state: TrainingState, views: Sequence[int], limits: Limits) -> None:
        """Bind the views of a step; raises InvalidArgumentError if they cannot be rendered."""
        plan = _planned(state, views, limits).plan
        scene, loss = _scene(state.parameters, plan), state.plan.loss
        assert loss is not None
        # Only a plan shows whether cameras of different kinds can be rendered together.
        self._are_sensors = _are_sensors(plan)
        for number, camera in zip(views, plan.cameras, strict=True):
            target = dict(state.views.tensors(number))
            if not loss.compares_color:
                target.pop("color", None)
            if isinstance(scene, resident.SphereScene):
                self._views.add_spheres(number, camera, scene.scene, target)
            else:
                self._views.add(number, camera, scene.scene, plan.settings, target)


def _scene(parameters: Parameters, plan: Any) -> resident.GaussianScene | resident.SphereScene:
    """Return the scene of a plan's steps."""
    background = plan.background_on(_device(parameters))
    if isinstance(plan, SpherePlan):
        values: dict[str, Any] = {"opacities": None, "background": background, **parameters.values}
        return resident.SphereScene(scene=check_inputs(**values), settings=plan.settings)
    scene = gaussians.Gaussians(**parameters.values)
    return resident.GaussianScene(scene=scene, settings=plan.settings, camera=plan.cameras[0], background=background)


def _device(parameters: Parameters) -> torch.device:
    return next(iter(parameters.values.values())).device


def _are_sensors(plan: Any) -> bool:
    return not isinstance(plan, SpherePlan) and plan.cameras[0].is_sensor


def _is_due(state: TrainingState, step: int) -> bool:
    return state.density is not None and state.density.is_due(step)


def _targets(state: TrainingState, views: Sequence[Sequence[int]]) -> list[Collection[str]]:
    """Return the names of the tensors that each step's target images have."""
    return [tuple(state.views.tensors(each[0])) for each in views]


def _is_plain(state: TrainingState, step: int) -> bool:
    """Return whether the extension can make this step of this kind of training."""
    plan, loss = state.plan, state.plan.loss
    if loss is None or not state.parameters.count or state.blocks is not None:
        return False
    is_cpu = _device(state.parameters).type == "cpu"
    if plan.kind == SPHERES:
        # Python's step gives the error of alphas without a gradient.
        is_exact = plan.settings.semantics != spheres_pb2.SEMANTICS_COMPAT
        return is_cpu and not state.refinement.wanted and (is_exact or not loss.weights["alpha"])
    if not state.refinement.is_resident(makes_sensors=makes_sensors(plan.settings)):
        return False
    # The terms of surfaces do not run on GPUs yet, and there are no pose gradients through the normals of a surface.
    return not _has_surfaces(state, step) or (is_cpu and not state.refinement.wanted)


def _has_surfaces(state: TrainingState, step: int) -> bool:
    """Return whether the loss of a step includes terms of surfaces."""
    assert state.plan.loss is not None
    weights = state.plan.loss.at(step).weights
    return any(weights[name] for name in OF_SURFACES)


def _are_plain(state: TrainingState, views: Sequence[int]) -> bool:
    """Return whether views can form a step and have what the loss compares; if not, Python's step gives the error."""
    loss = state.plan.loss
    assert loss is not None
    try:
        state.views.check(views, "step.views")
    except InvalidArgumentError:
        return False
    targets = [state.views.tensors(number) for number in views]
    kinds = {
        (frozenset(target), state.views.messages[number].camera.HasField("sensor"))
        for number, target in zip(views, targets, strict=True)
    }
    if len(kinds) != 1:
        return False
    compared = [name for term, name in OF_PLANES.items() if loss.weights[term] and name in targets[0]]
    if loss.compares_color:
        return all("color" in target and target["color"].shape[-1] == _channels(state) for target in targets)
    return bool(compared)


def _channels(state: TrainingState) -> int:
    values = state.parameters.values
    return int((values["sh"] if "sh" in values else values["colors"]).shape[-1])


def _degree(state: TrainingState, step: int) -> int:
    values = state.parameters.values
    return state.plan.sh_degree(step, isqrt(values["sh"].shape[1]) - 1) if "sh" in values else -1


def _planned(state: TrainingState, views: Sequence[int], limits: Limits) -> Planned:
    assert state.plan.loss is not None
    return Planned.of(state, list(views), state.plan.loss.at(state.step).outputs, limits, "step")


def _bytes(state: TrainingState, views: Sequence[int], limits: Limits) -> int:
    """Return the memory of a step."""
    planned, device = _planned(state, views, limits), _device(state.parameters)
    return planned.forward_bytes(device) + planned.backward_bytes(device)


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
    """Raise an error if no step was made because the call has ended, or because it took too long."""
    if outcome == Outcome.CANCELLED:
        call.check()
        raise CancelledError
    if outcome == Outcome.OVERDUE:
        raise DeviceTimeError(run.overdue_limit)
