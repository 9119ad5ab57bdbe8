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

# The factors of scales, of the constant harmonic, and of the steps of y, o and c; the rest aligns the means.
_HEADER_BYTES = 32
_CHANNELS = 3
_WORD_BITS, _WORD = 32, 2**32 - 1
# A row begins with 64 bits: those of its quaternion, its opacity, and the lowest bits of its steps. Others follow.
_COMPONENT_BITS, _COMPONENT, _NO_DIRECTION = 14, 8191, -8192
_OPACITY_AT, _OPACITY = 44, 65535
_STEPS_AT, _STEP_BITS, _HEAD_BITS = 60, 6, 64
_OTHER_STEP_BITS = _STEPS_AT + 3 * _STEP_BITS - _HEAD_BITS
# Bits of y, o and c, and the largest number of harmonics per channel with fine ones.
_FINE, _COARSE, _MOST_FINE = (8, 8, 8), (5, 5, 4), 9
# Quaternions whose components are all smaller are no rotation.
_SHORTEST = 1e-18
# Biased exponents of float32: that of F is that of the largest value less 14, and at least large enough that the steps
# of rows are not denormal.
_MANTISSA_BITS, _BELOW, _LEAST_EXPONENT = 23, 14, 25
_TWICE_THE_BIAS = 254
# A step is stored as the highest bits of a float32, down to the second of its mantissa, less those of 2**-15. It is
# times a power of two that no step of the block exceeds.
_CUT_BITS, _LEAST_STEP = _MANTISSA_BITS - 2, (127 - 15) << 2


def row_bytes(coefficients: int) -> int:
    """The bytes of one row with this number of harmonics per channel, at least 1."""
    return sum(dtype.itemsize * length for dtype, length in _parts(_words(coefficients)))


def pack(rows: Tensors) -> torch.Tensor:
    """Rows of a cloud, contiguous [N, ..] float32, as uint8 [bytes] on their device."""
    count, coefficients = rows["sh"].shape[:2]
    packed = empty([_HEADER_BYTES + count * row_bytes(coefficients)], torch.uint8, rows["sh"].device)
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
    if words.device.type == "cpu":
        _native.gaussian_pack_words(words, factors[2:5], **rows)
    else:
        _pack_words(words, factors[2:5], rows)
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


def _pack_words(words: torch.Tensor, factors: torch.Tensor, rows: Tensors) -> None:
    """Write words and the factors of steps."""
    coefficients = rows["sh"].shape[1]
    head = _directions(rows["quats"])
    head += rows["opacities"].mul(_OPACITY).round_().long() << _OPACITY_AT
    if coefficients > 1:
        steps, factors[:], harmonics = _harmonics(rows["sh"][:, 1:], _bits(coefficients))
        head += steps << _STEPS_AT
        _write(steps >> _HEAD_BITS - _STEPS_AT, harmonics, sum(_bits(coefficients)), words[:, 2:])
    words[:, :2].copy_(head.view(torch.int32).view(len(words), 2))


def _copy(values: torch.Tensor, into: Tensors) -> None:
    for name in ("means", "quats", "scales", "opacities", "sh"):
        if name in into:
            rows, values = values[: into[name].numel()], values[into[name].numel() :]
            into[name].copy_(rows.view_as(into[name]))


