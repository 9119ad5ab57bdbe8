"""Rows of Gaussians packed into a third to three quarters of their bytes, for pages in memory without gradients.

Let the factor F of a block of rows be the power of two such that the block's largest value is from 2**14 F to 2**15 F.
No F is below 2**-102.

    means                   float32, exact
    quats                   divided by the largest component, which becomes 1 or -1: components are off by at most
                            half of 1 / 32767; a quaternion too short to have a direction is 0
    opacities               off by at most half of 1 / 32767; 0 and 1 are exact
    scales, the constant    float16 times F: off by at most 2**-11 of the value or 2**-25 F, whichever is more, which is
    harmonic                2**-11 of all values down to 2**-28 of the largest
    the other harmonics     int8 times a step of the row, about 1 / 127 of its largest: off by at most 1 / 253 of the
                            row's largest value and 2**-24 F; 0 is exact. Steps are float16 times F

Each bound holds up to the rounding to float32. All devices compute the same bits: IEEE 754 determines all operations in
use. Square roots are not used, since PyTorch does not determine their last bit on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty

# The tensors of a cloud, float32, by their names.
Tensors = Mapping[str, torch.Tensor]

# The factors of scales, of the constant harmonic and of the other harmonics, and padding that aligns the rest.
_HEADER_BYTES = 16
_CHANNELS = 3
_STEPS, _STEP = 32767, 1 / 32767
# Quaternions whose components are all smaller are no rotation.
_SHORTEST = 1e-18
# Biased exponents of float32: that of F is that of the largest value less 14, and at least large enough that the steps
# of rows are not denormal.
_MANTISSA_BITS, _BELOW, _LEAST_EXPONENT = 23, 14, 25
_TWICE_THE_BIAS = 254
_LARGEST_BYTE = 127
# Steps of rows are rounded up, so that as float16 they are neither too small nor 0.
_ROUNDED_UP, _LEAST_STEP = 1 + 2**-10, 2**-24


def row_bytes(coefficients: int) -> int:
    """The bytes of one row with this number of harmonics per channel."""
    return sum(dtype.itemsize * length for dtype, length in _parts(coefficients))


def pack(rows: Tensors) -> torch.Tensor:
    """Rows of a cloud, [N, ..] float32, as uint8 [bytes] on their device."""
    count, coefficients = rows["sh"].shape[:2]
    packed = empty([_HEADER_BYTES + count * row_bytes(coefficients)], torch.uint8, rows["sh"].device)
    factors, (means, quats, opacities, scales, constant, *harmonics) = _views(packed, count, coefficients)
    factors.fill_(1.0)
    means.copy_(rows["means"])
    if not count:
        return packed
    quats.copy_(_directed(rows["quats"]).mul_(_STEPS).round_())
    opacities.copy_(rows["opacities"].unsqueeze(1).mul(_STEPS).round_())
    factors[0], reciprocal = _factor(rows["scales"])
    scales.copy_(rows["scales"] * reciprocal)
    first = rows["sh"][:, 0].contiguous()
    factors[1], reciprocal = _factor(first)
    constant.copy_(first.mul(reciprocal))
    if harmonics:
        steps, values = harmonics
        others = rows["sh"][:, 1:].flatten(1)
        scratch = empty(others.shape, torch.float32, others.device)
        largest = torch.abs(others, out=scratch).amax(1, keepdim=True)
        factors[2], reciprocal = _factor(largest)
        steps.copy_((largest * reciprocal).mul_(_ROUNDED_UP / _LARGEST_BYTE).add_(_LEAST_STEP))
        values.copy_(torch.div(others, steps.float().mul_(factors[2]), out=scratch).round_())
    return packed


def unpack(
    blocks: Sequence[tuple[torch.Tensor, int]], into: Tensors, begin: int = 0, *, is_packed: bool = True
) -> None:
    """Write blocks of rows into tensors of a cloud, [N, ..], which may lack "sh".

    On the CPU one native call writes all blocks: a small block takes less time than a call of torch.

    Args:
        blocks: Results of `pack` with their numbers of rows; if not `is_packed`, float32 with all means, then all
            quats, scales, opacities and harmonics.
        into: Contiguous float32.
        begin: The row at which the first block begins.
        is_packed: Whether the blocks are packed.
    """
    if into["means"].device.type == "cpu":
        _native.gaussian_unpack_rows(blocks, is_packed, begin, **into)
        return
    for block, count in blocks:
        rows = {name: tensor[begin : begin + count] for name, tensor in into.items()}
        (_unpack if is_packed else _copy)(block, rows)
        begin += count


def _copy(values: torch.Tensor, into: Tensors) -> None:
    for name in ("means", "quats", "scales", "opacities", "sh"):
        if name in into:
            rows, values = values[: into[name].numel()], values[into[name].numel() :]
            into[name].copy_(rows.view_as(into[name]))


def _unpack(packed: torch.Tensor, into: Tensors) -> None:
    count, coefficients = len(into["means"]), into["sh"].shape[1] if "sh" in into else 0
    factors, (means, quats, opacities, scales, *harmonics) = _views(packed, count, coefficients)
    into["means"].copy_(means)
    into["quats"].copy_(quats).mul_(_STEP)
    into["opacities"].copy_(opacities[:, 0]).mul_(_STEP)
    into["scales"].copy_(scales).mul_(factors[0])
    if harmonics:
        constant, *others = harmonics
        # A single copy into strided rows, where each conversion takes ten times as long.
        into["sh"][:, 0].copy_(constant.float().mul_(factors[1]))
        if others:
            steps, values = others
            into["sh"].flatten(1)[:, _CHANNELS:].copy_(values).mul_(steps.float().mul_(factors[2]))


def _parts(coefficients: int) -> list[tuple[torch.dtype, int]]:
    """Types and lengths of a row's parts, the most strictly aligned first; the last parts depend on `coefficients`."""
    parts = [(torch.float32, 3), (torch.int16, 4), (torch.int16, 1), (torch.float16, 3)]
    if coefficients:
        parts.append((torch.float16, _CHANNELS))
    if coefficients > 1:
        parts += [(torch.float16, 1), (torch.int8, _CHANNELS * (coefficients - 1))]
    return parts


def _views(packed: torch.Tensor, count: int, coefficients: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The factors, and the parts [N, length] of `count` rows."""
    parts = _parts(coefficients)
    ends = list(accumulate((dtype.itemsize * length * count for dtype, length in parts), initial=_HEADER_BYTES))
    views = [
        packed[start:end].view(dtype).view(count, length)
        for (dtype, length), start, end in zip(parts, ends, ends[1:], strict=False)
    ]
    return packed[:_HEADER_BYTES].view(torch.float32), views


def _directed(quats: torch.Tensor) -> torch.Tensor:
    """Quaternions [N, 4] scaled so that the largest component is 1 or -1; 0 if too short to have a direction."""
    largest = quats.abs().amax(1, keepdim=True)
    return quats / largest.masked_fill_(largest <= _SHORTEST, torch.inf)


def _factor(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor F of values, and 1 / F."""
    exponent = values.abs().amax().view(torch.int32) >> _MANTISSA_BITS
    exponent = exponent.sub_(_BELOW).clamp_(min=_LEAST_EXPONENT)
    reciprocal = _TWICE_THE_BIAS - exponent
    return (exponent << _MANTISSA_BITS).view(torch.float32), (reciprocal << _MANTISSA_BITS).view(torch.float32)
