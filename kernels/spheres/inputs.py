"""The tensors of a call, and checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check_tensor, finite_range
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.settings import Settings

_FEPS = np.float32(1e-6)


@dataclass(frozen=True)
class Inputs:
    """Contiguous float32 tensors on one device.

    Attributes:
        positions: [N, 3] world.
        colors: [N, K].
        radii: [N].
        opacities: [N] or None.
        background: [K].
    """

    positions: torch.Tensor
    colors: torch.Tensor
    radii: torch.Tensor
    opacities: torch.Tensor | None
    background: torch.Tensor

    @property
    def count(self) -> int:
        """N."""
        return self.radii.shape[0]

    @property
    def channels(self) -> int:
        """K."""
        return self.background.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.radii.device

    def arrays(self) -> dict[str, torch.Tensor | None]:
        """Keyed by the names of the extension's arguments."""
        return {
            "positions": self.positions,
            "colors": self.colors,
            "radii": self.radii,
            "opacities": self.opacities,
            "background": self.background,
        }


def check_inputs(
    positions: torch.Tensor,
    colors: torch.Tensor,
    radii: torch.Tensor,
    opacities: torch.Tensor | None,
    background: torch.Tensor | None,
) -> Inputs:
    """Checks shapes, types and devices; the default background is white.

    Raises:
        ArgumentError: An argument is invalid; the message names the first one.
    """
    device = positions.device
    check_tensor("positions", positions, (None, 3), device, "positions")
    count = positions.shape[0]
    check_tensor("colors", colors, (count, None), device, "positions")
    channels = colors.shape[1]
    if channels < 1:
        raise ArgumentError("colors", "at least one channel", f"shape {tuple(colors.shape)}")
    if count >= 2**31 - 1:
        raise ArgumentError("positions", "fewer than 2**31 - 1 spheres", f"{count}")
    check_tensor("radii", radii, (count,), device, "positions")
    if opacities is not None:
        check_tensor("opacities", opacities, (count,), device, "positions")
    if background is None:
        background = torch.ones(channels, device=device)
    check_tensor("background", background, (channels,), device, "positions")
    return Inputs(
        positions.detach().contiguous(),
        colors.detach().contiguous(),
        radii.detach().contiguous(),
        None if opacities is None else opacities.detach().contiguous(),
        background.detach().contiguous(),
    )


def check_values(
    positions: torch.Tensor, colors: torch.Tensor, radii: torch.Tensor, opacities: torch.Tensor | None = None
) -> None:
    """Checks the values of a scene, which `forward` does not.

    Raises:
        ArgumentError: A position or a colour is not finite, a radius is not finite and above 1e-6, or an opacity is
            outside [0, 1].
    """
    if radii.numel() == 0:
        return
    for name, tensor in (("positions", positions), ("colors", colors)):
        finite_range(name, tensor)
    low, high = (float(value) for value in torch.aminmax(radii))
    if not (low > float(_FEPS) and high < float("inf")):
        raise ArgumentError("radii", "finite values above 1e-6", f"values from {low} to {high}")
    if opacities is not None:
        low, high = (float(value) for value in torch.aminmax(opacities))
        if not (low >= 0.0 and high <= 1.0):
            raise ArgumentError("opacities", "values in [0, 1]", f"values from {low} to {high}")


def depth_range(cameras: Sequence[Camera], settings: Settings) -> tuple[float, float]:
    """The near and far end of the depth range, with the default for a near end of 0; scene units.

    Raises:
        ArgumentError: The near end is not above every focal length, or the far end not above the near one.
    """
    focal = max(camera.auto_min_depth for camera in cameras)
    if settings.min_depth == 0.0:
        exact = focal + 2e-6
        near = exact if settings.exact else float(np.float32(focal) + np.float32(2) * _FEPS)
    else:
        near = settings.min_depth
    if not near > focal:
        raise ArgumentError("min_depth", f"0 or a value above the largest focal length, {focal}", f"{near}")
    if not settings.max_depth > near + 1e-6:
        raise ArgumentError("max_depth", f"a value above min_depth ({near}) by more than 1e-6", f"{settings.max_depth}")
    return near, settings.max_depth


def enclosing(settings: Settings, inputs: Inputs, cameras: Sequence[Camera]) -> Settings:
    """The settings; a missing far end is set behind the box around all spheres, as seen from every camera."""
    if settings.max_depth != 0.0:
        return settings
    depth = 2.0 * max([settings.min_depth, 1e-3, *(camera.auto_min_depth for camera in cameras)])
    if inputs.count:
        low = (inputs.positions - inputs.radii[:, None]).amin(0).tolist()
        high = (inputs.positions + inputs.radii[:, None]).amax(0).tolist()
        depth = max(depth, 1.001 * max(_native.farthest_corner(low, high, camera.eye) for camera in cameras))
    # Depths in requests are float32.
    return replace(settings, max_depth=float(np.float32(depth)))


def check_cameras(cameras: Sequence[Camera]) -> None:
    """Checks that the cameras of a call have one size.

    Raises:
        ArgumentError: There are no cameras, or their sizes differ.
    """
    if not cameras:
        raise ArgumentError("cameras", "at least one", "none")
    sizes = {(camera.width, camera.height) for camera in cameras}
    if len(sizes) > 1:
        raise ArgumentError("cameras", "one size (width, height) for all of a call", f"{sorted(sizes)}")
