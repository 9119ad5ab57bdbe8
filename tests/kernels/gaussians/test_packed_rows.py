"""Packed rows of Gaussians: their sizes, and how far each value may be from the one that was packed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.client import Gaussians
from lumigrad.kernels import _native, meshes
from lumigrad.kernels import gaussians as kernels
from lumigrad.kernels.gaussians import Camera, Settings, packed_rows
from lumigrad.kernels.gaussians.packed_rows import pack, row_bytes, unpack
from support.gaussians.levels import rounded
from support.meshes.shapes import torus
from tests.benchmarks import captured_scenes, gaussian_scene

NAMES = ("means", "quats", "scales", "opacities", "sh")
# The smallest denormal float32, and the rounding error of products in float32.
TINY, EPSILON = 1.5e-45, 2.0**-23
HALF_A_STEP = torch.tensor(0.5 / 32767, dtype=torch.float64)


def random_rows(count: int, degree: int, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    coefficients = (degree + 1) ** 2
    return {
        "means": torch.randn(count, 3, generator=g) * 100,
        "quats": torch.randn(count, 4, generator=g) * 10 ** torch.randn(count, 1, generator=g),
        "scales": torch.rand(count, 3, generator=g) ** 8,
        "opacities": torch.rand(count, generator=g),
        "sh": torch.randn(count, coefficients, 3, generator=g),
    }


def extreme_rows(degree: int) -> dict[str, dict[str, Tensor]]:
    """Pages of rows, by what is special about them."""
    count = 257
    pages = {name: random_rows(count, degree, seed) for seed, name in enumerate(_CHANGES)}
    for name, rows in pages.items():
        _CHANGES[name](rows)
    return pages | {"one row": random_rows(1, degree), "empty": random_rows(0, degree)}


def _set_wide(rows: dict[str, Tensor]) -> None:
    rows["scales"] = torch.logspace(-8, 6, rows["scales"].numel()).view_as(rows["scales"])


def _set_outlier(rows: dict[str, Tensor]) -> None:
    rows["sh"][3, -1, 1] = 3e38
    rows["sh"][5, 0, 2] = -3e38
    rows["scales"][7, 0] = 3e38


def _set_tiny(rows: dict[str, Tensor]) -> None:
    for name in ("scales", "sh"):
        rows[name] *= 1e-40


def _set_nothing(rows: dict[str, Tensor]) -> None:
    for name in ("quats", "scales", "opacities", "sh"):
        rows[name].zero_()


def _set_ends(rows: dict[str, Tensor]) -> None:
    rows["opacities"][:3] = torch.tensor([0.0, 1.0, 1e-30])
    rows["quats"][:4] = torch.tensor([[0.0, 0, 0, 0], [1e-19, 0, 0, 0], [3e38, 3e38, 3e38, -3e38], [0, 0, 1e-17, 0]])
    rows["sh"][9] = 0
    rows["sh"][10] *= 1e-30


_CHANGES = {
    "ordinary": lambda rows: None,
    "scales of 1e-8 to 1e6": _set_wide,
    "bright": lambda rows: rows["sh"].mul_(1e6),
    "outliers": _set_outlier,
    "denormal": _set_tiny,
    "zeros": _set_nothing,
    "ends": _set_ends,
}


def in_one_piece(rows: dict[str, Tensor]) -> Tensor:
    return torch.cat([rows[name].flatten() for name in NAMES])


def unpacked(packed: Tensor, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    into = {name: torch.full_like(rows[name], torch.nan) for name in NAMES}
    unpack([(packed, len(into["means"]))], into)
    return into


@pytest.mark.parametrize(("degree", "expected"), [(0, 34), (1, 45), (2, 60), (3, 81), (4, 108)])
def test_a_row_has_as_many_bytes_as_are_promised(degree: int, expected: int) -> None:
    assert row_bytes((degree + 1) ** 2) == expected
    assert pack(random_rows(1000, degree)).nbytes - 1000 * expected == pack(random_rows(0, degree)).nbytes <= 16


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_each_value_is_within_its_bound(degree: int) -> None:
    for what, rows in extreme_rows(degree).items():
        found = {name: value.double() for name, value in unpacked(pack(rows), rows).items()}
        exact = {name: value.double() for name, value in rows.items()}

        def assert_within(name: str, found: Tensor, exact: Tensor, bound: Tensor, case: str = what) -> None:
            assert ((found - exact).abs() <= bound + EPSILON * exact.abs() + TINY).all(), (case, name)

        assert torch.equal(found["means"], exact["means"])
        assert_within("opacities", found["opacities"], exact["opacities"], HALF_A_STEP)
        for name, value, original in (
            ("scales", found["scales"], exact["scales"]),
            ("constant", found["sh"][:, 0], exact["sh"][:, 0]),
        ):
            assert_within(name, value, original, (2**-11 * original.abs()).clamp(min=2**-25 * factor(original)))
        others, theirs = found["sh"][:, 1:].flatten(1), exact["sh"][:, 1:].flatten(1)
        if others.numel():
            largest = theirs.abs().amax(1, keepdim=True)
            assert_within("others", others, theirs, largest / 253 + 2**-24 * factor(theirs))
            assert not others[theirs == 0].any()
        largest = exact["quats"].abs().amax(1, keepdim=True) if len(exact["quats"]) else exact["quats"][:, :1]
        directed = exact["quats"] / largest.where(largest > 1e-18, torch.inf)
        assert_within("quats", found["quats"], directed, HALF_A_STEP)


def factor(values: Tensor) -> float:
    """Returns a power of two; the largest value is 2**14 to 2**15 times as large."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return float(max(2.0 ** (np.frexp(largest)[1] - 15), 2.0**-102))


