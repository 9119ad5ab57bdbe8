"""What the mesh engine is measured against: its targets on two AVX-512 cores."""

from __future__ import annotations

# Per second; of builds and refits calls, of "robot" spheres on one thread.
TARGETS: dict[tuple[str, str], float] = {
    ("1k near", "signed_distance"): 8e6,
    ("1k box", "signed_distance"): 5e6,
    ("70k near", "signed_distance"): 5e6,
    ("70k box", "signed_distance"): 2.5e6,
    ("1M near", "signed_distance"): 3e6,
    ("1M box", "signed_distance"): 1.4e6,
    ("1M", "build"): 1 / 0.25,
    ("1M", "refit"): 1 / 0.10,
    ("70k", "cost static curobo"): 3e6,
    ("70k", "cost swept curobo"): 2.5e6,
    ("70k", "robot"): 61 / 25e-6,
}
