"""What the Gaussian engine is measured against: peers that render on CPUs, and limits of memory and of remote calls."""

from __future__ import annotations

# Milliseconds of OpenSplat's CPU rasterizer of August 2026 on two threads; measured once on such a machine.
OPENSPLAT: dict[tuple[str, str], float] = {
    ("10k@512x512", "forward"): 33.0,
    ("10k@512x512", "backward"): 29.0,
    ("100k@512x512", "forward"): 123.0,
    ("100k@512x512", "backward"): 96.0,
    ("100k@1920x1080", "forward"): 906.0,
    ("100k@1920x1080", "backward"): 551.0,
    ("500k@1920x1080", "forward"): 2196.0,
    ("500k@1920x1080", "backward"): 1310.0,
}

# Beyond twice the inputs and the images, bytes per pair of a Gaussian and a tile of 16x16 pixels that its box touches.
BYTES_PER_PAIR = 64

# What a whole remote call may add to the kernel's time, milliseconds.
REMOTE_OVERHEAD = 5.0
