"""Fits Gaussians to pictures in PyTorch: the worker renders and differentiates, `torch.optim` steps in this process.

The scene travels with each step and its gradients come back, so that any part of the loop can be changed here.
`Client.trainer` keeps parameters and optimiser on the worker instead.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import knot
from local_worker import worker
from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.pictures import write_image
from lumigrad.client.torch import render_gaussians

VIEWS, BATCH, WIDTH, HEIGHT, GAUSSIANS = 16, 4, 160, 120, 1500
# Learning rates of Adam: scene units, logarithms, quaternions, logits.
RATES = {"means": 5e-3, "log_scales": 2e-2, "quats": 5e-3, "logits": 5e-2, "colors": 3e-2}
Parameters = dict[str, torch.Tensor]


def main() -> int:
    """Runs the fit; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps of the optimiser (default: 300)")
    parser.add_argument("--output", type=Path, default=Path("fit_output"), help="(default: fit_output)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        before, after = fit(client, arguments.steps, arguments.output)
    print(
        f"{arguments.steps} steps: the pictures went from {before:.2f} to {after:.2f} dB; "
        f"see {arguments.output}/torch_fit.png"
    )
    return 0


def fit(client: Client, steps: int, output: Path) -> tuple[float, float]:
    """Fits grey Gaussians to views of the knot; returns the PSNR of all views before and after, dB."""
    cameras = knot.cameras(VIEWS, WIDTH, HEIGHT)
    depths = {"min_depth": knot.NEAREST, "max_depth": knot.FARTHEST}
    shown = client.render(knot.knot(), cameras, gamma=1e-4, background=knot.BACKGROUND, **depths).color
    target_images = torch.tensor(shown)
    viewmats, intrinsics = matrices_of(cameras)
    parameters = begin()
    optimizer = torch.optim.Adam([{"params": [parameters[name]], "lr": rate} for name, rate in RATES.items()])
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        first = render(client, parameters, viewmats, intrinsics)
    for _ in range(steps):
        chosen = torch.randperm(VIEWS, generator=random)[:BATCH]
        optimizer.zero_grad()
        loss = (render(client, parameters, viewmats[chosen], intrinsics[chosen]) - target_images[chosen]).abs().mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        last = render(client, parameters, viewmats, intrinsics)
        Gaussians(**activated(parameters)).save(output / "torch_fit.ply")
    write_image(output / "torch_fit.png", torch.cat([first[0], last[0], target_images[0]], dim=1).clamp(0, 1).numpy())
    return psnr(first, target_images), psnr(last, target_images)


def begin() -> Parameters:
    """Returns grey Gaussians near the knot's surface as unbounded numbers, which an optimiser may change freely."""
    surface = knot.knot(GAUSSIANS)
    noise = np.random.default_rng(1).normal(scale=0.05, size=(GAUSSIANS, 3))
    values = {
        "means": torch.tensor(surface.positions + noise, dtype=torch.float32),
        "log_scales": torch.full((GAUSSIANS, 3), float(np.log(0.06))),
        "quats": torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(GAUSSIANS, 1),
        "logits": torch.zeros(GAUSSIANS),
        "colors": torch.zeros(GAUSSIANS, 3),
    }
    return {name: value.requires_grad_() for name, value in values.items()}


def activated(parameters: Parameters) -> Parameters:
    """Returns scales, opacities and colours as they are rendered."""
    return {
        "means": parameters["means"],
        "quats": parameters["quats"],
        "scales": parameters["log_scales"].exp(),
        "opacities": parameters["logits"].sigmoid(),
        "colors": parameters["colors"].sigmoid(),
    }


def render(client: Client, parameters: Parameters, viewmats: torch.Tensor, intrinsics: torch.Tensor) -> torch.Tensor:
    """Renders pictures [C, H, W, 3]."""
    size = {"width": WIDTH, "height": HEIGHT}
    scene, background = activated(parameters), torch.tensor(knot.BACKGROUND)
    rendered = render_gaussians(
        **scene, viewmats=viewmats, Ks=intrinsics, **size, background=background, outputs=(), client=client
    )
    return rendered.color


def matrices_of(cameras: list[Camera]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns view matrices [C, 4, 4] and intrinsics [C, 3, 3]."""
    views, lenses = (np.stack([getattr(camera, name) for camera in cameras]) for name in ("view_matrix", "K"))
    return torch.tensor(views, dtype=torch.float32), torch.tensor(lenses, dtype=torch.float32)


def psnr(pictures: torch.Tensor, target_images: torch.Tensor) -> float:
    """Returns the PSNR of all pictures together, dB."""
    return float(-10 * (pictures - target_images).square().mean().log10())


if __name__ == "__main__":
    sys.exit(main())
