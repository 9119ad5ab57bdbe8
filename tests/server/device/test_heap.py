"""Free memory between live allocations goes back to the system."""

from __future__ import annotations

from support.workers.forks import run_program

SCRIPT = """
import ctypes
import psutil
from lumigrad.server.process.liveness import Heap

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
resident = lambda: psutil.Process().memory_info().rss >> 20
often, seldom = Heap(seconds=0.0), Heap(seconds=3600.0)
before = resident()
blocks = [libc.malloc(50_000) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, 50_000)
# All but the last, at the end of the heap.
for block in blocks[:-1]:
    libc.free(block)
print(resident() - before)
seldom.tidy()
print(resident() - before)
often.tidy()
print(resident() - before)
"""


def test_free_memory_of_the_heap_is_given_back_when_it_is_time() -> None:
    done = run_program(SCRIPT)
    assert done.returncode == 0, done.stderr
    freed, too_early, tidied = map(int, done.stdout.split())
    assert freed > 80 and too_early > 80, "malloc keeps what is free"
    assert tidied < 20
