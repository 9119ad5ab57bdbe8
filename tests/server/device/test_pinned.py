"""Pinned memory of the host: reused, limited, and given back."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.server.core.pinned import PinnableMap, PinnedPool
from support.backends.emulated_copies import EmulatedCopies

MIB = 1 << 20


@pytest.fixture
def copies() -> EmulatedCopies:
    return EmulatedCopies()


def address_of(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data


def view_of(loan: memoryview) -> Any:
    return np.frombuffer(loan, np.float32)[7:9]


def array_of(loan: memoryview) -> Any:
    return np.ndarray((2,), np.float32, loan, 28)[:1]


def tensor_of(loan: memoryview) -> Any:
    return torch.from_numpy(np.ndarray((2,), np.float32, loan, 28)).view(torch.uint8)[2:]


@pytest.mark.parametrize("part_of", [view_of, array_of, tensor_of])
def test_memory_is_lent_again_when_nothing_views_it(
    copies: EmulatedCopies, part_of: Callable[[memoryview], Any]
) -> None:
    pool = PinnedPool(copies, 8 * MIB)
    loan = pool.lend(MIB)
    address, part = address_of(loan), part_of(loan)
    del loan
    assert address_of(pool.lend(MIB)) != address, "a part of it is still used"
    del part
    assert address_of(pool.lend(MIB - 100)) == address
    assert pool.bytes == 2 * MIB == sum(copies.pinned.values())


def test_a_loan_is_as_long_as_asked(copies: EmulatedCopies) -> None:
    pool = PinnedPool(copies, 8 * MIB)
    assert [len(pool.lend(length)) for length in (1, 4097, MIB + 1)] == [1, 4097, MIB + 1]


def test_what_is_idle_makes_room_and_beyond_the_limit_memory_is_not_pinned(copies: EmulatedCopies) -> None:
    pool = PinnedPool(copies, 4 * MIB)
    small = [pool.lend(MIB) for _ in range(4)]
    assert pool.bytes == 4 * MIB
    beyond = pool.lend(MIB)
    beyond[:] = bytes(MIB)
    assert address_of(beyond) not in copies.pinned and pool.bytes == 4 * MIB
    del small
    large = pool.lend(3 * MIB)
    assert address_of(large) in copies.pinned
    assert pool.bytes <= 4 * MIB
    assert copies.mistakes == []


def test_what_nobody_uses_is_freed_after_a_while(copies: EmulatedCopies) -> None:
    pool = PinnedPool(copies, 4 * MIB)
    held, idle = pool.lend(MIB), pool.lend(MIB)
    del idle
    pool.trim(idle_seconds=60)
    assert pool.bytes == 2 * MIB, "it may serve again soon"
    pool.trim(idle_seconds=0)
    assert pool.bytes == MIB
    assert list(copies.pinned) == [address_of(held)]


def test_memory_is_ordinary_where_cuda_refuses(copies: EmulatedCopies) -> None:
    copies.refuses = True
    pool = PinnedPool(copies, 4 * MIB)
    loan = pool.lend(MIB)
    loan[:] = bytes(MIB)
    assert pool.bytes == 0
    copies.refuses = False
    assert address_of(pool.lend(MIB)) in copies.pinned


def test_a_mapping_is_pinned_as_long_as_an_array_refers_to_it(copies: EmulatedCopies) -> None:
    mapping = PinnableMap(-1, mmap.PAGESIZE)
    memory = np.frombuffer(mapping, np.uint8)
    assert mapping.pin(copies) and mapping.pin(copies)
    part = memory[10:20]
    del mapping, memory
    gc.collect()
    assert len(copies.pinned) == 1
    del part
    assert copies.pinned == {} and copies.mistakes == []
