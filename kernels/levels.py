"""Levels: values from 0 to 1 as whole numbers from 0 to 255, which displays and image files take."""

from __future__ import annotations

import torch

# Values that fit into a core's cache together with their results.
_PART = 1 << 16


def write_levels(values: torch.Tensor, levels: torch.Tensor) -> None:
    """Map 0..1 to 0..255, rounded, ties to even, into contiguous uint8; values outside are clamped, NaN becomes 0."""
    part = _PART if values.device.type == "cpu" else max(1, values.numel())
    for source, target in zip(torch.split(values.flatten(), part), torch.split(levels.view(-1), part), strict=True):
        scaled = source.mul(255.0).nan_to_num_(nan=0.0, posinf=255.0, neginf=0.0)
        target.copy_(scaled.clamp_(0.0, 255.0).round_())