def _unpack(packed: torch.Tensor, into: Tensors) -> None:
    count = len(into["means"])
    if not count:
        return
    bytes_without_words = sum(dtype.itemsize * length for dtype, length in _parts(0))
    number_of_words = ((packed.numel() - _HEADER_BYTES) // count - bytes_without_words) // 4
    factors, (means, words, scales, constant) = _views(packed, count, number_of_words)
    head = words[:, :2].clone(memory_format=torch.contiguous_format).view(torch.int64)[:, 0]
    into["means"].copy_(means)
    _write_directions(head, into["quats"])
    into["opacities"].copy_(head >> _OPACITY_AT & _OPACITY).mul_(1 / _OPACITY)
    into["scales"].copy_(scales).mul_(factors[0])
    if "sh" in into:
        # A single copy into strided rows, where each conversion takes ten times as long.
        into["sh"][:, 0].copy_(constant.float().mul_(factors[1]))
        if into["sh"].shape[1] > 1:
            steps = (head >> _STEPS_AT & (1 << _HEAD_BITS - _STEPS_AT) - 1) + (
                (words[:, 2].long() & (1 << _OTHER_STEP_BITS) - 1) << _HEAD_BITS - _STEPS_AT
            )
            _write_harmonics(words[:, 2:], _step_values(_split(steps, 3, _STEP_BITS), factors[2:5]), into["sh"][:, 1:])


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


def _split(fields: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Fields [N, count] of so many bits each, of int64 [N]."""
    return fields.unsqueeze(1) >> bits * torch.arange(count, device=fields.device) & (1 << bits) - 1


def _directions(quats: torch.Tensor) -> torch.Tensor:
    """Quaternions [N, 4] as fields of int64 [N]."""
    lengths = quats.abs()
    largest = lengths.amax(1, keepdim=True)
    number = (lengths != largest).cumprod(1).sum(1, keepdim=True)
    places = torch.arange(1, 4, device=quats.device)
    divisor = quats.gather(1, number).masked_fill_(largest <= _SHORTEST, torch.inf)
    components = (quats.gather(1, number + places & 3) / divisor).mul_(_COMPONENT).round_().long()
    components[:, :1].masked_fill_(largest <= _SHORTEST, _NO_DIRECTION)
    components -= _NO_DIRECTION
    return number[:, 0] + (components << _COMPONENT_BITS * (places - 1) + 2).sum(1)


def _write_directions(fields: torch.Tensor, quats: torch.Tensor) -> None:
    components = _split(fields >> 2, 3, _COMPONENT_BITS) + _NO_DIRECTION
    none = components[:, :1] == _NO_DIRECTION
    places = torch.arange(4, device=fields.device)
    largest = torch.ones_like(none, dtype=torch.float32)
    values = torch.cat([largest, components.float().mul_(1 / _COMPONENT)], 1).masked_fill_(none, 0.0)
    quats.scatter_(1, fields.unsqueeze(1) + places & 3, values)


def _harmonics(others: torch.Tensor, bits: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Steps int64 [N], the factors [3] of steps, and the harmonics int64 [K, N], of harmonics [N, K, 3]."""
    red, green, blue = others.permute(2, 1, 0).contiguous()
    planes = (
        red * (1 / 3) + green * (1 / 3) + blue * (1 / 3),
        red * 0.5 - blue * 0.5,
        green * (1 / 3) - (red * (1 / 6) + blue * (1 / 6)),
    )
    largest_numbers = [(1 << length - 1) - 1 for length in bits]
    needed = torch.stack(
        [plane.abs().amax(0) * (1 / most) for plane, most in zip(planes, largest_numbers, strict=True)], 1
    )
    factors, reciprocals = zip(*(_factor(column, -1) for column in needed.unbind(1)), strict=True)
    rounded_up = (needed * torch.stack(reciprocals)).view(torch.int32) + ((1 << _CUT_BITS) - 1) >> _CUT_BITS
    codes = (rounded_up - _LEAST_STEP).clamp_(min=0)
    steps = _step_values(codes, torch.stack(factors))
    # Whole numbers below 2**24 are exact in float32.
    numbers = torch.zeros_like(red)
    for plane, most, length, step in reversed(list(zip(planes, largest_numbers, bits, steps.unbind(1), strict=True))):
        numbers.mul_(1 << length).add_((plane / step).round_().clamp_(-most, most).add_(most))
    fields = (codes.long() << _STEP_BITS * torch.arange(3, device=codes.device)).sum(1)
    return fields, torch.stack(factors), numbers.long()


def _write_harmonics(words: torch.Tensor, steps: torch.Tensor, others: torch.Tensor) -> None:
    """Write harmonics [N, K, 3] of rows with these steps [N, 3]."""
    harmonics = others.shape[1]
    bits = _bits(harmonics + 1)
    at = _OTHER_STEP_BITS + sum(bits) * torch.arange(harmonics, device=words.device)
    padded = torch.nn.functional.pad(words.long() & _WORD, (0, 1))
    word = at // _WORD_BITS
    fields = (padded[:, word] + (padded[:, word + 1] << _WORD_BITS)) >> at % _WORD_BITS
    planes = []
    for length, step in zip(bits, steps.unbind(1), strict=True):
        most = (1 << length - 1) - 1
        planes.append(((fields & (1 << length) - 1) - most).float().mul_(step.unsqueeze(1)))
        fields = fields >> length
    y, o, c = planes
    others.copy_(torch.stack([y + o - c, y + (c + c), y - o - c], 2))


def _step_values(codes: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    return (codes.int() + _LEAST_STEP << _CUT_BITS).view(torch.float32) * factors


def _write(first: torch.Tensor, fields: torch.Tensor, bits: int, words: torch.Tensor) -> None:
    """Write the other bits of the steps, int64 [N], and fields of so many bits, int64 [K, N], into words [N, W]."""
    lengths = [_OTHER_STEP_BITS, *[bits] * len(fields)]
    joined = torch.zeros([words.shape[1] + 1, len(words)], dtype=torch.int64, device=words.device)
    for at, values in zip(accumulate(lengths, initial=0), [first, *fields], strict=False):
        word, shift = divmod(at, _WORD_BITS)
        shifted = values << shift
        joined[word] += shifted & _WORD
        joined[word + 1] += shifted >> _WORD_BITS
    words.copy_(joined[:-1].T)


def _factor(values: torch.Tensor, below: int = _BELOW) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor F of values, whose exponent is so much below that of the largest value, and 1 / F."""
    exponent = values.abs().amax().view(torch.int32) >> _MANTISSA_BITS
    exponent = exponent.sub_(below).clamp_(min=_LEAST_EXPONENT)
    reciprocal = _TWICE_THE_BIAS - exponent
    return (exponent << _MANTISSA_BITS).view(torch.float32), (reciprocal << _MANTISSA_BITS).view(torch.float32)
