"""Images as levels: the bits of the same conversion by PyTorch, with every instruction set."""

from __future__ import annotations

import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.levels import write_levels
from support.backends.gaussian_engines import instruction_set
from support.levels import extreme_values, levels_of


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("count", [1650, 1651, 1665, 65536, 65537, 200_000])
def test_images_become_levels(count: int, isa: str) -> None:
    room = torch.full((count + 2,), 77, dtype=torch.uint8)
    # Neither values nor levels begin at an address that is aligned for registers.
    values = extreme_values(count + 1)[1:]
    with instruction_set(isa):
        write_levels(values, room[1:-1])
    assert torch.equal(room[1:-1], levels_of(values))
    assert room[0] == room[-1] == 77


def test_images_of_any_shape_become_levels() -> None:
    values = torch.rand(2, 7, 5, 3).transpose(1, 2)
    levels = torch.empty(values.shape, dtype=torch.uint8)
    write_levels(values, levels)
    assert torch.equal(levels, levels_of(values))
    nothing = torch.empty((0, 4, 4), dtype=torch.uint8)
    write_levels(torch.empty(0, 4, 4), nothing)
