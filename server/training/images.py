"""Renders views of a training, compares them with target images, and differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import gaussians, training
from lumigrad.kernels.stages import Stages
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import Limits, arguments_of, require
from lumigrad.server.engines.content import Tensors, shapes_of
from lumigrad.server.scenes.lookup import ENGINES
from lumigrad.server.training.blocks import Pages
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.spec import Loss
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import render_pb2

# Prefixes of the names of camera gradients.
_OF_CAMERAS = ("camera_", "lens_", "windshield_")


@dataclass(frozen=True)
class Rendered:
    """A forward pass that waits for its gradients.

    Attributes:
        outputs: Output tensors on the device; exposures are applied to colours.
        plain: The colours without exposures; None if there are no exposures.
        parameters: The parameters that were rendered.
        times: The kernels' times that are not yet added to a call.
    """

    outputs: Mapping[str, torch.Tensor]
    plain: torch.Tensor | None
    state: Any
    planned: Planned
    parameters: Parameters
    generation: int
    times: Stages

    @property
    def views(self) -> Sequence[int]:
        """The numbers of the views."""
        return self.planned.views

    @property
    def bytes(self) -> int:
        """The memory that it takes until its gradients arrive."""
        plain = 0 if self.plain is None else self.plain.nbytes
        return int(self.state.bytes) + sum(output.nbytes for output in self.outputs.values()) + plain


@dataclass(frozen=True)
class Planned:
    """A planned forward and backward pass.

    Attributes:
        wanted: The engine's names of the requested gradients.
        field: The path of the step in the request.
        chosen: The number of views that the worker chose.
        pages: The pages of the training's blocks that the step sees; None without blocks.
    """

    views: Sequence[int]
    outputs: Sequence[str]
    wanted: Sequence[str]
    plan: Any
    field: str
    chosen: int = 0
    pages: Pages | None = None

    @staticmethod
    def of(
        state: TrainingState, views: Sequence[int], outputs: Sequence[str], limits: Limits, field: str, chosen: int = 0
    ) -> Planned:
        """Plan a step with the current parameters; raises InvalidArgumentError if it exceeds a limit."""
        spec = render_pb2.RenderSpec(cameras=state.cameras(views), outputs=outputs)
        settings = getattr(spec, state.plan.kind)
        settings.CopyFrom(state.plan.settings)
        shapes, pages = shapes_of(state.parameters.values), None
        if "sh" in shapes:
            settings.sh_degree = state.plan.sh_degree(state.step, int(shapes["sh"][1] ** 0.5 + 0.5) - 1)
        if state.blocks is not None:
            pages = state.blocks.reached(spec, field)
            shapes = {name: [state.blocks.rows(pages), *shape[1:]] for name, shape in shapes.items()}
        plan = ENGINES[state.plan.kind].plan(spec, shapes, limits, field)
        names, wanted = list(plan.outputs), list(state.parameters.wanted)
        wanted += state.refinement.wanted
        if state.density is not None:
            names += [name for name in state.density.outputs if name not in names]
            wanted += state.density.gradients
        return Planned(views, names, wanted, plan, field, chosen, pages)

    def forward_bytes(self, device: torch.device) -> int:
        """Estimate the device memory of rendering, forward state included."""
        return int(self.plan.forward_bytes(self.outputs, retain=True, device=device))

    def backward_bytes(self, device: torch.device) -> int:
        """Estimate the additional device memory of the backward pass, gradients of all outputs included."""
        return int(self.plan.image_bytes(self.plan.outputs) + self.plan.backward_bytes(self.wanted, device))


def noted(times: Stages, call: Call) -> Stages:
    """Add kernels' times to a call, or return them for later if the device is still working."""
    if not times.is_complete:
        return times
    call.times.add_kernel(times.milliseconds())
    return Stages()


