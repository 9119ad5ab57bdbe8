"""Random numbers: the published ones, the same everywhere, and as random as they should be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.kernels import ArgumentError, _native
from lumigrad.kernels.density import Draw, normals, random_words
from support.backends.density_machines import SLOWEST
from support.training import density_random

CPU = torch.device("cpu")
ONES = 2**32 - 1
# Counter, key and words of Philox4x32-10, from Random123, the authors' own library.
PUBLISHED = {
    "zeros": ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    "ones": ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    "digits of pi": (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
}


def unsigned(words: torch.Tensor) -> np.ndarray:
    return words.cpu().numpy().view(np.uint32)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_words_come_out(density_device: torch.device, name: str) -> None:
    (row, stream, low, high), key, expected = PUBLISHED[name]
    draw = Draw(seed=key[1] << 32 | key[0], step=high << 32 | low)
    found = random_words(draw, 1, density_device, stream=stream, first=row)
    assert tuple(int(word) for word in unsigned(found)[0]) == expected


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1023, 1025, 5000])
def test_rows_follow_from_their_numbers(density_device: torch.device, count: int) -> None:
    draw = Draw(seed=2**63 + 5, step=2**40 + 1)
    found = unsigned(random_words(draw, count, density_device, stream=7, first=100))
    expected = density_random.words(draw.seed, draw.step, 7, np.arange(100, 100 + count))
    np.testing.assert_array_equal(found, expected)


def test_normals_are_those_of_the_words(density_device: torch.device) -> None:
    draw = Draw(seed=3, step=4)
    found = normals(draw, 20_000, density_device, stream=1).cpu().numpy()
    expected = density_random.normals(draw.seed, draw.step, 1, np.arange(20_000))
    assert np.abs(found - expected).max() < 1e-6


def test_normals_have_the_same_bits_on_every_machine(density_device: torch.device) -> None:
    draw = Draw(seed=11, step=12)
    found = normals(draw, 5000, density_device)
    with SLOWEST() as device:
        expected = normals(draw, 5000, device)
    np.testing.assert_array_equal(found.cpu().numpy().view(np.int32), expected.numpy().view(np.int32))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_numbers_do_not_depend_on_threads(keep_threads: None, threads: int) -> None:
    _native.set_thread_count(3)
    expected = random_words(Draw(1, 2), 10_000, CPU)
    _native.set_thread_count(threads)
    torch.testing.assert_close(random_words(Draw(1, 2), 10_000, CPU), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "argument"),
    [({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"), ({"step": 0.5}, "step"), ({"step": "1"}, "step")],
)
def test_spoiled_draw_is_named(change: dict[str, int], argument: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{argument}: expected a whole number from 0 to") as caught:
        Draw(**{"seed": 0, "step": 0, **change})
    assert caught.value.argument == argument


@pytest.mark.parametrize("function", [random_words, normals])
def test_spoiled_rows_are_named(function: type[random_words]) -> None:
    with pytest.raises(ArgumentError, match=r"^draw: expected a Draw"):
        function(3, 1, CPU)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^stream: .*4294967296"):
        function(Draw(0, 0), 1, CPU, stream=2**32)
    with pytest.raises(ArgumentError, match=r"^first: .*-1"):
        function(Draw(0, 0), 1, CPU, first=-1)
    with pytest.raises(ArgumentError, match=r"^count: expected 0 to 1 rows.*got 2"):
        function(Draw(0, 0), 2, CPU, first=2**32 - 1)
