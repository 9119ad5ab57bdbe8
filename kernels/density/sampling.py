"""Living Gaussians drawn in proportion to their opacities, which then share what they were."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.density.draw import Draw
from lumigrad.kernels.density.engine import Engine
from lumigrad.kernels.density.parameters import Parameters
from lumigrad.kernels.density.thresholds import logit
from lumigrad.kernels.stages import Stages

# New opacities stay below 1 by what float32 can tell from it.
_LARGEST = 1.0 - 2.0**-23


@dataclass(frozen=True, eq=False)
class Weights:
    """Of N Gaussians, by their opacities.

    Attributes:
        sums: i64 [N + 1], of the weights of those before, to be read as unsigned.
        excluded: i32 [E], Gaussians without a weight, in their order.
    """

    sums: torch.Tensor
    excluded: torch.Tensor


def weigh(engine: Engine, parameters: Parameters, minimum: float, times: Stages) -> Weights:
    """Weights of Gaussians whose raw opacities are above a minimum; on CUDA it waits for the device."""
    count, device = parameters.count, parameters.device
    sums, excluded = empty((count + 1,), torch.int64, device), empty((count,), torch.int32, device)
    number = torch.zeros(1, dtype=torch.int32, device=device)
    arrays = {"sums": sums, "excluded": excluded, "excluded_count": number}
    times.views.append(engine.run("weigh", minimum, **parameters.arrays("opacities"), **arrays))
    return Weights(sums, excluded[: int(number)])


def sample(
    engine: Engine, weights: Weights, number: int, draw: Draw, stream: str, times: Stages
) -> tuple[torch.Tensor, torch.Tensor]:
    """So many draws, of which there is at least one to draw: i32 [number] Gaussians, and i32 [N], how often each."""
    device = weights.sums.device
    rows = empty((number,), torch.int32, device)
    shares = torch.zeros(weights.sums.shape[0] - 1, dtype=torch.int32, device=device)
    times.views.append(engine.run("sample_rows", draw.native(stream), sums=weights.sums, rows=rows, shares=shares))
    return rows, shares


def share(engine: Engine, parameters: Parameters, shares: torch.Tensor, min_opacity: float, times: Stages) -> None:
    """Gives Gaussians that were drawn the opacities and scales of their shares, and moments of 0; in place."""
    limits = logit(min_opacity), logit(_LARGEST)
    moments = [moment for several in parameters.moments.values() for moment in several]
    arrays = parameters.arrays("opacities", "scales")
    times.views.append(engine.run("share_rows", *limits, moments, shares=shares, **arrays))
