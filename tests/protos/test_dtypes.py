"""bfloat16 conversions, on every bit pattern and on the ties between neighbours."""

from __future__ import annotations

import numpy as np

from lumigrad.protos.dtypes import BFLOAT16, FLOAT16, bfloat16_to_float32, float32_to_bfloat16, to_float32

ALL_BITS = np.arange(1 << 16, dtype=np.uint16)


def test_every_bfloat16_comes_back_from_float32() -> None:
    values = bfloat16_to_float32(ALL_BITS)
    back = float32_to_bfloat16(values)
    nan = np.isnan(values)
    assert (back[~nan] == ALL_BITS[~nan]).all()
    assert np.isnan(bfloat16_to_float32(back[nan])).all()


def test_values_between_neighbours_go_to_the_nearer_one_and_ties_to_the_even_one() -> None:
    lower = ALL_BITS[:0x7F7F].astype(np.uint32)
    for offset, expected in ((0x7FFF, lower), (0x8000, lower + (lower & 1)), (0x8001, lower + 1)):
        between = ((lower << 16) + offset).view(np.float32)
        assert (float32_to_bfloat16(between) == expected).all()
        assert (float32_to_bfloat16(-between) == (expected | 0x8000)).all()


def test_overflow_is_infinite_and_nan_stays_nan() -> None:
    values = np.array([3.4e38, -3.4e38, np.inf, np.nan], np.float32)
    nearly_lost = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert bfloat16_to_float32(float32_to_bfloat16(values))[:3].tolist() == [np.inf, -np.inf, np.inf]
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(np.concatenate([values[3:], nearly_lost])))).all()


def test_both_short_formats_widen_exactly() -> None:
    halves = np.array([1.5, -0.25], np.float16)
    assert to_float32(halves, FLOAT16).tolist() == [1.5, -0.25]
    assert to_float32(np.array([0x3FC0], np.uint16), BFLOAT16).tolist() == [1.5]
