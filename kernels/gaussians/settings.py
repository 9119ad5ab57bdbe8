"""Settings of the projection and blending of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number, is_whole

MAX_DEGREE = 4
SEMANTICS = ("exact", "gsplat", "inria_depth", "inria_exact")


@dataclass(frozen=True)
class Settings:
    """Settings of a render call.

    Attributes:
        semantics: "exact" (gsplat's images, true derivatives), "gsplat" (gsplat's images and gradients), "inria_depth"
            (the images of diff-gaussian-rasterization and the gradients of its depth fork) or "inria_exact" (those
            images, true derivatives).
        sh_degree: Degree of the spherical harmonics in use, 0 to 4; None: the stored degree.
        antialiased: Multiplies opacities by the ratio of a Gaussian's projected area without and with the blur.
        eps2d: Blur, added to the diagonal of the projected covariance, squared pixels.
        near: Gaussians of a smaller depth are culled, scene units.
        far: Gaussians of a larger depth are culled, scene units.
        radius_clip: Gaussians whose radii are at most this are culled, pixels (not with Inria's semantics).
        alpha_min: A Gaussian does not contribute to pixels in which its alpha is below this.
        alpha_max: Alphas are clamped to this.
        transmittance_min: Blending stops before the Gaussian that would reduce the transmittance below this.
        pixel_center: Coordinate of the centre of pixel (0, 0): 0.5 or 0.
        scale_modifier: Factor of the scales.
        deterministic: Gradients are the same bit for bit in each run, also on CUDA (on the CPU they always are).

    Raises:
        ArgumentError: A value is out of range.
    """

    semantics: str = "exact"
    sh_degree: int | None = None
    antialiased: bool = False
    eps2d: float = 0.3
    near: float = 0.01
    far: float = 1e10
    radius_clip: float = 0.0
    alpha_min: float = 1.0 / 255.0
    alpha_max: float = 0.99
    transmittance_min: float = 1e-4
    pixel_center: float = 0.5
    scale_modifier: float = 1.0
    deterministic: bool = False

    def __post_init__(self) -> None:
        check(self.semantics in SEMANTICS, "semantics", f"one of {SEMANTICS}", self.semantics)
        for name in _NUMBERS:
            check(is_number(getattr(self, name)), name, "a number", getattr(self, name))
        for name in ("antialiased", "deterministic"):
            check(isinstance(getattr(self, name), bool), name, "True or False", getattr(self, name))
        degree = self.sh_degree
        expected = f"None or a degree from 0 to {MAX_DEGREE}"
        check(degree is None or (is_whole(degree) and 0 <= degree <= MAX_DEGREE), "sh_degree", expected, degree)
        check(0.0 <= self.eps2d < math.inf, "eps2d", "a finite value >= 0, square pixels", self.eps2d)
        check(0.0 < self.near < math.inf, "near", "a finite value above 0", self.near)
        check(self.near < self.far, "far", f"a value above near ({self.near})", self.far)
        check(0.0 <= self.radius_clip < math.inf, "radius_clip", "a finite value >= 0, pixels", self.radius_clip)
        check(0.0 < self.alpha_min < 1.0, "alpha_min", "a value in (0, 1)", self.alpha_min)
        # Backward divides by 1 - alpha.
        expected = f"a value above alpha_min ({self.alpha_min}), at most 0.9999"
        check(self.alpha_min < self.alpha_max <= 0.9999, "alpha_max", expected, self.alpha_max)
        check(0.0 <= self.transmittance_min < 1.0, "transmittance_min", "a value in [0, 1)", self.transmittance_min)
        check(self.pixel_center in (0.0, 0.5), "pixel_center", "0.5 or 0", self.pixel_center)
        check(0.0 < self.scale_modifier < math.inf, "scale_modifier", "a finite value above 0", self.scale_modifier)

    @property
    def inria(self) -> bool:
        """Whether images are those of diff-gaussian-rasterization."""
        return self.semantics in ("inria_depth", "inria_exact")

    def native(self, sh_degree: int) -> _native.GaussianSettings:
        """The extension's settings; `sh_degree` is the degree in use, -1 if colours are given."""
        return _native.make_gaussian_settings(
            inria=self.inria,
            fork_gradients=self.semantics == "inria_depth",
            antialiased=self.antialiased,
            sh_degree=sh_degree,
            deterministic=self.deterministic,
            **{name: float(getattr(self, name)) for name in _NUMBERS},
        )


_NUMBERS = (
    "eps2d",
    "near",
    "far",
    "radius_clip",
    "alpha_min",
    "alpha_max",
    "transmittance_min",
    "pixel_center",
    "scale_modifier",
)
