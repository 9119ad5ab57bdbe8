"""Renders views of a training, compares them with photographs, and differentiates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import training
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import Limits, arguments_of, require
from lumigrad.server.engines.content import Tensors, shapes_of
from lumigrad.server.scenes.lookup import ENGINES
from lumigrad.server.training.spec import Loss
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import render_pb2

# How the names of gradients of cameras begin.
_OF_CAMERAS = ("camera_", "lens_", "windshield_")


@dataclass(frozen=True)
class Rendered:
    """A forward pass that waits for its gradients.

    Attributes:
        outputs: Output tensors on the device; exposures are applied to colours.
        plain: The colours without exposures; None: there are no exposures.
    """

    outputs: Mapping[str, torch.Tensor]
    plain: torch.Tensor | None
    state: Any
    planned: Planned
    generation: int

    @property
    def views(self) -> Sequence[int]:
        """The numbers of the views."""
        return self.planned.views

    @property
    def bytes(self) -> int:
        """The memory it takes until its gradients arrive."""
        plain = 0 if self.plain is None else self.plain.nbytes
        return int(self.state.bytes) + sum(output.nbytes for output in self.outputs.values()) + plain


@dataclass(frozen=True)
class Planned:
    """A planned forward pass and its backward pass.

    Attributes:
        wanted: The engine's names of the requested gradients.
        field: The path of the step in the request.
        chosen: The number of views that the worker chose.
    """

    views: Sequence[int]
    outputs: Sequence[str]
    wanted: Sequence[str]
    plan: Any
    field: str
    chosen: int = 0

    @staticmethod
    def of(
        state: TrainingState, views: Sequence[int], outputs: Sequence[str], limits: Limits, field: str, chosen: int = 0
    ) -> Planned:
        """Plan a step with the current parameters; InvalidArgumentError if it exceeds a limit."""
        spec = render_pb2.RenderSpec(cameras=state.cameras(views), outputs=outputs)
        settings = getattr(spec, state.plan.kind)
        settings.CopyFrom(state.plan.settings)
        values = state.parameters.values
        if "sh" in values:
            settings.sh_degree = state.plan.sh_degree(state.step, int(values["sh"].shape[1] ** 0.5 + 0.5) - 1)
        plan = ENGINES[state.plan.kind].plan(spec, shapes_of(values), limits, field)
        names, wanted = list(plan.outputs), list(state.parameters.wanted)
        wanted += state.refinement.wanted
        if state.density is not None:
            names += [name for name in state.density.outputs if name not in names]
            wanted += state.density.gradients
        return Planned(views, names, wanted, plan, field, chosen)

    def forward_bytes(self, device: torch.device) -> int:
        """Estimated device memory of rendering, forward state included."""
        return int(self.plan.forward_bytes(self.outputs, retain=True, device=device))

    def backward_bytes(self, device: torch.device) -> int:
        """Estimated additional device memory of the backward pass, gradients of all outputs included."""
        return int(self.plan.image_bytes(self.plan.outputs) + self.plan.backward_bytes(self.wanted, device))


def render(state: TrainingState, planned: Planned, call: Call) -> Rendered:
    """Render the planned views with the current parameters."""
    engine, values, views = ENGINES[state.plan.kind], state.parameters.values, planned.views
    with arguments_of(planned.field):
        forward = engine.forward(planned.plan, values, planned.outputs, retain=True, before_view=call.check)
    call.times.add_kernel(forward.stages())
    rendered, plain = dict(forward.outputs), None
    if state.exposures is not None and "color" in rendered:
        plain = rendered["color"]
        rendered["color"] = training.apply_exposure(plain, state.exposures.values[list(views)])
    return Rendered(rendered, plain, forward.state, planned, state.generation)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a step.

    Attributes:
        touched: [N], 0 for primitives that are not visible in any view.
        views: The views of the rows below.
        exposures: [C, 3, 4]; None: not optimised.
        cameras: The engine's, of the views' cameras.
    """

    by_name: dict[str, torch.Tensor]
    touched: torch.Tensor
    views: Sequence[int]
    exposures: torch.Tensor | None
    cameras: Tensors


