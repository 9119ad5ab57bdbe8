"""Settings of the blending of spheres."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number, is_whole

MAX_TRACK = 128
UNLIMITED_HITS = 2**32 - 1
# Settings from a request are float32, and the float32 closest to 1e-5 is below it.
MIN_GAMMA = float(np.float32(1e-5))


@dataclass(frozen=True)
class Settings:
    """Settings of a render call.

    Attributes:
        gamma: Softness of the depth blending, in [1e-5, 1].
        max_depth: Far end of the depth range, scene units; 0: just behind the scene as the call's cameras see it.
        min_depth: Near end, scene units; 0: the largest focal length of the call's cameras + 2e-6.
        semantics: "exact" (true exponential, every hit, true derivatives) or "compat" (PyTorch3D's Pulsar).
        allowed_difference: In [0, 1): blending of a pixel stops once the remaining spheres cannot change its colour by
            more than this fraction. None: 0 with "exact" semantics, 0.01 with "compat".
        max_hits: Maximum number of spheres blended per pixel; 0: no limit. With "compat" semantics it is checked only
            after every 65th candidate, as in Pulsar.
        n_track: Spheres recorded per pixel in "info", "sphere_ids" and "weights", 1 to 128.
        background_depth: Normalised closeness of the background, in (0, 1).
        deterministic: Whether gradients have the same bits in each run on CUDA; on the CPU they always do, for the same
            number of threads.

    Raises:
        ArgumentError: A value is out of range.
    """

    gamma: float
    max_depth: float = 0.0
    min_depth: float = 0.0
    semantics: str = "exact"
    allowed_difference: float | None = None
    max_hits: int = 0
    n_track: int = 5
    background_depth: float = 1e-6
    deterministic: bool = False

    def __post_init__(self) -> None:
        share = self.share
        numbers = {"gamma": self.gamma, "max_depth": self.max_depth, "min_depth": self.min_depth}
        for name, value in {**numbers, "allowed_difference": share, "background_depth": self.background_depth}.items():
            check(is_number(value), name, "a number", value)
        for name in ("max_hits", "n_track"):
            check(is_whole(getattr(self, name)), name, "a whole number", getattr(self, name))
        check(isinstance(self.deterministic, bool), "deterministic", "True or False", self.deterministic)
        check(self.semantics in ("exact", "compat"), "semantics", "'exact' or 'compat'", self.semantics)
        check(MIN_GAMMA <= self.gamma <= 1.0, "gamma", "a value in [1e-5, 1]", self.gamma)
        check(0.0 <= self.min_depth < math.inf, "min_depth", "a finite value >= 0", self.min_depth)
        check(
            self.max_depth == 0.0 or self.min_depth + 1e-6 < self.max_depth < math.inf,
            "max_depth",
            f"0 or a finite value above min_depth ({self.min_depth}) by more than 1e-6",
            self.max_depth,
        )
        check(0.0 <= share < 1.0, "allowed_difference", "a value in [0, 1)", share)
        check(0 <= self.max_hits <= UNLIMITED_HITS, "max_hits", "0 (no limit) to 2**32 - 1", self.max_hits)
        check(1 <= self.n_track <= MAX_TRACK, "n_track", f"1 to {MAX_TRACK}", self.n_track)
        check(0.0 < self.background_depth < 1.0, "background_depth", "a value in (0, 1)", self.background_depth)

    @property
    def exact(self) -> bool:
        """Whether semantics is "exact"."""
        return self.semantics == "exact"

    @property
    def share(self) -> float:
        """The allowed difference, with the default of the semantics."""
        if self.allowed_difference is None:
            return 0.0 if self.exact else 0.01
        return self.allowed_difference

    def native(self, track: bool) -> _native.SphereSettings:
        """The extension's settings; without `track` no spheres are recorded."""
        return _native.make_sphere_settings(
            exact=self.exact,
            deterministic=self.deterministic,
            n_track=self.n_track if track else 0,
            max_hits=self.max_hits or UNLIMITED_HITS,
            gamma=self.gamma,
            allowed_difference=self.share,
            background_depth=self.background_depth,
        )
