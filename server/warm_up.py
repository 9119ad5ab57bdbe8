"""A small task and its gradients for each engine, which prove that the device works when callers are told so."""

from __future__ import annotations

import torch

from lumigrad.kernels import gaussians, meshes, spheres
from lumigrad.server.machine import Machine

_SIZE = 16
_IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
_LENS = (_SIZE, _SIZE, _SIZE / 2, _SIZE / 2)
_AWAY = 0.25


def warm_up(machine: Machine) -> None:
    """Run all engines once, on the device's thread; raises if a result is not what it should be."""
    machine.executor.run(lambda: _run(machine), None)


def _run(machine: Machine) -> None:
    device = machine.transfer.device
    pictures = {"sphere": _sphere(device), "Gaussian": _gaussian(device)}
    distances = _mesh(device)
    machine.transfer.finish()
    if abs(distances.item() - _AWAY) > 1e-3:
        raise RuntimeError(f"the warm-up query of a point {_AWAY} m from a mesh gave {distances.item()} m")
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


def _mesh(device: torch.device) -> torch.Tensor:
    corners = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], device=device)
    faces = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]], device=device)
    world = meshes.World([meshes.Instance(meshes.Mesh.build(corners, faces))])
    sphere = torch.tensor([-_AWAY, 0.25, 0.25, 0.5], device=device).reshape(1, 1, 1, 4)
    found = meshes.evaluate(sphere, world, meshes.Settings(), outputs=("cost", "distance"), retain=True)
    assert found.state is not None
    meshes.backward(found.state, {"cost": torch.ones_like(found.outputs["cost"])})
    return found.outputs["distance"]
