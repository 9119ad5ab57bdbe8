"""PyTorch's operators and the drop-ins under autocast, which rounds products of matrices to bfloat16 elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lumigrad.client import Cuboid
from lumigrad.client.compat import diff_gaussian_rasterization, gsplat, pulsar
from lumigrad.client.compat.gsplat import utils
from lumigrad.client.torch import mesh_distance, render_gaussians, render_gaussians_2d, render_spheres

COUNT, SIZE = 12, {"width": 16, "height": 12}
CAMERA = torch.tensor([0.1, -0.2, -4.0, 0.3, -0.2, 0.1, 1.0, 0.8])


pytestmark = pytest.mark.usefixtures("target")


def scene() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.matrix_exp(torch.tensor([[0.0, -0.3, 0.2], [0.3, 0.0, -0.1], [-0.2, 0.1, 0.0]]))
    view = torch.eye(4)
    view[:3, :3], view[2, 3] = turn, 5.0
    return {
        "means": torch.randn(COUNT, 3, generator=generator),
        "quats": torch.randn(COUNT, 4, generator=generator),
        "scales": torch.full((COUNT, 3), 0.3),
        "opacities": torch.full((COUNT,), 0.5),
        "colors": torch.rand(COUNT, 3, generator=generator),
        "viewmats": view[None],
        "Ks": torch.tensor([[[20.0, 0, 8], [0, 20, 6], [0, 0, 1]]]),
    }


def spheres() -> Any:
    given = scene()
    fixed = given["means"], given["colors"], torch.full((COUNT,), 0.4), CAMERA
    return render_spheres(*fixed, gamma=0.1, max_depth=9.0, outputs=("alpha", "depth"), **SIZE)


def gsplat_surfels() -> Any:
    *images, meta = gsplat.rasterization_2dgs(**scene(), **SIZE, render_mode="RGB+ED")
    return (*images, *(meta[name] for name in ("means2d", "depths", "ray_transforms", "normals")))


def gsplat_volumes() -> Any:
    *images, meta = gsplat.rasterization(**scene(), **SIZE, packed=False)
    return (*images, *(meta[name] for name in ("means2d", "depths", "conics", "opacities")))


def gsplat_functions() -> Any:
    given = scene()
    covariances, inverses = gsplat.quat_scale_to_covar_preci(given["quats"], given["scales"])
    centres, in_camera = gsplat.world_to_cam(given["means"], covariances, given["viewmats"])
    quats = torch.nn.functional.normalize(given["quats"], dim=-1)
    depths = torch.linspace(1.0, 2.0, 12 * 16).reshape(1, 12, 16, 1)
    normals = utils.depth_to_normal(depths, torch.linalg.inv(given["viewmats"]), given["Ks"])
    projected = gsplat.proj(centres, in_camera, given["Ks"], **SIZE)
    return covariances, inverses, centres, in_camera, *projected, utils.normalized_quat_to_rotmat(quats), normals


def pulsar_vectors() -> Any:
    return pulsar.Renderer._transform_cam_params(CAMERA, 16, 12, False, False, True)


def visible() -> Any:
    view = torch.eye(4)
    settings = diff_gaussian_rasterization.GaussianRasterizationSettings(
        12, 16, 0.5, 0.375, torch.zeros(3), 1.0, view, view, 0, torch.zeros(3)
    )
    # The next number to 0.2 is 0.2002 in bfloat16.
    near = torch.tensor([[0.0, 0.0, 0.19999], [0.0, 0.0, 0.20001]])
    return (diff_gaussian_rasterization.GaussianRasterizer(settings).markVisible(near),)


def distances() -> Any:
    turn = torch.tensor(0.3, requires_grad=True)
    quaternion = torch.stack([(turn / 2).cos(), turn * 0, turn * 0, (turn / 2).sin()])
    poses = torch.cat([torch.tensor([0.1, 0.2, 0.3]), quaternion])[None]
    spheres = torch.rand(COUNT, 4, generator=torch.Generator().manual_seed(1))
    return mesh_distance(spheres, Cuboid((1, 1, 1)), poses=poses, activation_distance=1.0)


CALLS: list[Callable[[], Any]] = [
    lambda: render_gaussians(**scene(), **SIZE),
    lambda: render_gaussians_2d(**scene(), **SIZE),
    *(spheres, gsplat_volumes, gsplat_surfels, gsplat_functions, pulsar_vectors, visible, distances),
]


@pytest.mark.parametrize("call", CALLS)
def test_results_are_those_without_autocast(call: Callable[[], Any]):
    expected = call()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call()
    for each, other in zip(found, expected, strict=True):
        assert (each is None) == (other is None)
        if each is not None:
            torch.testing.assert_close(each, other)


def test_compiled_functions_are_whole_graphs_under_autocast():
    given = scene()
    compiled = torch.compile(gsplat.quat_scale_to_covar_preci, backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(given["quats"], given["scales"])
    expected = gsplat.quat_scale_to_covar_preci(given["quats"], given["scales"])
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each, other)


def test_gradients_are_those_without_autocast():
    weights = torch.rand(1, 12, 16, 3, generator=torch.Generator().manual_seed(2))

    def slopes(enabled: bool) -> tuple[torch.Tensor, ...]:
        given = {name: tensor.clone().requires_grad_() for name, tensor in scene().items()}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            result = render_gaussians_2d(**given, **SIZE)
            loss = (result.color * weights).sum() + (result.surface_normals * weights).sum()
        return torch.autograd.grad(loss, tuple(given.values()))

    for found, expected in zip(slopes(True), slopes(False), strict=True):
        torch.testing.assert_close(found, expected)


def test_scaled_losses_that_overflow_are_skipped():
    means = torch.nn.Parameter(scene()["means"])
    optimizer, scaler = torch.optim.SGD([means], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = render_gaussians(**{**scene(), "means": means}, **SIZE).color.sum() * 1e3
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(means, scene()["means"]) and scaler.get_scale() < 2.0**127
