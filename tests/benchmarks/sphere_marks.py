"""What the sphere engine is measured against: its targets, and PyTorch3D's Pulsar built for the CPU."""

from __future__ import annotations

# Milliseconds on two AVX-512 cores, (case, op): compat, exact. AVX2 may take twice as long.
TARGETS: dict[tuple[str, str], tuple[float, float]] = {
    ("1k@256x256", "forward"): (1.0, 0.8),
    ("1k@256x256", "backward"): (1.5, 1.0),
    ("10k@512x512", "forward"): (6.0, 4.0),
    ("10k@512x512", "backward"): (7.5, 7.0),
    ("100k@512x512", "forward"): (18.0, 12.0),
    ("100k@512x512", "backward"): (12.0, 18.0),
    ("100k@1024x1024", "forward"): (42.0, 28.0),
    ("100k@1024x1024", "backward"): (36.0, 46.0),
    ("1M@1024x1024", "forward"): (130.0, 105.0),
    ("1M@1024x1024", "backward"): (80.0, 150.0),
}

# Milliseconds of PyTorch3D 0.7.9, which uses one thread; measured once on such a machine.
PYTORCH3D: dict[tuple[str, str], float] = {
    ("1k@256x256", "forward"): 29.0,
    ("1k@256x256", "backward"): 18.0,
    ("10k@512x512", "forward"): 679.0,
    ("10k@512x512", "backward"): 127.0,
    ("100k@512x512", "forward"): 6399.0,
    ("100k@512x512", "backward"): 152.0,
    ("100k@1024x1024", "forward"): 19984.0,
    ("100k@1024x1024", "backward"): 467.0,
    ("1M@1024x1024", "forward"): 203486.0,
    ("1M@1024x1024", "backward"): 1175.0,
}

# What a whole remote call may add to the kernel's time, milliseconds.
REMOTE_OVERHEAD = 5.0
