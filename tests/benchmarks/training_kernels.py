"""Benchmark of the kernels of training: `python -m tests.benchmarks.training_kernels` from the root.

Compares Adam over all parameters of Gaussians with spherical harmonics of degree 3 with torch's fused Adam, alone and
with the activations and statistics that the kernel also computes, and 0.8 L1 + 0.2 (1 - SSIM) and its gradient with
torch's convolutions and autograd. In turns, on one thread, in processor time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lumigrad.client import Loss
from lumigrad.kernels import training
from support.training.local_training import loss_of
from tests.benchmarks.density_kernels import race

COUNTS = (100_000, 500_000)
SIZES = ((400, 300), (1920, 1080))
COLUMNS = {"means": 3, "quats": 4, "scales": 3, "opacities": 1, "sh": 48}
ACTIVATIONS = {"scales": "exp", "opacities": "sigmoid"}
RATE, EPSILON = 1e-3, 1e-15
RESULTS = Path("build/bench/training_kernels.json")
Operation = Callable[[], object]


def adam(count: int, whole: bool) -> tuple[Operation, Operation]:
    """A step of all parameters by the kernel and by torch's fused Adam, which also activates and sums up if `whole`."""
    random = torch.Generator().manual_seed(0)
    raw = {name: torch.randn(count, columns, generator=random) for name, columns in COLUMNS.items()}
    gradients = {name: torch.randn(value.shape, generator=random) for name, value in raw.items()}
    parameters = {
        name: training.Parameter(
            raw=value.clone(), gradient=gradients[name], first=torch.zeros_like(value),
            second=torch.zeros_like(value), learning_rate=RATE, activation=ACTIVATIONS.get(name, "identity"),
            value=torch.empty_like(value) if name in ACTIVATIONS else None,
        )
        for name, value in raw.items()
    }  # fmt: skip
    for name, value in raw.items():
        value.requires_grad_().grad = gradients[name]
    optimizer = torch.optim.Adam(raw.values(), lr=RATE, eps=EPSILON, fused=True)
    values = {name: torch.empty_like(raw[name]) for name in ACTIVATIONS}

    def by_torch() -> object:
        optimizer.step()
        if not whole:
            return None
        with torch.no_grad():
            torch.exp(raw["scales"], out=values["scales"])
            torch.sigmoid(raw["opacities"], out=values["opacities"])
            return [
                (torch.linalg.vector_norm(gradient), gradient.abs().amax(), gradient.isfinite().all(dim=1))
                for gradient in gradients.values()
            ]

    return lambda: training.adam_step(parameters, step=1, betas=(0.9, 0.999), epsilon=EPSILON), by_torch


def image_loss(width: int, height: int) -> tuple[Operation, Operation]:
    """The loss of an image against bytes, and its gradient."""
    random = torch.Generator().manual_seed(0)
    picture = torch.rand(1, height, width, 3, generator=random)
    target_image = torch.randint(0, 256, (1, height, width, 3), generator=random, dtype=torch.uint8)
    scaled, loss = target_image / 255, Loss()

    def by_torch() -> object:
        leaf = picture.clone().requires_grad_()
        torch.autograd.backward(loss_of(loss, leaf, scaled))
        return leaf.grad

    return lambda: training.image_loss(picture, target_image, l1=loss.l1, dssim=loss.dssim), by_torch


def main() -> None:
    """Measures all kernels."""
    cases = {(f"{count}", "adam"): adam(count, whole=False) for count in COUNTS}
    cases |= {(f"{count}", "adam, activated, summed up"): adam(count, whole=True) for count in COUNTS}
    cases |= {(f"{width}x{height}", "image loss"): image_loss(width, height) for width, height in SIZES}
    race(
        (
            (case, name, lambda: None, lambda _, run=ours: run(), lambda _, run=theirs: run())
            for (case, name), (ours, theirs) in cases.items()
        ),
        RESULTS,
    )


if __name__ == "__main__":
    main()
