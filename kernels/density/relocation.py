"""Relocation of dead Gaussians to sampled living ones, and addition of new ones, as in 3DGS as MCMC."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_number, is_whole
from lumigrad.kernels.density.apply import gather
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.random import Draw, check_draw
from lumigrad.kernels.density.thresholds import logit
from lumigrad.kernels.functions import Functions
from lumigrad.kernels.stages import Stages

# Upper limit of new opacities: two float32 steps below 1, so that their logits are finite.
_LARGEST = 1.0 - 2.0**-23


@dataclass(frozen=True, eq=False)
class Weights:
    """Sampling weights of N Gaussians, in proportion to their opacities.

    Attributes:
        sums: i64 [N + 1], the exclusive prefix sums of the weights, the bits of unsigned integers.
        listed: i32 [N], ascending indices of the Gaussians of weight 0, then undefined numbers.
        number: i32 [1], the number of Gaussians of weight 0; on the device.
    """

    sums: torch.Tensor
    listed: torch.Tensor
    number: torch.Tensor

    def excluded(self) -> torch.Tensor:
        """The indices of Gaussians of weight 0. Waits for CUDA."""
        return self.listed[: int(self.number)]


def weigh(engine: Functions, parameters: Parameters, minimum: float, times: Stages) -> Weights:
    """Computes the weights of Gaussians: 0 where the logit of the opacity is not above `minimum`."""
    count, device = parameters.count, parameters.device
    sums, excluded = empty((count + 1,), torch.int64, device), empty((count,), torch.int32, device)
    number = torch.zeros(1, dtype=torch.int32, device=device)
    arrays = {"sums": sums, "excluded": excluded, "excluded_count": number}
    times.views.append(engine.run("weigh", minimum, **parameters.arrays("opacities"), **arrays))
    return Weights(sums, excluded, number)


def sample(
    engine: Functions, weights: Weights, number: int, draw: Draw, stream: str, times: Stages
) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples `number` Gaussians with replacement: i32 [number] indices, and i32 [N], how often each was sampled.

    At least one weight must be above 0.
    """
    device = weights.sums.device
    rows = empty((number,), torch.int32, device)
    shares = torch.zeros(weights.sums.shape[0] - 1, dtype=torch.int32, device=device)
    times.views.append(engine.run("sample_rows", draw.native(stream), sums=weights.sums, rows=rows, shares=shares))
    return rows, shares


def share(engine: Functions, parameters: Parameters, shares: torch.Tensor, min_opacity: float, times: Stages) -> None:
    """Sets the opacities and scales of sampled Gaussians to those of their copies, and their moments to 0."""
    limits = logit(min_opacity), logit(_LARGEST)
    moments = [moment for several in parameters.moments.values() for moment in several]
    arrays = parameters.arrays("opacities", "scales")
    times.views.append(engine.run("share_rows", *limits, moments, shares=shares, **arrays))


@dataclass(frozen=True)
class Relocation:
    """The result of `relocate`.

    Attributes:
        dead: The number of dead Gaussians.
        relocated: The number of relocated Gaussians: all dead ones, or 0 if no Gaussian was alive.
        times: Time of each kernel stage.
    """

    dead: int
    relocated: int
    times: Stages


@dataclass(frozen=True, eq=False)
class Addition:
    """The result of `add_gaussians`.

    Attributes:
        parameters: New tensors; added rows are last.
        added: The number of added rows.
        times: Time of each kernel stage.
    """

    parameters: Parameters
    added: int
    times: Stages


def relocate(parameters: Parameters, draw: Draw, *, min_opacity: float = 0.005) -> Relocation:
    """Replaces dead Gaussians by copies of living ones, in place.

    Each dead Gaussian becomes a copy of a living one, which is sampled in proportion to its opacity o. The n Gaussians
    that then coincide, the sampled one included, get the opacity 1 - (1 - o)^(1/n) and scales such that together they
    look like the sampled one did: equation 9 of Kheradmand et al., "3D Gaussian splatting as Markov chain Monte Carlo",
    NeurIPS 2024, with n limited to 51. Their moments are set to 0. On CUDA this waits for the device, for the number
    of dead Gaussians.

    Args:
        parameters: Gaussians with their moments; changed in place.
        draw: The random numbers to use.
        min_opacity: Gaussians of at most this opacity, or of opacity NaN, are dead. New opacities are at least this.

    Returns:
        The number of dead and of relocated Gaussians.

    Raises:
        ArgumentError: An argument is invalid.
    """
    minimum = _checked(parameters, draw, min_opacity)
    engine, times = engine_for(parameters.device), Stages()
    weights = weigh(engine, parameters, minimum, times)
    excluded = weights.excluded()
    dead = excluded.shape[0]
    if dead in (0, parameters.count):
        return Relocation(dead, 0, times)
    rows, shares = sample(engine, weights, dead, draw, "relocate", times)
    share(engine, parameters, shares, min_opacity, times)
    tensors = [tensor.detach() for tensor in parameters.tensors.values()]
    moments = [moment for several in parameters.moments.values() for moment in several]
    fresh = [False] * len(tensors) + [True] * len(moments)
    arrays = {"sources": rows, "targets": excluded}
    times.views.append(engine.run("move_rows", [*tensors, *moments], fresh, **arrays))
    return Relocation(dead, dead, times)


def add_gaussians(
    parameters: Parameters,
    draw: Draw,
    *,
    cap: int,
    growth: float = 0.05,
    min_opacity: float = 0.005,
    some_are_seen: bool = False,
) -> Addition:
    """Adds copies of sampled Gaussians, with opacities and scales as in `relocate`.

    Args:
        parameters: Gaussians; not changed.
        draw: The random numbers to use; may be the `draw` of `relocate`, which uses another stream.
        cap: The maximum number of Gaussians after the call.
        growth: The number to add, as a fraction of the current number; rounded down.
        min_opacity: The minimum of new opacities.
        some_are_seen: Whether some opacity is known to be above 0, as after `relocate` unless all were dead. If it is
            not known, the host waits for the device to find out.

    Returns:
        The new parameters.

    Raises:
        ArgumentError: An argument is invalid.
    """
    _checked(parameters, draw, min_opacity)
    check(is_whole(cap) and cap >= 0, "cap", "a whole number >= 0", cap)
    check(is_number(growth) and 0.0 <= float(growth) <= 1.0, "growth", "a value in [0, 1]", growth)
    count, device = parameters.count, parameters.device
    engine, times = engine_for(device), Stages()
    weights = weigh(engine, parameters, logit(0.0), times)
    added = max(0, min(int(cap), int((1.0 + float(growth)) * count)) - count)
    if not some_are_seen and weights.excluded().shape[0] == count:
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
    """Checks arguments; returns the logit of `min_opacity`."""
    check_parameters(parameters)
    parameters.require_gaussians("sharing")
    check_draw(draw)
    fits = is_number(min_opacity) and 0.0 <= float(min_opacity) < 1.0
    check(fits, "min_opacity", "a value in [0, 1)", min_opacity)
    return logit(float(min_opacity))
