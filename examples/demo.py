"""Fits spheres to pictures, and a robot's way to its surroundings, through remote gradients.

Starts a worker, or uses the one that LUMIGRAD_TARGET names, has it render a procedural scene from many sides, and then
fits positions, colours and radii of a few thousand grey spheres to those pictures: each step renders one view on the
worker, and gradients come back from there. Then `planner` pushes the trajectory of an arm out of collision.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from tqdm import tqdm

import knot
import planner
from local_worker import worker
from lumigrad.client import Camera, Client, Frame, SceneHandle, Spheres
from lumigrad.client.pictures import write_image
from lumigrad.client.torch import render_spheres

WIDTH, HEIGHT, VIEWS = 320, 240, 48
SPHERES, RADIUS = 6000, 0.04
OPAQUE = 1e-4
# The blending starts soft, so that spheres feel their surroundings, and ends nearly opaque.
GAMMA_FIRST, GAMMA_LAST = 0.03, 0.003
RATES = {"positions": 0.004, "colors": 0.03, "log_radii": 0.02}
ALPHA_WEIGHT = 0.1
# A view that is not among those fitted.
SHOWN = knot.camera(20.0, 20.0, 960, 720)


def main() -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1200, help="steps of the optimiser (default: 1200)")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="(default: demo_output)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    # The worker needs the cores more than the trainer does.
    torch.set_num_threads(1)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        info = client.info()
        print(f"worker at {target}: {info.device_name}, {info.device}, {info.instruction_set}")
        run(client, arguments.steps, arguments.output)
        planner.plan(client, arguments.output)
    return 0


def run(client: Client, steps: int, output: Path) -> None:
    """Renders the target images, fits, and leaves pictures."""
    scene = client.put(knot.knot())
    frame = show(client, scene, OPAQUE)
    target_image = frame.color
    write_image(output / "target_image.png", target_image)
    print(f"{scene.count:,} spheres at {SHOWN.width}x{SHOWN.height} in {frame.timings.kernel_ms:.1f} ms of kernel time")

    cameras = knot.cameras(VIEWS, WIDTH, HEIGHT)
    views = show(client, scene, OPAQUE, cameras)
    fit = Fit(client, cameras, torch.from_numpy(views.color), torch.from_numpy(views.alpha))
    initial = show(client, fit.spheres(), GAMMA_FIRST).color
    write_image(output / "initial.png", initial)

    began = time.perf_counter()
    with tqdm(range(steps), desc="fitting", unit="step", disable=None) as bar:
        for step in bar:
            fit.step(step / max(steps - 1, 1))
            if step % 10 == 0:
                bar.set_postfix(loss=f"{fit.losses[-1]:.4f}", PSNR=f"{fit.psnr(VIEWS):.1f} dB")
    seconds = time.perf_counter() - began

    fitted = show(client, fit.spheres(), GAMMA_LAST).color
    write_image(output / "fit.png", fitted)
    write_image(
        output / "demo.png", np.concatenate([picture[::2, ::2] for picture in (initial, fitted, target_image)], axis=1)
    )
    plot(fit.losses, output / "loss.png")
    fit.spheres().save(output / "fit.ply")
    print(
        f"{steps} steps in {seconds:.0f} s; a view that was not fitted went from "
        f"{decibels(initial, target_image):.1f} to {decibels(fitted, target_image):.1f} dB\n"
        f"see {output}/: target_image.png, initial.png, fit.png, demo.png (all three), loss.png, fit.ply"
    )


class Fit:
    """Spheres and their optimiser."""

    def __init__(self, client: Client, cameras: list[Camera], colors: torch.Tensor, alphas: torch.Tensor) -> None:
        """Starts from grey spheres somewhere inside all silhouettes.

        Args:
            client: a client of the worker.
            cameras: V views.
            colors: [V, H, W, 3] target images.
            alphas: [V, H, W] their coverage.
        """
        self.client, self.cameras, self.colors, self.alphas = client, cameras, colors, alphas
        self.losses: list[float] = []
        self._squares: list[float] = []
        positions = carve(cameras, alphas.numpy() > 0.5)
        self.parameters = {
            "positions": torch.from_numpy(positions).requires_grad_(),
            "colors": torch.full((len(positions), 3), 0.5, requires_grad=True),
            "log_radii": torch.full((len(positions),), float(np.log(RADIUS)), requires_grad=True),
        }
        groups = [{"params": [self.parameters[name]], "lr": rate} for name, rate in RATES.items()]
        self.optimizer = torch.optim.Adam(groups)
        # A stride that shares no factor with the number of views visits all of them.
        self._order = [(7 * index) % len(cameras) for index in range(len(cameras))]

    def step(self, progress: float) -> None:
        """Renders one view, takes its gradients, and steps the optimiser; `progress` goes from 0 to 1."""
        index = self._order[len(self.losses) % len(self._order)]
        for group, rate in zip(self.optimizer.param_groups, RATES.values(), strict=True):
            group["lr"] = rate * 0.1**progress
        rendered = render_spheres(
            self.parameters["positions"],
            self.parameters["colors"].clamp(0, 1),
            self.parameters["log_radii"].exp(),
            self.cameras[index],
            gamma=GAMMA_FIRST * (GAMMA_LAST / GAMMA_FIRST) ** progress,
            min_depth=knot.NEAREST,
            max_depth=knot.FARTHEST,
            background=knot.BACKGROUND,
            client=self.client,
            outputs=("alpha",),
        )
        assert rendered.alpha is not None
        difference = rendered.color - self.colors[index]
        loss = difference.abs().mean() + ALPHA_WEIGHT * (rendered.alpha - self.alphas[index]).square().mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.losses.append(loss.item())
        self._squares.append(difference.detach().square().mean().item())

    def psnr(self, steps: int) -> float:
        """Returns the PSNR of the latest steps, decibels."""
        return float(-10 * np.log10(np.mean(self._squares[-steps:])))

    def spheres(self) -> Spheres:
        """Returns the current spheres."""
        colors = self.parameters["colors"].detach().clamp(0, 1)
        return Spheres(self.parameters["positions"].detach(), colors, self.parameters["log_radii"].detach().exp())


def carve(cameras: list[Camera], masks: Any) -> Any:
    """Returns random points [SPHERES, 3], float32, inside the silhouette `masks` [V, H, W] of every view."""
    generator = np.random.default_rng(1)
    points = generator.uniform(-knot.EXTENT, knot.EXTENT, (400_000, 3))
    for camera, mask in zip(cameras, masks, strict=True):
        model: Any = camera.model
        x, y, z = (points @ model.rotation.T + model.translation).T
        column = (model.fx * x / z + model.cx).astype(int).clip(0, camera.width - 1)
        row = (model.fy * y / z + model.cy).astype(int).clip(0, camera.height - 1)
        points = points[mask[row, column]]
    return points[:SPHERES].astype(np.float32)


def show(client: Client, scene: Spheres | SceneHandle, gamma: float, cameras: Camera | list[Camera] = SHOWN) -> Frame:
    """Renders colour and alpha."""
    return client.render(
        scene,
        cameras,
        gamma=gamma,
        min_depth=knot.NEAREST,
        max_depth=knot.FARTHEST,
        background=knot.BACKGROUND,
        outputs=("color", "alpha"),
    )


def decibels(picture: Any, target_image: Any) -> float:
    """Returns the PSNR, decibels."""
    return float(-10 * np.log10(np.mean(np.square(picture - target_image))))


def plot(losses: list[float], path: Path) -> None:
    """Plots the loss of each step, and its mean over one round of all views."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses, color="#b8c4d6", linewidth=0.8, label="one view")
    if len(losses) >= VIEWS:
        means = np.convolve(losses, np.full(VIEWS, 1 / VIEWS), mode="valid")
        axes.plot(np.arange(VIEWS - 1, len(losses)), means, color="#1f5fbf", label=f"mean of {VIEWS} views")
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="Fitting spheres through remote gradients")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
