"""A small render and its gradients by each engine, which prove that the device works when callers are told so."""

from __future__ import annotations

import torch

from lumigrad.kernels import gaussians, spheres
from lumigrad.server.runtime import Runtime

_SIZE = 16
_IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
_LENS = (_SIZE, _SIZE, _SIZE / 2, _SIZE / 2)


def warm_up(runtime: Runtime) -> None:
    """Run both engines once, on the device's thread; raises if a result is not the picture it should be."""
    runtime.executor.run(lambda: _render(runtime), None)


def _render(runtime: Runtime) -> None:
    device = runtime.transfer.device
    pictures = {"sphere": _sphere(device), "Gaussian": _gaussian(device)}
    runtime.transfer.finish()
    for name, picture in pictures.items():
        centre = picture[0, _SIZE // 2, _SIZE // 2, 0].item()
        if not 0.0 < centre < 1.0:
            raise RuntimeError(f"the warm-up render of a {name} of colour 0.5 gave {centre}")


def _sphere(device: torch.device) -> torch.Tensor:
    forward = spheres.forward(
        torch.tensor([[0.0, 0.0, 4.0]], device=device),
        torch.tensor([[0.5]], device=device),
        torch.tensor([1.0], device=device),
        [spheres.Camera.opencv(*_LENS, _IDENTITY, [0, 0, 0], _SIZE, _SIZE)],
        spheres.Settings(gamma=0.1, max_depth=10.0, min_depth=0.1),
        retain=True,
    )
    assert forward.state is not None
    spheres.backward(forward.state, {"color": torch.ones_like(forward.outputs["color"])})
    return forward.outputs["color"]


def _gaussian(device: torch.device) -> torch.Tensor:
    cloud = gaussians.Gaussians(
        means=torch.tensor([[0.0, 0.0, 4.0]], device=device),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]], device=device),
        scales=torch.ones(1, 3, device=device),
        opacities=torch.tensor([0.9], device=device),
        colors=torch.tensor([[0.5]], device=device),
    )
    camera = gaussians.Camera.opencv(*_LENS, _IDENTITY, [0, 0, 0], _SIZE, _SIZE)
    forward = gaussians.forward(cloud, [camera], gaussians.Settings(), retain=True)
    assert forward.state is not None
    gaussians.backward(forward.state, {"color": torch.ones_like(forward.outputs["color"])})
    return forward.outputs["color"]
