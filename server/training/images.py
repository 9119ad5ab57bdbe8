"""Losses between renders and photographs, and gradients of poses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import training
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import Limits, arguments_of, require
from lumigrad.server.engines.content import Tensors, shapes_of
from lumigrad.server.scenes.kinds import ENGINES
from lumigrad.server.training.spec import Loss
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import camera_pb2, render_pb2


def pose_gradients(gradients: Tensors, cameras: Sequence[camera_pb2.Camera]) -> torch.Tensor:
    """[C, 6], of exp(xi) on the left of world-to-camera matrices, xi = (translation, rotation).

    With x' = x + w: the gradient of t gives that of the translation; of the rotation w, t x g_t and the sum over the
    columns r of R of r x g_r.
    """
    if "camera_pose" in gradients:
        return gradients["camera_pose"]
    of_rotation, of_translation = gradients["camera_rotation"].double(), gradients["camera_translation"].double()
    device = of_rotation.device
    rotation = torch.tensor([list(c.opencv.rotation) for c in cameras], dtype=torch.float64, device=device)
    translation = torch.tensor([list(c.opencv.translation) for c in cameras], dtype=torch.float64, device=device)
    columns = rotation.reshape(-1, 3, 3)
    turning = torch.linalg.cross(columns, of_rotation, dim=1).sum(dim=2)
    turning = turning + torch.linalg.cross(translation, of_translation)
    return torch.cat([of_translation, turning], dim=1).float()


@dataclass(frozen=True)
class Rendered:
    """A forward pass that waits for its gradients.

    Attributes:
        outputs: On the device; colours as their exposures make them.
        plain: The colours that were rendered; None: there are no exposures.
        state: The engine's.
        planned: What was asked.
        generation: Of the rows that were rendered.
    """

    outputs: Mapping[str, torch.Tensor]
    plain: torch.Tensor | None
    state: Any
    planned: Planned
    generation: int

    @property
    def views(self) -> Sequence[int]:
        """By number."""
        return self.planned.views

    @property
    def bytes(self) -> int:
        """Memory that it takes until its gradients come."""
        plain = 0 if self.plain is None else self.plain.nbytes
        return int(self.state.bytes) + sum(output.nbytes for output in self.outputs.values()) + plain


@dataclass(frozen=True)
class Planned:
    """A forward pass that is to be made, and the backward pass behind it.

    Attributes:
        views: By number.
        outputs: That are rendered.
        wanted: That is differentiated by, as the engine names it.
        plan: The engine's.
        field: The path of the step in the request.
        chosen: How many of the views the worker chose.
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
        """Check what the views of a step take, with the parameters as they are now."""
        spec = render_pb2.RenderSpec(cameras=state.views.cameras(views), outputs=outputs)
        settings = getattr(spec, state.plan.kind)
        settings.CopyFrom(state.plan.settings)
        values = state.parameters.values
        if "sh" in values:
            settings.sh_degree = state.plan.sh_degree(state.step, int(values["sh"].shape[1] ** 0.5 + 0.5) - 1)
        plan = ENGINES[state.plan.kind].plan(spec, shapes_of(values), limits, field)
        names, wanted = list(plan.outputs), list(state.parameters.wanted)
        if state.poses is not None:
            wanted.append("cameras")
        if state.density is not None:
            names += [name for name in state.density.outputs if name not in names]
            wanted += state.density.gradients
        return Planned(views, names, wanted, plan, field, chosen)

    def forward_bytes(self, device: torch.device) -> int:
        """About what rendering takes of the device's memory, with all that stays until gradients come."""
        return int(self.plan.forward_bytes(self.outputs, retain=True, device=device))

    def backward_bytes(self, device: torch.device) -> int:
        """About what differentiating takes beside that, with the gradients of all outputs."""
        return int(self.plan.image_bytes(self.plan.outputs) + self.plan.backward_bytes(self.wanted, device))


def render(state: TrainingState, planned: Planned, call: Call) -> Rendered:
    """Render some views of the parameters as they are now."""
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
    """What a step's images say of everything that is optimised.

    Attributes:
        by_name: As the engine names them.
        touched: [N], 0 where no view saw a primitive.
        views: What the rows of what follows are for.
        exposures: [C, 3, 4]; None: they are not optimised.
        poses: [C, 6], likewise.
    """

    by_name: dict[str, torch.Tensor]
    touched: torch.Tensor
    views: Sequence[int]
    exposures: torch.Tensor | None
    poses: torch.Tensor | None


def differentiate(
    state: TrainingState, rendered: Rendered, upstream: Mapping[str, torch.Tensor], call: Call
) -> Gradients:
    """From the gradients of the outputs to those of the parameters."""
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
    poses = None
    if state.poses is not None:
        poses = pose_gradients(result.gradients, state.views.cameras(rendered.views))
    return Gradients(dict(result.gradients), result.touched, rendered.views, exposures, poses)


@dataclass(frozen=True)
class Losses:
    """A loss and its terms, and the gradients of the outputs that it looked at."""

    total: float
    terms: Mapping[str, float]
    upstream: Mapping[str, torch.Tensor]


def losses(loss: Loss, state: TrainingState, rendered: Rendered) -> Losses:
    """Compare what was rendered with its targets."""
    weights, views = loss.weights, state.views
    mask = views.stacked(rendered.views, "mask")
    terms: dict[str, float] = {}
    upstream: dict[str, torch.Tensor] = {}
    total = 0.0
    if loss.compares_color:
        color = views.stacked(rendered.views, "color")
        require(color is not None, "step.views", "views whose targets have colours", "others")
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
    require(bool(upstream), "step.views", "views whose targets have what the loss compares", "others")
    return Losses(total, terms, upstream)
