"""Cases of 2D Gaussians: one description, from which the engines and the reference render."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, State, Transform
from support.backends.gaussian_engines import Engine
from support.gaussians.rotation import turned
from support.gaussians.surfels import Pinhole, render_surfels

WIDTH, HEIGHT = 52, 38
INTRINSICS = (47.0, 44.0, 24.6, 18.2)
IMAGES = ("color", "alpha", "depth", "expected_depth", "median_depth", "normals", "surface_normals", "distortion")


def cloud(count: int = 40, seed: int = 3, channels: int = 3, degree: int | None = None) -> dict[str, Tensor]:
    """Surfels in front of the camera, of all sizes and at all angles; one is saturated. Float32."""
    random = np.random.default_rng(seed)
    depth = random.uniform(1.5, 5.0, count)
    means = np.stack([random.uniform(-0.6, 0.6, count) * depth, random.uniform(-0.5, 0.5, count) * depth, depth], -1)
    opacities = random.uniform(0.1, 0.95, count)
    opacities[0] = 1.0
    arrays = {
        "means": means,
        "quats": random.normal(size=(count, 4)),
        "scales": np.exp(random.uniform(np.log(0.02), np.log(0.6), (count, 3))),
        "opacities": opacities,
    }
    if degree is None:
        arrays["colors"] = random.uniform(0, 1, (count, channels))
    else:
        arrays["sh"] = 0.3 * random.normal(size=(count, (degree + 1) ** 2, channels))
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays.items()}


@dataclass(frozen=True)
class SurfelCase:
    """A scene, a pose from the world [3, 4], and settings that differ from the defaults."""

    scene: Mapping[str, Tensor]
    rotation: np.ndarray = field(default_factory=lambda: turned(0.05, -0.08, 0.1))
    translation: tuple[float, float, float] = (0.1, -0.05, 0.3)
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The first Gaussians move by this rigid transform.
    moved: int = 0
    transform: np.ndarray = field(default_factory=lambda: np.eye(4))
    background: bool = True

    def camera(self) -> Camera:
        """The engines' camera."""
        return Camera.opencv(*INTRINSICS, self.rotation, self.translation, WIDTH, HEIGHT)

    def colors(self) -> Tensor:
        """The background."""
        channels = self.scene["colors" if "colors" in self.scene else "sh"].shape[-1]
        return torch.linspace(0.2, 0.9, channels)

    def transforms(self) -> list[Transform]:
        """The engines' transforms."""
        return [Transform(0, self.moved, self.transform)] if self.moved else []


def _small_rotation(phi: Tensor) -> Tensor:
    x, y, z = phi
    zero = torch.zeros_like(x)
    return torch.eye(3, dtype=torch.float64) + torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)


def reference(
    case: SurfelCase, upstream: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The reference's images, and with `upstream` its gradients by the engines' names."""
    leaves = {name: value.double().requires_grad_() for name, value in case.scene.items()}
    background = case.colors().double().requires_grad_()
    xi = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    intrinsics = torch.tensor(INTRINSICS, dtype=torch.float64, requires_grad=True)
    motion = torch.tensor(case.transform, dtype=torch.float64, requires_grad=True)
    turn = _small_rotation(xi[3:])
    start = torch.tensor(case.rotation, dtype=torch.float64), torch.tensor(case.translation, dtype=torch.float64)
    camera = Pinhole(turn @ start[0], turn @ start[1] + xi[:3], intrinsics)
    names = (("tile", "tile_size"), ("clip", "radius_clip"), ("near", "near"), ("degree", "sh_degree"))
    chosen = {ours: case.settings[name] for ours, name in names if name in case.settings}
    images = render_surfels(
        leaves, camera, WIDTH, HEIGHT, background=background if case.background else None,
        motion=motion if case.moved else None, moved=case.moved, **chosen,
    )  # fmt: skip
    if upstream is None:
        return images, {}
    loss = sum((images[name] * gradient.double()).sum() for name, gradient in upstream.items())
    inputs = {**leaves, "camera_pose": xi, "camera_intrinsics": intrinsics}
    if case.background:
        inputs["background"] = background
    if case.moved:
        inputs["transforms"] = motion
    found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    gradients = {name: value for name, value in zip(inputs, found, strict=True) if value is not None}
    return images, gradients


@dataclass(frozen=True)
class Run:
    """Outputs and gradients of an engine, as arrays."""

    outputs: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    touched: np.ndarray | None


def run(
    engine: Engine,
    case: SurfelCase,
    upstream: Mapping[str, Tensor] | None = None,
    outputs: Sequence[str] = IMAGES,
    wanted: Sequence[str] | None = None,
) -> Run:
    """Runs an engine on a case; without `wanted`, for all gradients."""
    results, state = forward(engine, case, outputs, retain=upstream is not None)
    arrays = {name: value.numpy() for name, value in results.items()}
    if upstream is None:
        return Run(arrays, {}, None)
    names = (*case.scene, "cameras", "means2d", "means2d_abs", *(["background"] if case.background else []))
    names = (*names, *(["transforms"] if case.moved else []))
    images = {name: gradient[None].contiguous() for name, gradient in upstream.items()}
    gradients, touched = engine.backward(state, images, names if wanted is None else wanted)
    return Run(arrays, {name: value.numpy() for name, value in gradients.items()}, touched.numpy())


def forward(
    engine: Engine, case: SurfelCase, outputs: Sequence[str], retain: bool
) -> tuple[dict[str, Tensor], State | None]:
    """The forward pass of a case."""
    return engine.forward(
        Gaussians(**case.scene), [case.camera()], Settings(primitive="surfel", **case.settings),
        background=case.colors() if case.background else None, transforms=case.transforms(), outputs=outputs,
        retain=retain,
    )  # fmt: skip
