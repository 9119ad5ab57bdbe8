"""Fits Gaussians to pictures in JAX: remote rendering and its gradient are part of one compiled step.

The optimiser is Adam in a few lines; every step looks at some of the views, whose matrices are arguments of the step.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import knot
from local_worker import worker
from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.jax import render_gaussians
from lumigrad.client.pictures import write_image

Parameters = dict[str, jax.Array]
VIEWS, BATCH, WIDTH, HEIGHT = 16, 4, 160, 120
GAUSSIANS = 1500
# Learning rates of Adam: scene units, logarithms, logits.
RATES = {"means": 5e-3, "log_scales": 2e-2, "quats": 5e-3, "logits": 5e-2, "colors": 3e-2}


def main() -> int:
    """Runs the fit; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="of the optimiser (default: 300)")
    parser.add_argument("--output", type=Path, default=Path("fit_output"), help="(default: fit_output)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        began = time.perf_counter()
        before, after = fit(client, arguments.steps, arguments.output)
        rate = arguments.steps / (time.perf_counter() - began)
    print(
        f"{arguments.steps} steps, {rate:.1f} per second: the pictures went from {before:.2f} to {after:.2f} dB; "
        f"see {arguments.output}/jax_fit.png"
    )
    return 0


def fit(client: Client, steps: int, output: Path) -> tuple[float, float]:
    """Fits grey Gaussians to views of the knot; returns the PSNR of all views before and after, dB."""
    cameras = knot.cameras(VIEWS, WIDTH, HEIGHT)
    scene, depths = knot.knot(), {"min_depth": knot.NEAREST, "max_depth": knot.FARTHEST}
    target_images = jnp.from_dlpack(
        client.render(scene, cameras, gamma=1e-4, background=knot.BACKGROUND, **depths).color
    )
    views, intrinsics = (jnp.asarray(matrices) for matrices in zip(*map(matrices_of, cameras), strict=True))
    show = jax.jit(partial(render, client))

    def loss(parameters: Parameters, views: Any, intrinsics: Any, target_images: Any) -> Any:
        return jnp.abs(render(client, parameters, views, intrinsics) - target_images).mean()

    @jax.jit
    def step(number: Any, parameters: Parameters, moments: Any, chosen: Any) -> tuple[Parameters, Any]:
        gradients = jax.grad(loss)(parameters, views[chosen], intrinsics[chosen], target_images[chosen])
        return adam(number, parameters, moments, gradients)

    parameters = begin(knot.knot(GAUSSIANS))
    moments = jax.tree.map(lambda value: (jnp.zeros_like(value), jnp.zeros_like(value)), parameters)
    first = show(parameters, views, intrinsics)
    random = np.random.default_rng(0)
    for number in range(1, steps + 1):
        chosen = random.choice(VIEWS, BATCH, replace=False)
        parameters, moments = step(number, parameters, moments, chosen)
    last = show(parameters, views, intrinsics)
    write_image(
        output / "jax_fit.png", np.concatenate([np.asarray(images[0]) for images in (first, last, target_images)], 1)
    )
    return psnr(first, target_images), psnr(last, target_images)


def render(client: Client, parameters: Parameters, views: Any, intrinsics: Any) -> jax.Array:
    """Renders [C, H, W, 3] from parameters as they are optimised."""
    return render_gaussians(
        parameters["means"],
        parameters["quats"],
        jnp.exp(parameters["log_scales"]),
        jax.nn.sigmoid(parameters["logits"]),
        jax.nn.sigmoid(parameters["colors"]),
        views,
        intrinsics,
        width=WIDTH,
        height=HEIGHT,
        background=jnp.array(knot.BACKGROUND),
        outputs=(),
        client=client,
    ).color


def begin(surface: Spheres) -> Parameters:
    """Returns grey Gaussians near a surface."""
    count = len(surface)
    noise = np.random.default_rng(1).normal(scale=0.05, size=(count, 3))
    return {
        "means": jnp.asarray(surface.positions + noise, jnp.float32),
        "quats": jnp.tile(jnp.array([1.0, 0, 0, 0]), (count, 1)),
        "log_scales": jnp.full((count, 3), np.log(0.06), jnp.float32),
        "logits": jnp.zeros(count),
        "colors": jnp.zeros((count, 3)),
    }


def adam(number: Any, parameters: Parameters, moments: Any, gradients: Parameters) -> tuple[Parameters, Any]:
    """Takes one step of Adam, with a rate for each parameter."""
    updated, kept = {}, {}
    for name, gradient in gradients.items():
        mean = 0.9 * moments[name][0] + 0.1 * gradient
        square = 0.999 * moments[name][1] + 0.001 * gradient**2
        way = mean / (1 - 0.9**number) / (jnp.sqrt(square / (1 - 0.999**number)) + 1e-12)
        updated[name], kept[name] = parameters[name] - RATES[name] * way, (mean, square)
    return updated, kept


def matrices_of(camera: Camera) -> tuple[Any, Any]:
    """Returns view matrix [4, 4] and intrinsics [3, 3], float32."""
    return camera.view_matrix.astype(np.float32), camera.K.astype(np.float32)


def psnr(pictures: Any, target_images: Any) -> float:
    """Returns the PSNR of all pictures together, dB."""
    return float(-10 * jnp.log10(jnp.mean((pictures - target_images) ** 2)))


if __name__ == "__main__":
    sys.exit(main())
