"""Catches up on Adam's steps without a gradient, for rows that were not on the device: many at once, in closed form."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.server.training.parameters import Optimizer, Parameter, Parameters, parameters_of

Steps = npt.NDArray[np.int64]

# Terms of a sum are dropped once they are this small relative to the first.
_LEAST_TERM = 1e-9
_LEAST_BETA = 1e-12
# Rows processed at a time, which bounds temporary tensors.
_ROWS = 65536


def make_up(parameters: Parameters, since: Steps, step: int, optimizer: Optimizer) -> None:
    """Make the gradient-free steps from `since[row]` up to but excluding `step`, for each of N rows.

    Each step decays the moments, m and v, and moves a parameter by rate m / (sqrt(v) + epsilon), with the moments'
    biases corrected. After u steps the moments are beta1^u m and beta2^u v, so all moves together are m / (sqrt(v) +
    epsilon) times a sum that rows with equal `since` share. Epsilon is corrected as in the first step.
    """
    for begin in range(0, len(since), _ROWS):
        rows = slice(begin, begin + _ROWS)
        starts, places = np.unique(since[rows], return_inverse=True)
        for name in parameters.wanted if starts[0] < step else ():
            parameter = parameters.by_name[name]
            moves = np.stack([_moves(parameter, int(start), step, optimizer) for start in starts])
            _apply(parameter, rows, places, starts, moves, step, optimizer)


def _apply(
    parameter: Parameter,
    rows: slice,
    places: npt.NDArray[np.int64],
    starts: Steps,
    moves: npt.NDArray[np.float64],
    step: int,
    optimizer: Optimizer,
) -> None:
    first, second, raw = (_flat(tensor)[rows] for tensor in (parameter.first, parameter.second, parameter.raw))
    counts = np.maximum(step - starts, 0)
    decays = np.stack([np.power(float(beta), counts) for beta in optimizer.betas], axis=1)
    # The last column is epsilon times the bias correction of the second moment, since v itself is not corrected here.
    bias = np.sqrt(-np.expm1((starts + 1) * math.log(max(optimizer.betas[1], _LEAST_BETA))))
    by_start = np.concatenate([moves, decays, optimizer.epsilon * bias[:, None]], axis=1)
    by_row = torch.from_numpy(by_start.astype(np.float32)[places]).to(raw.device)
    raw -= by_row[:, :-3] * first / (second.sqrt() + by_row[:, -1:])
    first *= by_row[:, -3:-2]
    second *= by_row[:, -2:-1]
    if parameter.value is not parameter.raw:
        activate = torch.exp if parameter.activation == "exp" else torch.sigmoid
        value = _flat(parameter.value)[rows]
        # Other rows keep their bits, which the kernel may have rounded differently.
        is_behind = torch.from_numpy(counts[places] > 0)[:, None].to(raw.device)
        value.copy_(torch.where(is_behind, activate(raw), value))


def _moves(parameter: Parameter, start: int, step: int, optimizer: Optimizer) -> npt.NDArray[np.float64]:
    """Return the sum [1 or width of a row] of the steps' sizes, in units of m / sqrt(v) at the start."""
    beta1, beta2 = optimizer.betas[0], max(optimizer.betas[1], _LEAST_BETA)
    ratio = beta1 / math.sqrt(beta2)
    count = step - start
    if 0.0 < ratio < 1.0:
        count = min(count, math.ceil(math.log(_LEAST_TERM) / math.log(ratio)))
    ordinals = np.arange(1, count + 1)
    numbers = start + ordinals
    factors = ratio**ordinals * np.sqrt(1.0 - beta2**numbers) / (1.0 - beta1**numbers)
    names, known = parameters_of(parameter.name), optimizer.rates
    sums = [float((known[name].over(numbers - 1) * factors).sum()) if name in known else 0.0 for name in names]
    if len(sums) == 1:
        return np.array(sums)
    # The constant harmonic's coefficients are the first of each row.
    channels = parameter.raw.shape[-1]
    return np.repeat(sums, [channels, parameter.raw[0].numel() - channels])


def _flat(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return the rows [N, K] of a tensor."""
    assert tensor is not None
    return tensor.view(len(tensor), -1)
