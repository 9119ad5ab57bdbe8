"""The emulation of a CUDA block computes what a GPU would, and reports what a GPU leaves undefined."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from support.backends import emulation

THREADS = 128


@pytest.fixture
def checks() -> Iterator[ModuleType]:
    module = emulation.load("_emulation_checks")
    yield module
    module.set_seed(0)
    module.set_workers(1 << 20)
    module.set_deferred(False)
    module.set_error_seed(0)


@pytest.fixture(params=[0, 1, 2, 12345])
def any_order(request: pytest.FixtureRequest, checks: ModuleType) -> ModuleType:
    """Correct kernels give the same result whatever the order of their threads."""
    checks.set_seed(request.param)
    return checks


def test_a_sum_goes_through_shuffles_shared_memory_and_atomics(any_order: ModuleType) -> None:
    values = np.arange(1000, dtype=np.float32)
    total = np.zeros(1, np.float32)
    any_order.sum(values, total)
    assert total[0] == values.sum()


def test_a_scan_goes_across_warps(any_order: ModuleType) -> None:
    values = np.random.default_rng(1).integers(0, 50, THREADS).astype(np.int32)
    sums = np.zeros_like(values)
    any_order.scan(values, sums)
    assert np.array_equal(sums, np.cumsum(values))


def test_a_ballot_compacts(any_order: ModuleType) -> None:
    values = np.random.default_rng(2).integers(0, 1000, 5000).astype(np.int32)
    kept, count = np.zeros_like(values), np.zeros(1, np.uint32)
    any_order.compact(values, kept, count)
    expected = values[values % 3 == 0]
    assert count[0] == len(expected)
    assert np.array_equal(np.sort(kept[: count[0]]), np.sort(expected))


def test_warp_operations(any_order: ModuleType) -> None:
    out = np.full((11, 32), -7, np.int32)
    any_order.warp_operations(out)
    lane = np.arange(32)
    assert np.array_equal(out[0], 10 * (lane // 8 * 8 + (lane + 1) % 8))
    assert np.array_equal(out[1], 10 * np.where(lane >= 3, lane - 3, lane))
    assert np.array_equal(out[2], 10 * np.where(lane % 16 + 3 < 16, lane + 3, lane))
    assert np.array_equal(out[3], 10 * (lane ^ 5))
    assert np.array_equal(out[4].view(np.uint32), np.full(32, sum(1 << i for i in range(0, 32, 3)), np.uint32))
    assert np.all(out[5] == 3)
    assert np.array_equal(out[6].view(np.uint32), np.uint32(0xF) << np.uint32(lane // 4 * 4))
    assert np.all(out[7] == lane.sum() - 5)
    assert np.all(out[8] == -9 + 15)
    assert np.array_equal(out[9], np.where(lane % 2 == 0, lane ^ 2, -7))
    assert np.array_equal(out[10], lane.sum() * (lane // 4))


def test_a_block_votes(any_order: ModuleType) -> None:
    out = np.zeros(THREADS, np.int32)
    any_order.votes(out)
    assert np.all(out == 26 * 4 + 1 * 2 + 0)


def test_atomics_count_across_blocks_that_run_at_the_same_time(any_order: ModuleType) -> None:
    ints, wide = np.zeros(6, np.int32), np.zeros(1, np.uint64)
    real, precise = np.zeros(1, np.float32), np.zeros(1, np.float64)
    any_order.atomics(ints, wide, real, precise)
    threads = 8 * THREADS
    assert ints[:3].tolist() == [threads, threads - 1, 1 - threads]
    assert 1 <= ints[3] <= 7
    assert ints[4:].tolist() == [255, 9]
    assert (wide[0], real[0], precise[0]) == (threads << 32, threads / 2, threads / 4)


def test_a_missing_barrier_shows(checks: ModuleType) -> None:
    def run(seed: int) -> np.ndarray:
        checks.set_seed(seed)
        out = np.zeros(4 * THREADS, np.int32)
        checks.race(out)
        return out

    assert np.array_equal(run(0), run(0))
    assert any(not np.array_equal(run(0), run(seed)) for seed in range(1, 4))


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        ("missed_barrier", 0, r"threads 40-127 have returned; threads 0-39 wait in __syncthreads at kernels.cu:\d+"),
        ("two_barriers", 0, r"threads 0-63 wait in __syncthreads at .*; threads 64-127 wait in __syncthreads at"),
        ("missed_shuffle", 1, r"threads 0, 2, 4, .* wait in __shfl_sync with mask ffffffff at kernels.cu:\d+;"),
        ("absent_lane", 1, r"__shfl_xor_sync: lane 0 reads from lane 1, which does not take part"),
        ("foreign_mask", 0, r"thread \(16, 0, 0\): __syncwarp: the calling lane 16 is not in its own mask"),
        ("large_frame", 1, r"a thread overflowed its stack"),
    ],
)
def test_undefined_behaviour_is_an_error(checks: ModuleType, kernel: str, arguments: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        getattr(checks, kernel)(*[np.zeros(THREADS, np.int32)] * arguments)


@pytest.mark.parametrize(
    ("program", "value", "found"),
    [
        ("copy_twice_from_one_place", 12, 22),
        ("read_count", 7, -1),
        ("read_from_other_stream", 3, 0),
        ("give_back_to_other_stream", 4, 9),
        ("pass_local_array", 10, -4),
    ],
)
def test_deferred_work_shows_what_does_not_wait(checks: ModuleType, program: str, value: int, found: int) -> None:
    run = getattr(checks, program)
    # Without deferral, the faulty program has the same result as the right one.
    assert (run(True), run(False)) == (value, value)
    checks.set_deferred(True)
    assert (run(True), run(False)) == (value, found)


def test_host_memory_may_not_be_freed_during_a_copy(checks: ModuleType) -> None:
    checks.set_deferred(True)
    assert checks.free_during_copy(True) == 5
    with pytest.raises(RuntimeError, match="host memory was freed before a copy that uses it was done"):
        checks.free_during_copy(False)


def test_a_kernel_that_fails_is_reported_by_whoever_waits_for_it(checks: ModuleType) -> None:
    checks.set_deferred(True)
    checks.missed_barrier()
    with pytest.raises(RuntimeError, match="threads 40-127 have returned"):
        checks.set_deferred(False)


def test_approximate_instructions_are_off_by_two_units_at_most(checks: ModuleType) -> None:
    values = np.linspace(0.1, 3, THREADS).astype(np.float32)
    exact, rough, other = np.zeros((3, 3, THREADS), np.float32)
    checks.approximate(values, exact)
    for seed, out in ((1, rough), (2, other)):
        checks.set_error_seed(seed)
        checks.approximate(values, out)
    for result in (rough, other):
        units = result.view(np.int32) - exact.view(np.int32)
        assert all(set(row.tolist()) == {-2, -1, 0, 1, 2} for row in units)
    assert not np.array_equal(rough, other)


def test_denormal_numbers_are_flushed(checks: ModuleType) -> None:
    values = np.full(2, 1e38, np.float32)
    values[1] = 5e-39
    exact, rough = np.zeros((2, 3, 2), np.float32)
    checks.approximate(values, exact)
    checks.set_error_seed(1)
    checks.approximate(values, rough)
    assert exact[0, 0] > 0 and rough[0, 0] == 0
    assert np.isfinite(exact[0, 1]) and np.isinf(rough[0, 1])


@pytest.mark.parametrize("index", [8, -1])
def test_a_shared_array_knows_its_size(checks: ModuleType, index: int) -> None:
    out = np.zeros(1, np.int32)
    checks.out_of_range(out, 7)
    with pytest.raises(RuntimeError, match=rf"index {index} of a shared array of 8 at kernels.cu:\d+"):
        checks.out_of_range(out, index)


def test_dynamic_shared_memory_ends_where_the_launch_said(any_order: ModuleType) -> None:
    out = np.zeros(THREADS, np.int32)
    any_order.dynamic(out, 0)
    assert np.array_equal(np.sort(out), [-5, *range(1, THREADS)])
    with pytest.raises(RuntimeError, match="wrote behind the 512 bytes of dynamic shared memory"):
        any_order.dynamic(out, THREADS)


def test_shared_memory_is_undefined_when_a_block_starts(checks: ModuleType) -> None:
    out = np.zeros(THREADS, np.float32)
    checks.undefined(out, True)
    assert np.all(out == 1)
    checks.undefined(out, False)
    assert np.all(np.isnan(out))


@pytest.mark.parametrize(("grid", "block", "shared"), [(1, 2048, 0), (1, 0, 0), (1, 32, 49153)])
def test_a_launch_beyond_the_limits_of_hardware_is_refused(
    checks: ModuleType, grid: int, block: int, shared: int
) -> None:
    with pytest.raises(RuntimeError, match="CUDA: launching a kernel: invalid"):
        checks.shape(grid, block, shared)
    checks.shape(0, 32, 0)


@pytest.mark.parametrize("count", [1, 31, 256, 4096, 4097, 9000])
@pytest.mark.parametrize(("begin", "end"), [(0, 32), (0, 5), (3, 9), (4, 25)])
def test_pairs_are_sorted_stably_by_some_bits(checks: ModuleType, begin: int, end: int, count: int) -> None:
    keys = np.random.default_rng(3).integers(0, 1 << 32, count, dtype=np.uint32)
    keys[::7] = 0xFFFFFFFF
    _check_sort(checks, keys, np.random.default_rng(4).permutation(count).astype(np.uint32), begin, end)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pairs_with_few_different_keys_are_sorted_in_any_order_of_threads(checks: ModuleType, seed: int) -> None:
    keys = np.random.default_rng(seed).choice(np.array([0, 3, 3 << 16, 1 << 31], np.uint32), 7000)
    checks.set_seed(seed)
    try:
        _check_sort(checks, keys, None, 0, 32)
    finally:
        checks.set_seed(0)


def test_an_array_too_long_for_small_tiles_is_sorted(checks: ModuleType) -> None:
    keys = np.random.default_rng(5).integers(0, 200, (1 << 19) + 5000, dtype=np.uint32)
    _check_sort(checks, keys, None, 0, 8)


def _check_sort(
    checks: ModuleType, keys: NDArray[np.uint32], values: NDArray[np.uint32] | None, begin: int, end: int
) -> None:
    keys_out, values_out = np.zeros_like(keys), np.zeros_like(keys)
    checks.sort_pairs(keys, values, keys_out, values_out, begin, end)
    order = np.argsort((keys.astype(np.uint64) & ((1 << end) - 1)) >> begin, kind="stable")
    assert np.array_equal(values_out, order if values is None else values[order])
    assert np.array_equal(keys_out, keys[order])


def test_sums_may_replace_what_was_summed(checks: ModuleType) -> None:
    values = np.random.default_rng(4).integers(0, 9, 300).astype(np.uint32)
    expected = np.cumsum(values) - values
    checks.exclusive_sum(values, values)
    assert np.array_equal(values, expected)


def test_device_memory_is_reused(checks: ModuleType) -> None:
    checks.trim()
    sizes = [100, 1_000_000, 3_000_000]
    checks.use_memory(sizes)
    before, held = checks.system_allocations(), checks.held_bytes()
    for change in range(5):
        checks.use_memory([size - change for size in sizes])
    assert checks.system_allocations() == before
    assert checks.held_bytes() == held >= sum(sizes)
    checks.trim()
    assert checks.held_bytes() == 0


def test_kept_memory_is_freed_before_an_allocation_fails(checks: ModuleType) -> None:
    checks.trim()
    checks.use_memory([1 << 20])
    checks.fail_allocations(1)
    checks.use_memory([1 << 24])
    assert checks.held_bytes() == 1 << 24
    checks.fail_allocations(2)
    with pytest.raises(MemoryError, match=r"allocating 33554432 bytes on the device: out of memory"):
        checks.use_memory([1 << 25])
    checks.trim()


def test_stages_of_one_name_are_added_up(checks: ModuleType) -> None:
    stages = checks.time_stages(["sort", "blend", "sort"])
    assert [name for name, _ in stages] == ["sort", "blend"]
    assert all(milliseconds >= 0 for _, milliseconds in stages)