def differentiate(
    state: TrainingState, rendered: Rendered, upstream: Mapping[str, torch.Tensor], call: Call
) -> Gradients:
    """Compute the gradients of the parameters from those of the outputs."""
    upstream, exposures = dict(upstream), None
    if rendered.plain is not None and "color" in upstream:
        assert state.exposures is not None
        matrices = state.exposures.values[list(rendered.views)]
        upstream["color"], exposures = training.exposure_gradient(rendered.plain, matrices, upstream["color"])
    engine = ENGINES[state.plan.kind]
    with arguments_of("gradients.output_gradients"):
        result = engine.backward(rendered.state, upstream, rendered.planned.wanted, call.check)
    call.times.add_kernel(result.stages())
    assert result.touched is not None
    by_name, of_cameras = {}, {}
    for name, gradient in result.gradients.items():
        if name.startswith(_OF_CAMERAS):
            of_cameras[name] = gradient.cpu()
        else:
            by_name[name] = gradient
    return Gradients(by_name, result.touched, rendered.views, exposures, of_cameras)


def surface_losses(
    weights: Mapping[str, float], outputs: Mapping[str, torch.Tensor], upstream: dict[str, torch.Tensor]
) -> dict[str, float]:
    """The terms of the surface that surfels describe; adds their gradients to `upstream`."""
    terms: dict[str, float] = {}
    found: dict[str, torch.Tensor] = {}
    if weights["normal"]:
        normal = training.normal_loss(outputs["alpha"], outputs["normals"], outputs["surface_normals"])
        terms["normal"] = normal.value
        found |= {name: weights["normal"] * gradient for name, gradient in normal.gradients.items()}
    if weights["distortion"]:
        distortion = outputs["distortion"]
        terms["distortion"] = float(distortion.mean(dtype=torch.float64))
        found["distortion"] = torch.full_like(distortion, weights["distortion"] / distortion.numel())
    for name, gradient in found.items():
        upstream[name] = upstream[name] + gradient if name in upstream else gradient
    return terms


@dataclass(frozen=True)
class Losses:
    """A loss, its terms, and the gradients of the outputs it compares."""

    total: float
    terms: Mapping[str, float]
    upstream: Mapping[str, torch.Tensor]


def losses(loss: Loss, state: TrainingState, rendered: Rendered) -> Losses:
    """Compare rendered views with their target images."""
    weights, views = loss.weights, state.views
    mask = views.stacked(rendered.views, "mask")
    terms: dict[str, float] = {}
    upstream: dict[str, torch.Tensor] = {}
    total = 0.0
    if loss.compares_color:
        color = views.stacked(rendered.views, "color")
        require(color is not None, "step.views", "views whose target images have colours", "others")
        assert color is not None
        found = training.image_loss(
            rendered.outputs["color"], color, mask,
            l1=weights["l1"], l2=weights["l2"], dssim=weights["dssim"], padding=loss.padding,
        )  # fmt: skip
        values = found.values()
        total += values.pop("total")
        terms |= values
        upstream["color"] = found.gradient
    if weights["depth"]:
        depth = views.stacked(rendered.views, "depth")
        if depth is not None:
            compared = training.depth_loss(rendered.outputs["expected_depth"], depth)
            total += weights["depth"] * compared.value
            terms["depth"] = compared.value
            upstream["expected_depth"] = weights["depth"] * compared.gradient
    if weights["alpha"] and mask is not None:
        compared = training.alpha_loss(rendered.outputs["alpha"], mask)
        total += weights["alpha"] * compared.value
        terms["alpha"] = compared.value
        upstream["alpha"] = weights["alpha"] * compared.gradient
    require(bool(upstream), "step.views", "views whose target images have what the loss compares", "others")
    of_surface = surface_losses(weights, rendered.outputs, upstream)
    total += sum(weights[name] * value for name, value in of_surface.items())
    terms |= of_surface
    return Losses(total, terms, upstream)
