"""Fits spheres to pictures with a loss of one's own: the worker renders, differentiates and steps, the loss is here.

A step brings a picture and takes its gradient; parameters and optimiser stay on the worker. `--with` chooses what
computes the loss: numpy, torch or jax.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import knot
from local_worker import worker
from lumigrad.client import Client, Rate, Spheres
from lumigrad.client.pictures import write_image

Array = npt.NDArray[np.float32]
# Maps a picture and its target image to the loss, and its gradient with respect to the picture.
Loss = Callable[[Array, Array], tuple[float, Array]]
VIEWS, WIDTH, HEIGHT = 24, 200, 150
SPHERES = 3000
# The loss is quadratic in differences up to this, and linear beyond.
HUBER = 0.1


def numpy_loss() -> Loss:
    """Returns Huber's loss, with its derivative by hand."""

    def loss(picture: Array, target_image: Array) -> tuple[float, Array]:
        difference = picture - target_image
        size = np.abs(difference)
        values = np.where(size < HUBER, 0.5 * difference**2, HUBER * (size - 0.5 * HUBER))
        return float(values.mean()), np.clip(difference, -HUBER, HUBER) / np.float32(difference.size)

    return loss


def torch_loss() -> Loss:
    """Returns the same loss by PyTorch's autograd."""
    import torch

    def loss(picture: Array, target_image: Array) -> tuple[float, Array]:
        tensor = torch.tensor(picture, requires_grad=True)
        value = torch.nn.functional.huber_loss(tensor, torch.from_numpy(target_image), delta=HUBER)
        (gradient,) = torch.autograd.grad(value, tensor)
        return float(value.detach()), gradient.numpy()

    return loss


def jax_loss() -> Loss:
    """Returns the same loss by JAX, compiled."""
    import jax
    import jax.numpy as jnp

    def huber(picture: Any, target_image: Any) -> Any:
        difference = picture - target_image
        size = jnp.abs(difference)
        return jnp.where(size < HUBER, 0.5 * difference**2, HUBER * (size - 0.5 * HUBER)).mean()

    compiled = jax.jit(jax.value_and_grad(huber))

    def loss(picture: Array, target_image: Array) -> tuple[float, Array]:
        value, gradient = compiled(picture, target_image)
        return float(value), np.asarray(gradient)

    return loss


LOSSES = {"numpy": numpy_loss, "torch": torch_loss, "jax": jax_loss}


def main() -> int:
    """Runs the fit; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--with", dest="library", choices=LOSSES, default="numpy", help="(default: numpy)")
    parser.add_argument("--steps", type=int, default=300, help="steps of the optimiser (default: 300)")
    parser.add_argument("--output", type=Path, default=Path("fit_output"), help="(default: fit_output)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with worker(arguments.output / "worker.log") as target, Client(target) as client:
        first, last = fit(client, LOSSES[arguments.library](), arguments.steps, arguments.output)
    print(f"{arguments.steps} steps: the loss went from {first:.5f} to {last:.5f}; see {arguments.output}/own_loss.png")
    return 0


def fit(client: Client, loss: Loss, steps: int, output: Path) -> tuple[float, float]:
    """Fits grey spheres to views of the knot; returns the mean loss of the first and of the last views."""
    settings: dict[str, Any] = {"min_depth": knot.NEAREST, "max_depth": knot.FARTHEST, "background": knot.BACKGROUND}
    cameras = knot.cameras(VIEWS, WIDTH, HEIGHT)
    target_images = client.render(knot.knot(), cameras, gamma=1e-4, **settings).color
    truth = knot.knot(SPHERES)
    generator = np.random.default_rng(0)
    begin = Spheres(
        truth.positions + generator.normal(scale=0.05, size=(SPHERES, 3)),
        np.full((SPHERES, 3), 0.5),
        np.full(SPHERES, 0.07),
    )
    rates = {"positions": Rate(4e-3, 4e-4, steps), "colors": 3e-2, "radii": 1e-2}
    losses = []
    with client.trainer(begin, cameras, rates=rates, gamma=0.01, **settings) as trainer:
        # The next picture is rendered, and travels, while the gradient of this one is computed.
        for batch in trainer.batches(steps, image_format="bfloat16", in_flight=2):
            value, gradient = loss(batch.color, target_images[list(batch.views)])
            batch.apply(color=gradient, gradient_format="bfloat16")
            losses.append(value)
        fitted = trainer.publish()
        picture = client.render(fitted, cameras[0], gamma=1e-4, **settings).color
    write_image(output / "own_loss.png", np.concatenate([picture, target_images[0]], axis=1))
    return float(np.mean(losses[:VIEWS])), float(np.mean(losses[-VIEWS:]))


if __name__ == "__main__":
    sys.exit(main())
