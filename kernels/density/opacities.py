"""Opacities that are to be earned anew."""

from __future__ import annotations

import torch

from lumigrad.kernels.checks import check, is_number
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.thresholds import logit
from lumigrad.kernels.errors import ArgumentError


def reset_opacities(parameters: Parameters, maximum: float = 0.01) -> None:
    """Lowers opacities to at most `maximum`, in place, and starts their moments from 0 (Kerbl et al., SIGGRAPH 2023).

    Args:
        parameters: What is under training.
        maximum: In (0, 1); gsplat takes twice the opacity below which it prunes.

    Raises:
        ArgumentError: An argument does not fit, or these are spheres without opacities.
    """
    check_parameters(parameters)
    check(is_number(maximum) and 0.0 < float(maximum) < 1.0, "maximum", "a value in (0, 1)", maximum)
    if "opacities" not in parameters.tensors:
        raise ArgumentError("parameters", "some with 'opacities'", f"{sorted(parameters.tensors)}")
    limit = logit(float(maximum)) if parameters.gaussians else float(maximum)
    with torch.no_grad():
        parameters.tensors["opacities"].clamp_(max=limit)
        for moment in parameters.moments.get("opacities", ()):
            moment.zero_()
