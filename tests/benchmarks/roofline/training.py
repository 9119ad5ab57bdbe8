"""The work of training's own kernels: the image loss, and gradients for Adam."""

from __future__ import annotations

from tests.benchmarks.roofline.device import Need
from tests.benchmarks.roofline.gaussians import HARMONICS

COUNT, WIDTH, HEIGHT, CHANNELS = 1_000_000, 1920, 1080, 3
# Optimised numbers of a Gaussian with harmonics of degree 3: position, rotation, scale, opacity, colours.
COLORS, OTHERS = 48, 3 + 4 + 3 + 1
# Bytes of a Gaussian: a direction and the gradient of a colour, from which the gradients of its harmonics follow.
FACTORS = 24
# Instructions of a warp for one number of an image or of a parameter, as counted in the compiler's listing.
# A window of eleven takes eleven multiply-adds and additions. Tiles of 32 x 16 pixels filter 42 columns, then 16 lines.
LOSS_MAP, LOSS_GRADIENT, ADAM = 300, 255, 120


def needs(drawn: dict[str, Need]) -> dict[str, Need]:
    """The needs of 0.8 L1 + 0.2 (1 - SSIM) with its gradient, and of an Adam step; `drawn` has those of rendering."""
    values, numbers = WIDTH * HEIGHT * CHANNELS, COUNT * (COLORS + OTHERS)
    backward = drawn["project_backward"]
    return {
        # Writes factors instead of the gradients of harmonics.
        "project_backward": Need(backward.bytes + COUNT * (FACTORS - HARMONICS), backward.instructions),
        # Read the image in float32 and the photograph in bytes, write three maps; read all of them, write gradients.
        "image loss": Need(values * (5 + 12 + 5 + 12 + 4), values / 32 * (LOSS_MAP + LOSS_GRADIENT)),
        # Read the gradients; read and write the numbers and both moments; write scales and opacities as they are drawn.
        "Adam": Need(COUNT * (OTHERS * 4 + FACTORS + 4 * 4) + numbers * 6 * 4, numbers / 32 * ADAM),
    }
