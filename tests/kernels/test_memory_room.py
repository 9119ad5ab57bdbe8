"""A call stays within its memory room, reports how much it asked for, and does not affect the next call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native, gaussians, meshes, spheres
from lumigrad.kernels.errors import NoRoom
from lumigrad.kernels.memory import MemoryRoom, trim
from support.backends import emulation
from support.backends.gaussian_engines import ENGINES as GAUSSIAN_ENGINES
from support.backends.gaussian_engines import cpu
from support.gaussians import sensor_cases
from support.meshes import shapes

MIB = 1 << 20
IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
# Each primitive covers the whole image of 16 x 32 tiles.
COUNT, SIZE = 4000, 512
LISTS = COUNT * (SIZE // 32) * (SIZE // 16) * 4
Arrays = dict[str, torch.Tensor]


def large_gaussians(count: int = COUNT, scale: float = 100.0) -> gaussians.Gaussians:
    random = torch.Generator().manual_seed(1)
    return gaussians.Gaussians(
        means=torch.rand(count, 3, generator=random) + torch.tensor([-0.5, -0.5, 4.0]),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(count, 1),
        scales=torch.full((count, 3), scale),
        opacities=torch.full((count,), 0.9),
        colors=torch.rand(count, 3, generator=random),
    )


def lens(size: int) -> tuple[Any, ...]:
    return size / 2, size / 2, size / 2, size / 2, IDENTITY, [0, 0, 0], size, size


def of_gaussians(settings: gaussians.Settings) -> Callable[..., Arrays]:
    def call(*, scale: float = 100.0, size: int = SIZE, retain: bool = False) -> Arrays:
        camera = gaussians.Camera.opencv(*lens(size))
        found = gaussians.forward(large_gaussians(scale=scale), [camera], settings, retain=retain)
        if found.state is None:
            return dict(found.outputs)
        upstream = {"color": torch.ones_like(found.outputs["color"])}
        return {**found.outputs, **gaussians.backward(found.state, upstream, ("means", "opacities")).gradients}

    return call


def of_spheres(semantics: str) -> Callable[..., Arrays]:
    def call(*, scale: float = 100.0, size: int = SIZE, retain: bool = False) -> Arrays:
        camera = spheres.Camera.opencv(*lens(size))
        random = torch.Generator().manual_seed(1)
        positions = torch.rand(COUNT, 3, generator=random) + torch.tensor([-0.5, -0.5, 4.0 + scale])
        radii = torch.full((COUNT,), scale)
        settings = spheres.Settings(gamma=1e-5, max_depth=1000.0, min_depth=0.1, semantics=semantics)
        found = spheres.forward(positions, positions, radii, [camera], settings, retain=retain)
        if found.state is None:
            return dict(found.outputs)
        upstream = {"color": torch.ones_like(found.outputs["color"])}
        return {**found.outputs, **spheres.backward(found.state, upstream, ("positions",)).gradients}

    return call


KINDS: dict[str, Callable[..., Arrays]] = {
    "gaussians": of_gaussians(gaussians.Settings()),
    "surfels": of_gaussians(gaussians.Settings(primitive="surfel")),
    "exact spheres": of_spheres("exact"),
    "compat spheres": of_spheres("compat"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    trim(torch.device("cpu"))
    yield
    trim(torch.device("cpu"))


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


@every_kind
@pytest.mark.parametrize("retain", [False, True])
def test_lists_beyond_the_room_are_refused_before_they_are_allocated(kind: str, retain: bool) -> None:
    call = KINDS[kind]
    small = call(scale=0.01, retain=retain)
    trim(torch.device("cpu"))
    # The other memory of the call takes less than 4 MiB.
    room, before = MemoryRoom(LISTS // 2 + 4 * MIB), _native.pool_bytes()
    with pytest.raises(NoRoom, match="primitives that cover less of the image"), room:
        call(retain=retain)
    assert room.refused > LISTS
    assert _native.pool_bytes() - before < LISTS // 2 + 4 * MIB
    assert_same(call(scale=0.01, retain=retain), small)


@every_kind
def test_a_call_that_has_room_gives_what_it_gives_without_a_limit(kind: str) -> None:
    expected = KINDS[kind](size=64, retain=True)
    room = MemoryRoom(16 * LISTS)
    with room:
        found = KINDS[kind](size=64, retain=True)
    assert_same(found, expected)
    assert room.refused == 0


def test_large_lists_are_not_kept_for_later_calls() -> None:
    call, size = KINDS["gaussians"], 2048
    call(scale=0.01, size=size)
    before = _native.pool_bytes()
    call(size=size)
    assert LISTS * (size // SIZE) ** 2 > 100 * MIB
    assert _native.pool_bytes() - before < 8 * MIB


def test_a_mesh_is_built_within_its_room_or_not_at_all() -> None:
    torus = shapes.torus(100, 50)
    arrays = torch.from_numpy(torus.vertices), torch.from_numpy(torus.faces)
    nbytes = meshes.Mesh.build(*arrays).bytes
    with pytest.raises(NoRoom), MemoryRoom(nbytes // 2):
        meshes.Mesh.build(*arrays)
    with MemoryRoom(4 * nbytes):
        assert meshes.Mesh.build(*arrays).bytes == nbytes


def test_lists_along_rays_are_refused_too() -> None:
    case = sensor_cases.RAY_CASES["pinhole"]

    def call() -> Any:
        scene, settings = gaussians.Gaussians(**case.scene), gaussians.Settings(**case.settings)
        return cpu().forward(scene, [case.camera()], settings, retain=True)[0]

    expected = call()
    trim(torch.device("cpu"))
    with pytest.raises(NoRoom), MemoryRoom(8192):
        call()
    assert_same(call(), expected)


def test_what_was_kept_makes_way_for_a_call_with_little_room() -> None:
    held = [_native.pool_array(16 * MIB) for _ in range(8)]
    del held
    assert _native.pool_bytes() >= 128 * MIB
    with MemoryRoom(100 * MIB):
        taken = _native.pool_array(90 * MIB)
        assert _native.pool_bytes() < 110 * MIB
    del taken


def test_a_thread_has_one_room_at_a_time_and_memory_that_is_given_back_is_room_again() -> None:
    with MemoryRoom(64 * MIB):
        with pytest.raises(RuntimeError, match="limited already"), MemoryRoom(1):
            pass
        for _ in range(10):
            _native.pool_array(40 * MIB)
        with pytest.raises(MemoryError):
            _native.pool_array(80 * MIB)
    _native.pool_array(80 * MIB)


@pytest.fixture
def emulated() -> Iterator[Any]:
    module = emulation.load("_emulation")
    yield module
    module.limit_memory(-1)


def test_kernels_for_a_gpu_draw_without_lists_what_they_have_no_room_to_list(emulated: Any) -> None:
    engine, scene = GAUSSIAN_ENGINES["emulation"](), large_gaussians(300)
    camera = gaussians.Camera.opencv(100.0, 100.0, 32, 32, IDENTITY, [0, 0, 0], 64, 64)

    def color(limit: int, **settings: Any) -> Any:
        emulated.limit_memory(limit)
        return engine.forward(scene, [camera], gaussians.Settings(**settings))[0]["color"]

    listed = color(-1)
    # Records take 40 KiB; 4800 pairs of 32 bytes do not fit beside them.
    np.testing.assert_array_equal(color(200 << 10), listed)
    with pytest.raises(MemoryError, match="deterministic"):
        color(200 << 10, deterministic=True)
    with pytest.raises(MemoryError, match="which it may have"):
        color(16 << 10)
    np.testing.assert_array_equal(color(-1), listed)
