"""gsplat's functions with harmonics for each camera equal a call for each camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lumigrad.client.compat.gsplat import RollingShutterType, rasterization, rasterization_2dgs
from support.gaussians.sensor_arguments import pose6
from support.gaussians.splats import COUNT, HEIGHT, WIDTH, splats
from support.workers.worker import WorkerProcess

CAMERAS = 2
ROLLING: dict[str, Any] = {
    "with_ut": True,
    "packed": False,
    "rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM,
}
ALONG: dict[str, Any] = {**ROLLING, "with_eval3d": True, "render_mode": "RGB-Ed"}
CASES: list[tuple[Callable[..., Any], tuple[int, ...], dict[str, Any]]] = [
    (rasterization, (), {"packed": False, "render_mode": "RGB+ED"}),
    (rasterization, (2,), {"packed": True, "sparse_grad": True}),
    (rasterization, (), ROLLING),
    (rasterization, (2,), ALONG),
    (rasterization_2dgs, (), {}),
]


def scene(*batch: int) -> dict[str, torch.Tensor]:
    # More coefficients than are used, and some colours are clamped at 0.
    colors = torch.rand(*batch, CAMERAS, COUNT, 16, 3, generator=torch.Generator().manual_seed(1)) - 0.6
    return {**splats(*batch), "colors": colors}


def of_camera(tensors: dict[str, torch.Tensor], camera: int, batch: int) -> dict[str, torch.Tensor]:
    """The arguments of a call for one camera, with coefficients [.., N, K, D]."""
    found = dict(tensors)
    for name in {"viewmats", "viewmats_rs", "Ks"} & set(found):
        found[name] = found[name].narrow(batch, camera, 1)
    return {**found, "colors": found["colors"].select(batch, camera)}


@pytest.mark.parametrize(("function", "batch", "options"), CASES)
def test_harmonics_of_each_camera_are_those_of_calls_of_its_own(
    function: Callable[..., Any], batch: tuple[int, ...], options: dict[str, Any], worker_process: WorkerProcess
) -> None:
    tensors = scene(*batch)
    if "rolling_shutter" in options:
        tensors["viewmats_rs"] = tensors["viewmats"].detach() + 0.3 * torch.eye(4).roll(3, 1).tril(-3).T
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    given = {"sh_degree": 2, "width": WIDTH, "height": HEIGHT, "target": worker_process.target, **options}

    def gradients() -> dict[str, torch.Tensor]:
        found = {name: leaf.grad.to_dense() for name, leaf in leaves.items() if leaf.grad is not None}
        for leaf in leaves.values():
            leaf.grad = None
        for name in {"viewmats", "viewmats_rs"} & set(found):
            # A worker's gradients are tangent to a sensor's rotation, those through the matrix are not: compare poses.
            matrices = (values.detach().reshape(-1, 4, 4).numpy() for values in (leaves[name], found[name]))
            found[name] = torch.from_numpy(pose6(*matrices))
        return found

    image = function(**leaves, **given)[0]
    upstream = torch.rand(image.shape, generator=torch.Generator().manual_seed(8))
    image.backward(upstream)
    found = gradients()
    single = [function(**of_camera(leaves, camera, len(batch)), **given)[0] for camera in range(CAMERAS)]
    expected = torch.cat(single, len(batch))
    torch.testing.assert_close(image, expected, rtol=1e-4, atol=1e-5)
    expected.backward(upstream)
    theirs = gradients()
    assert found.keys() == theirs.keys() >= {"colors", "means", "viewmats"}
    for name, gradient in theirs.items():
        atol = 1e-4 * max(float(gradient.abs().max()), 1e-3)
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-3, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert all(bool(found[name].any()) for name in ("colors", "means", "viewmats"))


def test_extra_signals_go_with_harmonics_of_each_camera(worker_process: WorkerProcess) -> None:
    tensors, signals = scene(), torch.rand(COUNT, 2)
    given = {"sh_degree": 1, "width": WIDTH, "height": HEIGHT, "target": worker_process.target}
    plain = rasterization(**tensors, **given)[0]
    image, _, meta = rasterization(**tensors, **given, extra_signals=signals, backgrounds=torch.zeros(CAMERAS, 3))
    torch.testing.assert_close(image, plain)
    assert meta["render_extra_signals"].max() > 0.1
