"""Levels: values from 0 to 1 as whole numbers from 0 to 255, which displays and image files take."""

from __future__ import annotations

import torch

from lumigrad.kernels import _native


def write_levels(values: torch.Tensor, levels: torch.Tensor) -> None:
    """Map 0..1 to 0..255, rounded, ties to even, into contiguous uint8; values outside are clamped, NaN becomes 0."""
    if values.device.type == "cpu":
        _native.write_levels(values.contiguous(), levels.view(values.shape))
        return
    scaled = values.mul(255.0).nan_to_num_(nan=0.0, posinf=255.0, neginf=0.0)
    levels.copy_(scaled.clamp_(0.0, 255.0).round_())
