"""Stand-ins for the peers of `make gpu-peers`: modules with their names and calls, in which our own engines compute."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians, meshes, spheres, training

GAUSSIANS = ("means", "quats", "scales", "opacities", "sh")
SPHERES = ("positions", "colors", "radii")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs all stand-ins as modules."""
    for name, contents in {
        "gsplat": {"rasterization": rasterization},
        "gsplat.experimental": {},
        "gsplat.experimental.render": {"rasterize_gaussian_inference_scene": _inference},
        "gsplat.scene": {"GaussianInferenceScene": SimpleNamespace(from_gaussian_tensors=_packed)},
        "fused_ssim": {"fused_ssim": _ssim},
        "pytorch3d": {},
        "pytorch3d.renderer": {},
        "pytorch3d.renderer.points": {},
        "pytorch3d.renderer.points.pulsar": {"Renderer": Pulsar},
        "warp": vars(Warp()),
    }.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "tests.gpu.warp_queries", raising=False)


class _Gaussians(torch.autograd.Function):
    """A picture of Gaussians with semantics "gsplat"."""

    @staticmethod
    def forward(ctx: Any, camera: gaussians.Camera, *values: torch.Tensor) -> torch.Tensor:
        made = gaussians.Gaussians(**dict(zip(GAUSSIANS, (value.detach() for value in values), strict=True)))
        done = gaussians.forward(made, [camera], gaussians.Settings(semantics="gsplat"), retain=True)
        ctx.state = done.state
        return done.outputs["color"]

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        found = gaussians.backward(ctx.state, {"color": upstream[0].contiguous()}).gradients
        return None, *(found[name] for name in GAUSSIANS)


def _camera(view: torch.Tensor, lens: torch.Tensor, width: int, height: int) -> gaussians.Camera:
    rotation, translation = view[:3, :3].contiguous().numpy(), view[:3, 3].contiguous().numpy()
    numbers = (float(lens[row, column]) for row, column in ((0, 0), (1, 1), (0, 2), (1, 2)))
    return gaussians.Camera.opencv(*numbers, rotation, translation, width, height)


def rasterization(
    means: torch.Tensor, quats: torch.Tensor, scales: torch.Tensor, opacities: torch.Tensor, colors: torch.Tensor,
    viewmats: torch.Tensor, Ks: torch.Tensor, width: int, height: int, *, sh_degree: int, packed: bool,
) -> tuple[torch.Tensor, None, dict[str, Any]]:  # fmt: skip
    """gsplat's function, with its checks of shapes."""
    count = len(means)
    assert opacities.shape == (count,)
    assert colors.shape == (count, (sh_degree + 1) ** 2, 3)
    assert viewmats.shape == (1, 4, 4)
    assert Ks.shape == (1, 3, 3)
    assert not packed
    camera = _camera(viewmats[0], Ks[0], width, height)
    return _Gaussians.apply(camera, means, quats, scales, opacities, colors), None, {}


