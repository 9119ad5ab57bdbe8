"""Means of parameters as terms of a loss."""

from __future__ import annotations

import torch

from lumigrad.kernels.checks import check
from lumigrad.kernels.training.engine import engine_for
from lumigrad.kernels.training.tensors import check_tensor


def mean_term(values: torch.Tensor, weight: float, gradient: torch.Tensor | None = None) -> torch.Tensor:
    """The mean of a parameter's values; adds the gradient of `weight` times it to the parameter's.

    Args:
        values: f32, contiguous, at least one.
        weight: The weight of the mean in the loss.
        gradient: f32, shaped as `values`, contiguous; updated in place. None: not needed.

    Returns:
        f64 [], the mean, summed in float64, on the device.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_tensor("values", values, (torch.float32,), values.shape, None, in_place=True)
    check(values.numel() > 0, "values", "at least one", "none")
    if gradient is not None:
        check_tensor("gradient", gradient, (torch.float32,), values.shape, values.device, in_place=True)
    mean = torch.empty((), dtype=torch.float64, device=values.device)
    engine_for(values.device).run("mean", weight / values.numel(), mean, values=values, gradient=gradient)
    return mean
