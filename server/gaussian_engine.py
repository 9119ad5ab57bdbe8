"""The Gaussian kernels, as the services see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from lumigrad.kernels import gaussians
from lumigrad.server.arrivals import Shapes
from lumigrad.server.content import Tensors
from lumigrad.server.gaussian_cloud import KIND
from lumigrad.server.gaussian_plan import GaussianPlan, gaussian_plan
from lumigrad.server.limits import Limits
from lumigrad.v1 import render_pb2


class GaussianEngine:
    """Renders Gaussian clouds."""

    name = KIND

    def plan(self, spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> GaussianPlan:
        """Read and check a request."""
        return gaussian_plan(spec, shapes, limits, field)

    def forward(
        self,
        plan: GaussianPlan,
        inputs: Tensors,
        outputs: Sequence[str],
        *,
        retain: bool,
        before_view: Callable[[], object],
        into: Tensors | None = None,
    ) -> gaussians.Forward:
        """Render every view."""
        background = None
        if plan.background:
            values = torch.tensor(plan.background, dtype=torch.float32).reshape(*plan.background_shape)
            background = values.to(inputs["means"].device)
        return gaussians.forward(
            gaussians.Gaussians(**inputs),
            plan.cameras,
            plan.settings,
            background=background,
            transforms=plan.transforms,
            outputs=outputs,
            retain=retain,
            into=into,
            before_view=before_view,
        )

    def backward(
        self,
        state: gaussians.State,
        output_gradients: Tensors,
        wanted: Sequence[str],
        before_view: Callable[[], object],
    ) -> gaussians.Backward:
        """Differentiate what was rendered."""
        return gaussians.backward(state, output_gradients, wanted, before_view)

    def joined(self, plans: Sequence[GaussianPlan], inputs: Sequence[Tensors]) -> tuple[GaussianPlan, Tensors]:
        """All views of the one scene."""
        return replace(plans[0], cameras=[camera for plan in plans for camera in plan.cameras]), inputs[0]

    def shared(self, _: gaussians.State) -> tuple[()]:
        """Nothing: states count their scene."""
        return ()
