"""Memory that is kept for later calls is released on request, and after a while if no call needs it."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import torch

from lumigrad.kernels import _native, gaussians, meshes, spheres
from lumigrad.kernels.memory import trim
from support.calls.gaussian_calls import gaussian_cloud
from support.wall_clock import WallClock

CPU = torch.device("cpu")
LENS = (256, 256, 128, 128)
MIB = 1 << 20
# Allocates arrays of the given sizes in MiB, releases all of them, and prints how much the pool holds.
HOLDER = """
import sys
from lumigrad.kernels import _native

for line in sys.stdin:
    arrays = [_native.pool_array(int(mib) << 20).fill_(1) for mib in line.split()]
    del arrays
    print(_native.pool_bytes() >> 20, flush=True)
"""
IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def render() -> tuple[torch.Tensor, ...]:
    """Renders with each engine and queries distances; trims memory before the backward pass of the spheres."""
    random = torch.Generator().manual_seed(1)
    positions = torch.rand(5000, 3, generator=random) + torch.tensor([-0.5, -0.5, 4.0])
    radii = torch.full((5000,), 0.02)
    camera = spheres.Camera.opencv(*LENS, IDENTITY, [0, 0, 0], 256, 256)
    settings = spheres.Settings(gamma=0.1, max_depth=10.0, min_depth=0.1)
    of_spheres = spheres.forward(positions, positions, radii, [camera], settings, retain=True)
    cloud = gaussians.Gaussians(**{name: torch.from_numpy(array) for name, array in gaussian_cloud(5000).items()})
    of_gaussians = gaussians.forward(
        cloud, [gaussians.Camera.opencv(*LENS, IDENTITY, [0, 0, 0], 256, 256)], gaussians.Settings()
    )
    world = meshes.World([meshes.Instance(meshes.Cuboid((1.0, 1.0, 1.0)))])
    queries = torch.cat([positions, radii[:, None]], dim=1).reshape(1, 1, -1, 4)
    distances = meshes.evaluate(queries, world, meshes.Settings(), outputs=("distance",))
    trim(CPU)
    upstream = {"color": torch.ones_like(of_spheres.outputs["color"])}
    gradients = spheres.backward(of_spheres.state, upstream).gradients
    return (
        of_spheres.outputs["color"],
        of_gaussians.outputs["color"],
        distances.outputs["distance"],
        gradients["positions"],
    )


def test_memory_is_given_back_and_calls_go_on_as_before() -> None:
    # Garbage of other tests would be collected, and its memory released, in the middle of this one.
    gc.collect()
    trim(CPU)
    before = _native.pool_bytes()
    first = render()
    assert _native.pool_bytes() > before
    second = render()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
    del first, second, one, other
    trim(CPU)
    assert _native.pool_bytes() == before


def test_threads_that_take_and_give_at_the_same_time_lose_nothing() -> None:
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    faces = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]], dtype=torch.int32)

    def build() -> None:
        for _ in range(4000):
            meshes.Mesh.build(vertices, faces)

    trim(CPU)
    before = _native.pool_bytes()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(build) for _ in range(4)]:
            done.result()
    trim(CPU)
    assert _native.pool_bytes() == before


def test_what_was_for_a_burst_goes_back_to_the_system_after_a_while(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=clock.environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as child:

        def held_after(*mib: int) -> int:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(" ".join(map(str, mib)) + "\n")
            return int(child.stdout.readline())

        def resident() -> float:
            return psutil.Process(child.pid).memory_info().rss / MIB

        # Blocks of all sizes: 10 MiB is a picture of 1280 x 720.
        burst = (*[10] * 8, *[1] * 32)
        assert held_after(10) == 10
        before = resident()
        assert held_after(*burst) == sum(burst)
        assert held_after(10) == sum(burst), "the calls to come have to ask the system again"
        assert resident() - before > 0.8 * sum(burst)
        clock.pass_time(60)
        assert held_after(10) == 10, "more is held than what was in use lately"
        assert resident() - before < 0.2 * sum(burst)
