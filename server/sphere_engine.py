"""The sphere kernels, as the services see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from lumigrad.kernels import spheres
from lumigrad.server.arrivals import Shapes
from lumigrad.server.content import Tensors
from lumigrad.server.limits import Limits
from lumigrad.server.sphere_cloud import KIND
from lumigrad.server.sphere_plan import SpherePlan, sphere_plan
from lumigrad.v1 import render_pb2


class SphereEngine:
    """Renders sphere clouds."""

    name = KIND

    def plan(self, spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> SpherePlan:
        """Read and check a request."""
        return sphere_plan(spec, shapes, limits, field)

    def forward(
        self,
        plan: SpherePlan,
        inputs: Tensors,
        outputs: Sequence[str],
        *,
        retain: bool,
        before_view: Callable[[], object],
        into: Tensors | None = None,
    ) -> spheres.Forward:
        """Render every view."""
        background = torch.tensor(plan.background, dtype=torch.float32) if plan.background else None
        return spheres.forward(
            inputs["positions"],
            inputs["colors"],
            inputs["radii"],
            plan.cameras,
            plan.settings,
            opacities=inputs.get("opacities"),
            background=None if background is None else background.to(inputs["positions"].device),
            outputs=outputs,
            retain=retain,
            into=into,
            before_view=before_view,
        )

    def backward(
        self,
        state: spheres.State,
        output_gradients: Tensors,
        wanted: Sequence[str],
        before_view: Callable[[], object],
    ) -> spheres.Backward:
        """Differentiate what was rendered."""
        return spheres.backward(state, output_gradients, wanted, before_view)

    def joined(self, plans: Sequence[SpherePlan], inputs: Sequence[Tensors]) -> tuple[SpherePlan, Tensors]:
        """All views of the one scene."""
        return replace(plans[0], cameras=[camera for plan in plans for camera in plan.cameras]), inputs[0]

    def shared(self, _: spheres.State) -> tuple[()]:
        """Nothing: states count their scene."""
        return ()
