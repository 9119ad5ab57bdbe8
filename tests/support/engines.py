"""The machines that the sphere engine runs on, behind one face: the same tests go to each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from lumigrad.kernels import spheres
from torch import Tensor


@dataclass(frozen=True)
class Engine:
    """`lumigrad.kernels.spheres` with tensors on one device; takes and returns tensors on the CPU."""

    name: str
    device: torch.device
    _forward: Callable[..., spheres.Forward] = field(default=spheres.forward)
    _backward: Callable[..., spheres.Backward] = field(default=spheres.backward)

    def forward(
        self,
        positions: Tensor,
        colors: Tensor,
        radii: Tensor,
        cameras: Sequence[spheres.Camera],
        settings: spheres.Settings,
        *,
        opacities: Tensor | None = None,
        background: Tensor | None = None,
        outputs: Sequence[str] = ("color",),
        retain: bool = False,
    ) -> tuple[dict[str, Tensor], spheres.State | None]:
        """Outputs by name, and the state for `backward` if it is to be retained."""
        result = self._forward(
            positions.to(self.device),
            colors.to(self.device),
            radii.to(self.device),
            cameras,
            settings,
            opacities=None if opacities is None else opacities.to(self.device),
            background=None if background is None else background.to(self.device),
            outputs=outputs,
            retain=retain,
        )
        return {name: value.cpu() for name, value in result.outputs.items()}, result.state

    def backward(
        self, state: spheres.State | None, output_gradients: Mapping[str, Tensor], wanted: Sequence[str]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients by name, and for each sphere the number of pixels that it took part in."""
        assert state is not None
        upstream = {name: value.to(self.device) for name, value in output_gradients.items()}
        result = self._backward(state, upstream, wanted)
        return {name: value.cpu() for name, value in result.gradients.items()}, result.touched.cpu()


def _cpu() -> Engine:
    return Engine("cpu", torch.device("cpu"))


def _gpu() -> Engine:
    return Engine("gpu", torch.device("cuda", 0))


# A name per machine. "gpu" carries the marker of the same name.
ENGINES: dict[str, Callable[[], Engine]] = {"cpu": _cpu, "gpu": _gpu}
