"""Relocation of Gaussians (3DGS as MCMC): dead ones start again where living ones are drawn, and more are added."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_number, is_whole
from lumigrad.kernels.density.apply import gather
from lumigrad.kernels.density.engine import Engine, engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.random import Draw, check_draw
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


@dataclass(frozen=True)
class Relocation:
    """What `relocate` did.

    Attributes:
        dead: How many Gaussians were.
        relocated: How many of them are alive again: all, or none where none was alive.
        times: Of the kernel stages.
    """

    dead: int
    relocated: int
    times: Stages


@dataclass(frozen=True, eq=False)
class Addition:
    """What `add_gaussians` did.

    Attributes:
        parameters: New tensors, those that were added behind the others.
        added: How many were.
        times: Of the kernel stages.
    """

    parameters: Parameters
    added: int
    times: Stages


def relocate(parameters: Parameters, draw: Draw, *, min_opacity: float = 0.005) -> Relocation:
    """Makes dead Gaussians into shares of living ones, in place.

    Each of the dead becomes a copy of a living one that is drawn with a probability in proportion to its opacity. The n
    that then lie upon each other get the opacity 1 - (1 - o)^(1/n) and the scales for which they look as the one did:
    equation 9 of Kheradmand et al., "3D Gaussian splatting as Markov chain Monte Carlo", NeurIPS 2024; from 51 on, as
    for 51. The moments of all of them start from 0. On CUDA it waits for the device, to know how many are dead.

    Args:
        parameters: Gaussians, and moments, which are changed.
        draw: Whose numbers.
        min_opacity: Those whose opacity is at most this, or no number, are dead. Nor does a share have less.

    Returns:
        How many.

    Raises:
        ArgumentError: An argument does not fit.
    """
    minimum = _checked(parameters, draw, min_opacity)
    engine, times = engine_for(parameters.device), Stages()
    weights = weigh(engine, parameters, minimum, times)
    dead = weights.excluded.shape[0]
    if dead in (0, parameters.count):
        return Relocation(dead, 0, times)
    rows, shares = sample(engine, weights, dead, draw, "relocate", times)
    share(engine, parameters, shares, min_opacity, times)
    tensors = [tensor.detach() for tensor in parameters.tensors.values()]
    moments = [moment for several in parameters.moments.values() for moment in several]
    fresh = [False] * len(tensors) + [True] * len(moments)
    arrays = {"sources": rows, "targets": weights.excluded}
    times.views.append(engine.run("move_rows", [*tensors, *moments], fresh, **arrays))
    return Relocation(dead, dead, times)


def add_gaussians(
    parameters: Parameters, draw: Draw, *, cap: int, growth: float = 0.05, min_opacity: float = 0.005
) -> Addition:
    """Adds shares of living Gaussians, as `relocate` makes them of dead ones.

    Args:
        parameters: Gaussians; nothing is changed.
        draw: Whose numbers; the same as for `relocate` will do.
        cap: No more than so many in all.
        growth: How many are added, as a part of those that there are, rounded down.
        min_opacity: A share has no less.

    Returns:
        All of them.

    Raises:
        ArgumentError: An argument does not fit.
    """
    _checked(parameters, draw, min_opacity)
    check(is_whole(cap) and cap >= 0, "cap", "a whole number >= 0", cap)
    check(is_number(growth) and 0.0 <= float(growth) <= 1.0, "growth", "a value in [0, 1]", growth)
    count, device = parameters.count, parameters.device
    engine, times = engine_for(device), Stages()
    weights = weigh(engine, parameters, logit(0.0), times)
    added = max(0, min(int(cap), int((1.0 + float(growth)) * count)) - count)
    if weights.excluded.shape[0] == count:
        added = 0
    rows, shares = sample(engine, weights, added, draw, "add", times)
    sources = torch.arange(count + added, dtype=torch.int32, device=device)
    targets = sources[count:].clone()
    sources[count:] = rows
    grown, copying = gather(parameters, sources, count)
    times.views.append(copying)
    share(engine, grown, shares, min_opacity, times)
    changed = [grown.tensors[name] for name in ("opacities", "scales")]
    times.views.append(engine.run("move_rows", changed, [False, False], sources=rows, targets=targets))
    return Addition(grown, added, times)


def _checked(parameters: Parameters, draw: Draw, min_opacity: float) -> float:
    """The raw value of `min_opacity`."""
    check_parameters(parameters)
    parameters.require_gaussians("sharing")
    check_draw(draw)
    fits = is_number(min_opacity) and 0.0 <= float(min_opacity) < 1.0
    check(fits, "min_opacity", "a value in [0, 1)", min_opacity)
    return logit(float(min_opacity))
