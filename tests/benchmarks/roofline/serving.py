"""The number of small images that a GPU can render and copy to the host in a second."""

from __future__ import annotations

from tests.benchmarks.roofline.device import DEVICES, Need, seconds

FORWARD = ("project", "sort", "bin", "blend")
# Images of a batch, the bytes of a pixel (colour in bytes, depth in float16), and the size.
BATCH, BATCH_PIXEL_BYTES, BATCH_SIZE = 64, 5, (640, 480)


def print_batches(view: dict[str, Need]) -> None:
    """Print batches per second of images with depth, each of which needs what `view` needs."""
    width, height = BATCH_SIZE
    print(
        f"\n| device | kernels of {BATCH} images of {width}x{height}, ms | copy, ms | at most, images/s |\n"
        + "|---" * 4
        + "|"
    )
    for device in DEVICES:
        kernels = 1e3 * BATCH * seconds(view, FORWARD, device)
        copy = 1e3 * BATCH * width * height * BATCH_PIXEL_BYTES / device.host_bytes
        print(f"| {device.name} | {kernels:.1f} | {copy:.1f} | {1e3 * BATCH / max(kernels, copy):.0f} |")