def render(state: TrainingState, planned: Planned, call: Call) -> Rendered:
    """Render the planned views with the current parameters."""
    engine, views = ENGINES[state.plan.kind], planned.views
    parameters = state.parameters
    if state.blocks is not None and planned.pages is not None:
        parameters = state.blocks.loaded(planned.pages, state.plan.optimizer, state.step)
    values = parameters.values
    with arguments_of(planned.field):
        forward = engine.forward(planned.plan, values, planned.outputs, retain=True, before_view=call.check)
    times, rendered, plain = noted(forward.times, call), dict(forward.outputs), None
    if state.exposures is not None and "color" in rendered:
        plain = rendered["color"]
        rendered["color"] = training.apply_exposure(plain, state.exposures.rows(views))
    return Rendered(rendered, plain, forward.state, planned, parameters, state.generation, times)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a step.

    Attributes:
        harmonics: Gradient of "sh", if it is not in `by_name`.
        touched: [N], 0 for primitives that no view sees.
        views: The views of the rows below.
        exposures: [C, 3, 4]; None if exposures are not optimised.
        cameras: The engine's gradients of the views' cameras.
        times: The kernels' times that are not yet added to a call.
    """

    by_name: dict[str, torch.Tensor]
    harmonics: training.HarmonicsGradient | None
    touched: torch.Tensor
    views: Sequence[int]
    exposures: torch.Tensor | None
    cameras: Tensors
    times: Stages


def _wanted(state: TrainingState, rendered: Rendered) -> Sequence[str]:
    """Return the engine's names of a step's gradients, "sh_factors" in place of "sh" if the engine gives factors."""
    names = rendered.planned.wanted
    if "sh" not in names or state.plan.kind != "gaussians" or not gaussians.gives_sh_factors(rendered.state):
        return names
    return ["sh_factors" if name == "sh" else name for name in names]


def differentiate(
    state: TrainingState, rendered: Rendered, upstream: Mapping[str, torch.Tensor], call: Call
) -> Gradients:
    """Compute the gradients of the parameters from the gradients of the outputs."""
    upstream, exposures = dict(upstream), None
    if rendered.plain is not None and "color" in upstream:
        assert state.exposures is not None
        matrices = state.exposures.rows(rendered.views)
        upstream["color"], exposures = training.exposure_gradient(rendered.plain, matrices, upstream["color"])
    engine = ENGINES[state.plan.kind]
    with arguments_of("gradients.output_gradients"):
        result = engine.backward(rendered.state, upstream, _wanted(state, rendered), call.check)
    times = noted(result.times, call)
    assert result.touched is not None
    by_name, of_cameras, harmonics = {}, {}, None
    for name, gradient in result.gradients.items():
        if name.startswith(_OF_CAMERAS):
            of_cameras[name] = gradient.cpu()
        elif name == "sh_factors":
            harmonics = training.HarmonicsGradient(gradient, rendered.planned.plan.settings.sh_degree)
        else:
            by_name[name] = gradient
    return Gradients(by_name, harmonics, result.touched, rendered.views, exposures, of_cameras, times)


@dataclass(frozen=True)
class LossPart:
    """A part of a loss, whose numbers are on the device.

    Attributes:
        numbers: f64 [...].
        read: Given the numbers on the host, returns what the part adds to the loss, and its terms.
    """

    numbers: torch.Tensor
    read: Callable[[Array], tuple[float, Mapping[str, float]]]

    @staticmethod
    def of_term(name: str, weight: float, value: torch.Tensor) -> LossPart:
        """Return a part with one term, `value`, and its weight."""
        return LossPart(value, lambda numbers: (weight * float(numbers), {name: float(numbers)}))

    @staticmethod
    def of_plane(name: str, weight: float, found: training.PlaneLoss) -> LossPart:
        """Return a term that compares planes other than colours."""

        def read(numbers: Array) -> tuple[float, Mapping[str, float]]:
            value = training.plane_loss_value(numbers.tolist())
            return weight * value, {name: value}

        return LossPart(found.sums, read)

    @staticmethod
    def of_color(found: training.ImageLoss) -> LossPart:
        """Return the terms that compare colours."""
        # Do not keep `found`, because its gradient is large.
        weights, reduction = found.weights, found.reduction

        def read(numbers: Array) -> tuple[float, Mapping[str, float]]:
            values = training.image_loss_values(numbers.tolist(), weights, reduction)
            return values.pop("total"), values

        return LossPart(found.sums, read)


@dataclass(frozen=True)
class Losses:
    """The parts of a loss, the gradients of the outputs it compares, and kernels' times not yet added to a call."""

    parts: Sequence[LossPart]
    upstream: Mapping[str, torch.Tensor]
    times: Sequence[Stages]


def losses(loss: Loss, state: TrainingState, rendered: Rendered, call: Call) -> Losses:
    """Compare rendered views with their target images. Nothing here waits for the device."""
    weights, views = loss.weights, state.views
    mask = views.stacked(rendered.views, "mask")
    parts: list[LossPart] = []
    times: list[Stages] = []
    upstream: dict[str, torch.Tensor] = {}
    if loss.compares_color:
        color = views.stacked(rendered.views, "color")
        require(color is not None, "step.views", "views whose target images have colours", "others")
        assert color is not None
        found = training.image_loss(
            rendered.outputs["color"], color, mask,
            l1=weights["l1"], l2=weights["l2"], dssim=weights["dssim"], padding=loss.padding,
        )  # fmt: skip
        parts.append(LossPart.of_color(found))
        times.append(noted(found.times, call))
        upstream["color"] = found.gradient
    if weights["depth"]:
        depth = views.stacked(rendered.views, "depth")
        if depth is not None:
            found_depth = training.depth_loss(rendered.outputs["expected_depth"], depth, weights["depth"])
            parts.append(LossPart.of_plane("depth", weights["depth"], found_depth))
            upstream["expected_depth"] = found_depth.gradient
    if weights["alpha"] and mask is not None:
        found_alpha = training.alpha_loss(rendered.outputs["alpha"], mask, weights["alpha"])
        parts.append(LossPart.of_plane("alpha", weights["alpha"], found_alpha))
        upstream["alpha"] = found_alpha.gradient
    require(bool(upstream), "step.views", "views whose target images have what the loss compares", "others")
    return Losses(parts + surface_losses(weights, rendered.outputs, upstream), upstream, times)


def surface_losses(
    weights: Mapping[str, float], outputs: Mapping[str, torch.Tensor], upstream: dict[str, torch.Tensor]
) -> list[LossPart]:
    """Return the terms of the surface that surfels describe; adds their gradients to `upstream`."""
    parts: list[LossPart] = []
    found: dict[str, torch.Tensor] = {}
    if weights["normal"]:
        alpha, normals, surface = (outputs[name] for name in ("alpha", "normals", "surface_normals"))
        normal = training.normal_loss(alpha, normals, surface, weights["normal"])
        parts.append(LossPart.of_term("normal", weights["normal"], normal.loss))
        found |= normal.gradients
    if weights["distortion"]:
        distortion = outputs["distortion"]
        mean = training.mean_term(distortion, weights["distortion"])
        parts.append(LossPart.of_term("distortion", weights["distortion"], mean))
        found["distortion"] = torch.full_like(distortion, weights["distortion"] / distortion.numel())
    for name, gradient in found.items():
        upstream[name] = upstream[name] + gradient if name in upstream else gradient
    return parts
