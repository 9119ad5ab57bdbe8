"""Rows of Gaussians packed into a quarter to three quarters of their bytes, for pages in memory without gradients.

A block has float32 factors, which are powers of two, and then four parts with all rows each:

    means        float32, exact
    words        32 bits each, the lowest bits first, see below
    scales, the  float16 times a factor F for which the block's largest value is from 2**14 F to 2**15 F, and which is
    constant     at least 2**-102: off by at most 2**-11 of the value or 2**-25 F, whichever is more, which is 2**-11
    harmonics    of all values down to 2**-28 of the largest

The words of a row have these fields:

    quats        the number of the largest component (2 bits), and the three that follow it cyclically, divided by it,
                 in steps of 1 / 8191 (14 bits each): off by at most half a step. A quaternion too short to have a
                 direction is 0; its first component is stored as 0
    opacities    in steps of 1 / 65535 (16 bits): off by at most half a step; 0 and 1 are exact
    steps        of y, o and c (6 bits each), if there are harmonics besides the constant ones
    y, o, c      of each other harmonic, in these steps: 8 bits each up to degree 2, and 5, 5 and 4 bits above

For red, green and blue, y = (r + g + b) / 3, o = (r - b) / 2 and c = (2 g - r - b) / 6, so that r = y + o - c,
g = y + 2 c and b = y - o - c. With B bits, the step of y, o or c is from 1 to 1.25 times the row's largest value over
2**(B - 1) - 1, or 2**-15 to 2**-14 of the block's largest step if that is more, and at least 2**-117. Each is off by at
most half a step, and 0 is exact.

Each bound holds up to the rounding to float32. Rows are packed on the host. All instruction sets and devices compute
the same bits: IEEE 754 determines all operations in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty

# The tensors of a cloud, float32, by their names.
Tensors = Mapping[str, torch.Tensor]

# The factors of scales, of the constant harmonic, and of the steps of y, o and c; the rest aligns the means.
_HEADER_BYTES = 32
_CHANNELS = 3
_WORD_BITS = 32
# The first bit of a row's steps, and the bits of each.
_STEPS_AT, _STEP_BITS = 60, 6
# Bits of y, o and c, and the largest number of harmonics per channel with fine ones.
_FINE, _COARSE, _MOST_FINE = (8, 8, 8), (5, 5, 4), 9
# The biased exponent of F, a float32, is that of the largest value less 14, and at least 25.
_MANTISSA_BITS, _BELOW, _LEAST_EXPONENT = 23, 14, 25
_TWICE_THE_BIAS = 254


def row_bytes(coefficients: int) -> int:
    """The bytes of one row with this number of harmonics per channel, at least 1."""
    return sum(dtype.itemsize * length for dtype, length in _parts(_words(coefficients)))


def pack(rows: Tensors) -> torch.Tensor:
    """Rows of a cloud, contiguous [N, ..] float32 in host memory, as uint8 [bytes]."""
    count, coefficients = rows["sh"].shape[:2]
    packed = empty([_HEADER_BYTES + count * row_bytes(coefficients)], torch.uint8, torch.device("cpu"))
    factors, (means, words, scales, constant) = _views(packed, count, _words(coefficients))
    factors.fill_(1.0)
    means.copy_(rows["means"])
    if not count:
        return packed
    factors[0], reciprocal = _factor(rows["scales"])
    scales.copy_(rows["scales"] * reciprocal)
    first = rows["sh"][:, 0].contiguous()
    factors[1], reciprocal = _factor(first)
    constant.copy_(first.mul(reciprocal))
    _native.gaussian_pack_words(words, factors[2:5], **rows)
    return packed


def unpack(
    blocks: Sequence[tuple[torch.Tensor, int]], into: Tensors, begin: int = 0, *, is_packed: bool = True
) -> None:
    """Write blocks of rows into tensors of a cloud, [N, ..], which may lack "sh".

    One native call writes all blocks: a small block takes less time than a call of torch. On a CUDA device it queues
    kernels.

    Args:
        blocks: Results of `pack` with their numbers of rows, on the device of `into`; if not `is_packed`, float32 with
            all means, then all quats, scales, opacities and harmonics.
        into: Contiguous float32.
        begin: The row at which the first block begins.
        is_packed: Whether the blocks are packed.
    """
    device, native = into["means"].device, cast(Any, _native)
    if device.type == "cpu":
        native.gaussian_unpack_rows(blocks, is_packed, begin, **into)
    else:
        stream = torch.cuda.current_stream(device).cuda_stream
        native.gaussian_cuda_unpack_rows(device.index or 0, stream, blocks, is_packed, begin, **into)


def _bits(coefficients: int) -> tuple[int, int, int]:
    return _FINE if coefficients <= _MOST_FINE else _COARSE


def _words(coefficients: int) -> int:
    """The number of words of a row."""
    harmonics = sum(_bits(coefficients)) * (coefficients - 1)
    return -(-(_STEPS_AT + (3 * _STEP_BITS + harmonics if harmonics else 0)) // _WORD_BITS)


def _parts(words: int) -> list[tuple[torch.dtype, int]]:
    """Types and lengths of a row's parts: means, words, scales and constant harmonics."""
    return [(torch.float32, 3), (torch.int32, words), (torch.float16, 3), (torch.float16, _CHANNELS)]


def _views(packed: torch.Tensor, count: int, words: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The factors, and the parts [N, length] of `count` rows."""
    parts = _parts(words)
    ends = list(accumulate((dtype.itemsize * length * count for dtype, length in parts), initial=_HEADER_BYTES))
    views = [
        packed[start:end].view(dtype).view(count, length)
        for (dtype, length), start, end in zip(parts, ends, ends[1:], strict=False)
    ]
    return packed[:_HEADER_BYTES].view(torch.float32), views


def _factor(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor F of values, and 1 / F."""
    exponent = values.abs().amax().view(torch.int32) >> _MANTISSA_BITS
    exponent = exponent.sub_(_BELOW).clamp_(min=_LEAST_EXPONENT)
    reciprocal = _TWICE_THE_BIAS - exponent
    return (exponent << _MANTISSA_BITS).view(torch.float32), (reciprocal << _MANTISSA_BITS).view(torch.float32)