@pytest.mark.filterwarnings("ignore::lumigrad.client.errors.PrecisionWarning")
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_values_are_the_references(degree: int) -> None:
    for what, rows in extreme_rows(degree).items():
        expected = rounded(Gaussians(**{name: value.numpy() for name, value in rows.items()}))
        for name, value in unpacked(pack(rows), rows).items():
            assert np.array_equal(value.numpy(), getattr(expected, name)), (what, name)


def test_rows_without_harmonics_are_unpacked_alone() -> None:
    rows = random_rows(100, 2)
    whole = unpacked(pack(rows), rows)
    into = {name: torch.empty_like(rows[name]) for name in NAMES if name != "sh"}
    unpack([(pack(rows), 100)], into)
    assert all(torch.equal(into[name], whole[name]) for name in into)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_all_instruction_sets_and_devices_compute_the_same_bits(degree: int, is_packed: bool) -> None:
    pages = list(extreme_rows(degree).values())
    joined = {name: torch.cat([rows[name] for rows in pages]) for name in NAMES}
    before = 5
    write, block_of = (packed_rows._unpack, pack) if is_packed else (packed_rows._copy, in_one_piece)
    blocks = [(block_of(rows), len(rows["means"])) for rows in pages]

    def found(run: Callable[[dict[str, Tensor]], None]) -> dict[str, Tensor]:
        into = {name: torch.full((before + len(rows), *rows.shape[1:]), -7.0) for name, rows in joined.items()}
        run(into)
        assert all((rows[:before] == -7.0).all() for rows in into.values())
        return into

    def by_operations_of_torch(into: dict[str, Tensor]) -> None:
        begin = before
        for block, count in blocks:
            write(block, {name: rows[begin : begin + count] for name, rows in into.items()})
            begin += count

    expected = found(by_operations_of_torch)
    chosen = _native.current_isa()
    try:
        for isa in _native.available_isas():
            _native.set_isa(isa)
            for name, rows in found(lambda into: unpack(blocks, into, before, is_packed=is_packed)).items():
                assert torch.equal(rows.view(torch.int32), expected[name].view(torch.int32)), (isa, name)
    finally:
        _native.set_isa(chosen)


def test_unpacking_does_not_wait_for_the_loops_of_a_device() -> None:
    rows = random_rows(100, 0)
    blocks = [(pack(rows), 100)] * 8
    into = {name: torch.empty(800, *value.shape[1:]) for name, value in rows.items()}
    shape = torus(300, 200)
    world = meshes.World([meshes.Instance(meshes.Mesh.build(*map(torch.from_numpy, (shape.vertices, shape.faces))))])
    spheres = torch.rand(1, 1, 1_000_000, 4) * 2 - 1

    def longest_part() -> float:
        """Returns the longest wait for an unpacking during a query of distances, as a fraction of the query's time."""
        query = threading.Thread(target=meshes.evaluate, args=(spheres, world, meshes.Settings()))
        start = before = time.perf_counter()
        query.start()
        longest = 0.0
        while query.is_alive():
            unpack(blocks, into)
            before, last = time.perf_counter(), before
            longest = max(longest, before - last)
        query.join()
        return longest / (before - start)

    threads = _native.thread_count()
    _native.set_thread_count(2)
    try:
        # A single query may be held up by other programs.
        assert min(longest_part() for _ in range(4)) < 0.3
    finally:
        _native.set_thread_count(threads)


def test_what_was_packed_stays_as_it_is_when_packed_again() -> None:
    rows = random_rows(1000, 0)
    once = unpacked(pack(rows), rows)
    again = unpacked(pack(once), once)
    for name in NAMES:
        assert torch.equal(once[name], again[name]), name


SCENES = {
    "standard": lambda: gaussian_scene.scene(100_000, 480, 270),
    "garden": lambda: captured_scenes.garden(1, width=480),
    "capture": lambda: captured_scenes.fitted(width=480),
    "person": lambda: gaussian_scene.trained(*captured_scenes.paths_of(gaussian_scene.TRAINED)),
}


@pytest.mark.parametrize("name", SCENES)
def test_pictures_of_rounded_gaussians_look_the_same(name: str) -> None:
    try:
        scene = SCENES[name]()
    except captured_scenes.NoSuchScene as missing:
        pytest.skip(str(missing))
    exact = {name: torch.tensor(values) for name, values in scene.tensors.items()}
    packed = {name: torch.empty_like(values) for name, values in exact.items()}
    count = len(exact["means"])
    parts = [{name: rows[start : start + 65536] for name, rows in exact.items()} for start in range(0, count, 65536)]
    unpack([(pack(part), len(part["means"])) for part in parts], packed)
    for step in (0.0, -0.3, 0.5):
        place = scene.translation + np.float32([step, step / 4, step / 2])
        camera = Camera.opencv(*scene.intrinsics, scene.rotation, place, scene.width, scene.height)
        one, other = (
            kernels.forward(kernels.Gaussians(**rows), [camera], Settings(), outputs=("color",))
            .outputs["color"]
            .numpy()
            for rows in (exact, packed)
        )
        assert one.std() > 0.01
        error = np.abs(one - other)
        assert 0 < error.max() < 1.5 / 255
        assert -10 * np.log10(np.square(error).mean()) > 65
