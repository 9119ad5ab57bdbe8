"""Packed rows of Gaussians: their sizes, and how far each value may be from the one that was packed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.client import Gaussians
from lumigrad.kernels import _native, meshes
from lumigrad.kernels import gaussians as kernels
from lumigrad.kernels.gaussians import Camera, Settings
from lumigrad.kernels.gaussians.packed_rows import pack, row_bytes, unpack
from support.backends.cuda_devices import CudaDevice, gpu
from support.backends.gaussian_engines import instruction_set
from support.gaussians.levels import rounded
from support.meshes.shapes import torus
from tests.benchmarks import captured_scenes, gaussian_scene

NAMES = ("means", "quats", "scales", "opacities", "sh")
# The smallest denormal float32, and the rounding error of products in float32.
TINY, EPSILON = 1.5e-45, 2.0**-23


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


@pytest.mark.parametrize(("degree", "expected"), [(0, 32), (1, 44), (2, 60), (3, 60), (4, 76)])
def test_a_row_has_as_many_bytes_as_are_promised(degree: int, expected: int) -> None:
    assert row_bytes((degree + 1) ** 2) == expected
    assert pack(random_rows(1000, degree)).nbytes - 1000 * expected == pack(random_rows(0, degree)).nbytes <= 32


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_each_value_is_within_its_bound(degree: int) -> None:
    for what, rows in extreme_rows(degree).items():
        found = {name: value.double() for name, value in unpacked(pack(rows), rows).items()}
        exact = {name: value.double() for name, value in rows.items()}

        def assert_within(name: str, found: Tensor, exact: Tensor, bound: Tensor | float, case: str = what) -> None:
            assert ((found - exact).abs() <= bound + 2 * EPSILON * exact.abs() + TINY).all(), (case, name)

        assert torch.equal(found["means"], exact["means"])
        assert_within("opacities", found["opacities"], exact["opacities"], 0.5 / 65535)
        for name, value, original in (
            ("scales", found["scales"], exact["scales"]),
            ("constant", found["sh"][:, 0], exact["sh"][:, 0]),
        ):
            assert_within(name, value, original, (2**-11 * original.abs()).clamp(min=2**-25 * factor(original)))
        if degree and len(exact["sh"]):
            others, theirs = found["sh"][:, 1:], exact["sh"][:, 1:]
            steps = steps_of(theirs, (127, 127, 127) if degree <= 2 else (15, 15, 7))
            rounding = 8 * EPSILON * theirs.abs().amax((1, 2), keepdim=True)
            assert_within("red, blue", others[:, :, ::2], theirs[:, :, ::2], steps.sum(0) / 2 + rounding)
            assert_within("green", others[:, :, 1], theirs[:, :, 1], (steps[0] / 2 + steps[2] + rounding)[:, :, 0])
            assert not others[(theirs == 0).all(2)].any()
        assert_within("quats", found["quats"], directed(exact["quats"]), 0.5 / 8191)


def steps_of(harmonics: Tensor, largest_numbers: tuple[int, int, int]) -> Tensor:
    """Returns the largest steps [3, N, 1, 1] that the brightness and the two differences of colours may have."""
    red, green, blue = harmonics.unbind(2)
    planes = ((red + green + blue) / 3, (red - blue) / 2, (2 * green - red - blue) / 6)
    needed = torch.stack([plane.abs().amax(1) / most for plane, most in zip(planes, largest_numbers, strict=True)])
    least = (needed.amax(1, keepdim=True) * 2**-14).clamp(min=2.0**-117)
    return torch.maximum(1.25 * needed, least)[:, :, None, None]


def directed(quats: Tensor) -> Tensor:
    """Returns quaternions over their largest components; 0 if they are too short."""
    largest = quats.gather(1, quats.abs().argmax(1, keepdim=True))
    return quats / largest.where(largest.abs() > 1e-18, torch.inf)


def factor(values: Tensor) -> float:
    """Returns a power of two; the largest value is 2**14 to 2**15 times as large."""
    largest = float(values.abs().max()) if values.numel() else 0.0
    return float(max(2.0 ** (np.frexp(largest)[1] - 15), 2.0**-102))


@pytest.mark.filterwarnings("ignore::lumigrad.client.errors.PrecisionWarning")
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_values_are_the_references(degree: int) -> None:
    for what, rows in extreme_rows(degree).items():
        expected = rounded(Gaussians(**{name: value.numpy() for name, value in rows.items()}))
        for name, value in unpacked(pack(rows), rows).items():
            assert np.array_equal(value.numpy(), getattr(expected, name)), (what, name)


@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
def test_all_instruction_sets_pack_the_same_bits(degree: int) -> None:
    for what, rows in extreme_rows(degree).items():
        blocks = [packed_by(isa, rows) for isa in _native.available_isas()]
        assert all(torch.equal(block, blocks[0]) for block in blocks), what


def packed_by(isa: str, rows: dict[str, Tensor]) -> Tensor:
    with instruction_set(isa):
        return pack(rows)


@dataclass(frozen=True)
class Pages:
    """Pages of all kinds, of which more than one launch of a kernel has, and what unpacking them should give.

    Attributes:
        blocks: Packed pages, or float32.
        expected: All rows, from row `begin` on, behind rows that stay as they are.
    """

    blocks: list[tuple[Tensor, int]]
    is_packed: bool
    begin: int
    expected: dict[str, Tensor]

    @staticmethod
    def of(degree: int, is_packed: bool) -> Pages:
        pages = [*extreme_rows(degree).values()] * 5
        rows = [unpacked(pack(page), page) if is_packed else page for page in pages]
        blocks = [((pack if is_packed else in_one_piece)(page), len(page["means"])) for page in pages]
        first = {name: torch.full((5, *rows[0][name].shape[1:]), -7.0) for name in NAMES}
        return Pages(blocks, is_packed, 5, {name: torch.cat([first[name], *(p[name] for p in rows)]) for name in NAMES})

    def check(
        self, run: Callable[[dict[str, Tensor]], None], names: Sequence[str], device: torch.device | None = None
    ) -> None:
        """Check the bits that `run` writes."""
        into = {name: torch.full_like(self.expected[name], -7.0, device=device) for name in names}
        run(into)
        for name, found in into.items():
            assert torch.equal(found.cpu().view(torch.int32), self.expected[name].view(torch.int32)), name


@pytest.mark.parametrize("names", [NAMES, NAMES[:-1]], ids=["all", "without harmonics"])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("degree", [0, 1, 2, 3, 4])
class TestUnpackingManyPages:
    """Each machine writes the same bits as an unpacking of each page alone, which other tests compare with numpy."""

    @pytest.mark.parametrize("isa", _native.available_isas(), ids="cpu-{}".format)
    def test_by_the_loops_of_an_instruction_set(
        self, degree: int, is_packed: bool, names: Sequence[str], isa: str
    ) -> None:
        pages = Pages.of(degree, is_packed)
        with instruction_set(isa):
            pages.check(lambda into: unpack(pages.blocks, into, pages.begin, is_packed=is_packed), names)

    def test_by_the_kernels(self, degree: int, is_packed: bool, names: Sequence[str], cuda: CudaDevice) -> None:
        pages, run = Pages.of(degree, is_packed), cuda.native.gaussian_cuda_unpack_rows
        blocks = [(block.to(cuda.device), count) for block, count in pages.blocks]
        stream = cuda.current_stream()
        pages.check(lambda into: run(0, stream, blocks, is_packed, pages.begin, **into), names, cuda.device)

    @pytest.mark.gpu
    def test_in_the_memory_of_a_gpu(self, degree: int, is_packed: bool, names: Sequence[str]) -> None:
        pages, device = Pages.of(degree, is_packed), gpu().device
        blocks = [(block.to(device), count) for block, count in pages.blocks]
        pages.check(lambda into: unpack(blocks, into, pages.begin, is_packed=is_packed), names, device)


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
        assert any(longest_part() < 0.3 for _ in range(12))
    finally:
        _native.set_thread_count(threads)


SCENES = {
    "standard": lambda: gaussian_scene.scene(100_000, 480, 270),
    "capture": lambda: captured_scenes.fitted(width=480),
}


# The largest error of a value, in levels of 8 bits, and the PSNR in dB, at degrees 2 and 3. The harmonics of the
# standard scene are random numbers: colours that change with the direction as much as they can, each on its own.
BOUNDS = {"standard": ((2, 65), (12, 47)), "capture": ((1.5, 70), (3, 62))}


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("name", SCENES)
def test_pictures_of_rounded_gaussians_look_the_same(name: str, degree: int) -> None:
    try:
        scene = SCENES[name]()
    except captured_scenes.NoSuchScene as missing:
        pytest.skip(str(missing))
    exact = {name: torch.tensor(values) for name, values in scene.tensors.items()}
    exact["sh"] = exact["sh"][:, : (degree + 1) ** 2].contiguous()
    packed = {name: torch.empty_like(values) for name, values in exact.items()}
    count = len(exact["means"])
    parts = [{name: rows[start : start + 65536] for name, rows in exact.items()} for start in range(0, count, 65536)]
    unpack([(pack(part), len(part["means"])) for part in parts], packed)
    levels, decibels = BOUNDS[name][degree - 2]
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
        assert 0 < error.max() < levels / 255
        found = -10 * np.log10(np.square(error).mean())
        print(f"{name}, degree {degree}: {255 * error.max():.2f} levels, {found:.1f} dB")
        assert found > decibels