def _packed(*, sh_degree: int, sh_compression: str, id: str, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    assert (sh_degree, sh_compression) == (3, "none")
    assert not any(value.requires_grad for value in tensors.values())
    torch.testing.assert_close(tensors["quats"].norm(dim=-1), torch.ones(len(tensors["quats"])))
    return {**{name: tensors[name] for name in GAUSSIANS[:4]}, "sh": tensors["colors"].half().float()}


def _inference(
    scene: dict[str, torch.Tensor], *, viewmat: torch.Tensor, K: torch.Tensor, width: int, height: int
) -> SimpleNamespace:
    assert not torch.is_grad_enabled()
    return SimpleNamespace(frame=_Gaussians.apply(_camera(viewmat, K, width, height), *scene.values()))


class _Ssim(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, picture: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        first, second = (value.detach().permute(0, 2, 3, 1).contiguous() for value in (picture, target))
        ctx.gradient = training.image_loss(first, second, l1=0.0, dssim=1.0).gradient
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        return -upstream[0] * ctx.gradient.permute(0, 3, 1, 2), None


def _ssim(picture: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _Ssim.apply(picture, target)
    return found


class _Spheres(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, camera: spheres.Camera, settings: spheres.Settings, background: torch.Tensor, *values: torch.Tensor
    ) -> torch.Tensor:
        inputs = (value.detach() for value in values)
        done = spheres.forward(*inputs, [camera], settings, background=background, retain=True)
        ctx.state = done.state
        return done.outputs["color"][0]

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        found = spheres.backward(ctx.state, {"color": upstream[0][None].contiguous()}, SPHERES).gradients
        return None, None, None, *(found[name] for name in SPHERES)


class Pulsar(torch.nn.Module):
    """PyTorch3D's `pulsar.Renderer`."""

    def __init__(self, width: int, height: int, max_num_balls: int, *, n_track: int) -> None:
        super().__init__()
        self._film, self._most, self._track = (width, height), max_num_balls, n_track

    def forward(
        self, positions: torch.Tensor, colors: torch.Tensor, radii: torch.Tensor, camera: torch.Tensor, gamma: float,
        max_depth: float, *, bg_col: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """A picture [H, W, 3]."""
        assert len(positions) <= self._most
        settings = spheres.Settings(gamma, max_depth, semantics="compat", n_track=self._track)
        found = spheres.Camera.pulsar(tuple(camera.tolist()), *self._film)
        picture: torch.Tensor = _Spheres.apply(found, settings, bg_col, positions, colors, radii)
        return picture


class Warp:
    """NVIDIA Warp's functions that are used; a kernel is called for one row after another."""

    uint64 = vec3 = int

    def __init__(self) -> None:
        self.row = 0
        for name in dir(type(self)):
            if not name.startswith("_"):
                setattr(self, name, getattr(self, name))

    def kernel(self, function: Any) -> Any:
        return function

    def init(self) -> None:
        """Does nothing."""

    def device_from_torch(self, device: torch.device) -> torch.device:
        return device

    def device_to_torch(self, device: torch.device) -> torch.device:
        return device

    def array(self, data: Any = None, dtype: Any = None, device: Any = None) -> Any:
        """A type, or numbers."""
        return torch.as_tensor(data) if data is not None else np.ndarray

    def from_torch(self, values: torch.Tensor, dtype: Any = None) -> torch.Tensor:
        """The same memory."""
        return values

    def Mesh(self, points: torch.Tensor, indices: torch.Tensor) -> SimpleNamespace:
        """A mesh, with what identifies it."""
        mesh = meshes.Mesh.build(points, indices.reshape(-1, 3).to(torch.int32))
        return SimpleNamespace(id=meshes.World([meshes.Instance(mesh)]))

    def tid(self) -> int:
        """The row."""
        return self.row

    def mesh_query_point_sign_normal(self, mesh: Any, point: torch.Tensor, farthest: float) -> SimpleNamespace:
        """Returns the closest point in place of the corners' weights."""
        row = torch.cat([point, torch.zeros(1)])[None, None, None]
        found = meshes.evaluate(row, mesh, meshes.Settings(), outputs=("distance", "closest")).outputs
        distance = float(found["distance"].reshape(()))
        closest = found["closest"].reshape(3)
        return SimpleNamespace(
            result=abs(distance) < farthest, face=0, u=closest, v=None, sign=1.0 if distance > 0 else -1.0
        )

    def mesh_eval_position(self, mesh: Any, face: int, u: torch.Tensor, v: None) -> torch.Tensor:
        """A point on a face."""
        return u

    def length(self, vector: torch.Tensor) -> torch.Tensor:
        """The Euclidean norm."""
        return vector.norm()

    def launch(self, kernel: Any, *, dim: int, inputs: list[Any], device: Any, stream: None) -> None:
        """Runs the kernel for each row."""
        for self.row in range(dim):
            kernel(*inputs)
