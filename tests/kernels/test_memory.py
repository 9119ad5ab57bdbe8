"""What is kept for the calls to come is given back on request."""

from __future__ import annotations

import torch

from lumigrad.kernels import _native, gaussians, meshes, spheres
from lumigrad.kernels.memory import trim
from support.calls.gaussian_calls import gaussian_cloud

CPU = torch.device("cpu")
LENS = (256, 256, 128, 128)
IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def render() -> tuple[torch.Tensor, ...]:
    """A picture of each engine, and distances; and gradients of the spheres after what was kept has gone."""
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
    assert of_spheres.state is not None
    upstream = {"color": torch.ones_like(of_spheres.outputs["color"])}
    gradients = spheres.backward(of_spheres.state, upstream).gradients
    return (
        of_spheres.outputs["color"],
        of_gaussians.outputs["color"],
        distances.outputs["distance"],
        gradients["positions"],
    )


def test_memory_is_given_back_and_calls_go_on_as_before() -> None:
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
