"""The work of a training's own kernels, beside those that draw: the image loss and Adam."""

from __future__ import annotations

from tests.benchmarks.roofline.device import Need

COUNT, WIDTH, HEIGHT, CHANNELS = 1_000_000, 1920, 1080, 3
# Learnt numbers of a Gaussian with harmonics of degree 3: position, rotation, scale, opacity, colours.
NUMBERS = 3 + 4 + 3 + 1 + 48
# Instructions of a warp for one number of an image or of a parameter, counted in the compiler's listings. A window of
# eleven takes eleven multiply-adds and six loads per line and moment; tiles of 32 x 16 filter 26 lines.
LOSS_MAP, LOSS_GRADIENT, ADAM = 500, 780, 100


def needs() -> dict[str, Need]:
    """What 0.8 L1 + 0.2 (1 - SSIM) with its gradient needs, and a step of Adam."""
    values, numbers = WIDTH * HEIGHT * CHANNELS, COUNT * NUMBERS
    return {
        # Read the image in float32 and the photograph in bytes, write three maps; read all of them, write gradients.
        "image loss": Need(values * (5 + 12 + 5 + 12 + 4), values / 32 * (LOSS_MAP + LOSS_GRADIENT)),
        # Read the gradient; read and write the number and both moments; write scales and opacities as they are drawn.
        "Adam": Need(numbers * (4 + 6 * 4) + COUNT * 4 * 4, numbers / 32 * ADAM),
    }
