"""The memory of large payloads is reused, but never while anything views it."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from lumigrad.protos.buffers import PayloadBuffers
from support.threads import run_at_once

MIB = 1 << 20
LEAST, LARGE, MOST = 32 * MIB, 40 * MIB, 64 * MIB


def place(buffer: memoryview) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def test_a_buffer_comes_back_when_its_last_view_has_gone() -> None:
    buffers = PayloadBuffers(LEAST, MOST)
    lent = buffers.lend(LARGE)
    address = place(lent)
    view = np.frombuffer(lent[64:128], np.float32).reshape(4, 4)[1:]
    del lent
    assert place(buffers.lend(LARGE)) != address
    view[:] = 1.0
    del view
    gc.collect()
    assert address in {place(lent) for lent in (buffers.lend(LARGE), buffers.lend(LARGE))}


def test_only_what_fits_exactly_serves_again() -> None:
    buffers = PayloadBuffers(LEAST, MOST)
    address = place(buffers.lend(LARGE))
    assert place(buffers.lend(LARGE - 64)) != address
    assert buffers.lend(LARGE).nbytes == LARGE


@pytest.mark.parametrize("length", [0, 1, LEAST - 1, MOST + 1])
def test_small_and_huge_ones_are_not_kept(length: int) -> None:
    buffers = PayloadBuffers(LEAST, MOST)
    assert buffers.lend(length).nbytes == length
    assert not buffers._waiting


def test_few_wait_at_a_time() -> None:
    buffers = PayloadBuffers(LEAST, MOST)
    lent = [buffers.lend(LARGE + index) for index in range(5)]
    del lent
    gc.collect()
    assert len(buffers._waiting) == 2


def test_threads_never_share_a_buffer() -> None:
    buffers = PayloadBuffers(LEAST, MOST)
    shared: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            lent = np.frombuffer(buffers.lend(LARGE), np.uint8)
            lent[:8] = number
            shared.extend(value for value in lent[:8].tolist() if value != number)

    run_at_once(*(partial(work, number) for number in range(1, 5)))
    assert not shared


# Prints the page faults of blocks as large as gRPC's messages, filled and freed, before and after buffers are made.
FAULTS = """
import resource
from lumigrad.protos.buffers import PayloadBuffers
def faults():
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        messages = [bytearray(1 << 20) for _ in range(16)]
        del messages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), PayloadBuffers(1, 2) and faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other thresholds")
def test_messages_come_into_memory_that_is_there() -> None:
    before, after = map(int, subprocess.check_output([sys.executable, "-c", FAULTS]).split())
    assert after < 100 < before
