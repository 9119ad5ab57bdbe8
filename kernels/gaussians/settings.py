"""Settings of the projection and blending of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number, is_whole

MAX_DEGREE = 4
PROJECTION_METHODS = ("unscented", "jacobian")
DEPTH_ORDERS = ("z", "distance")
TILE_BOUNDS = ("conservative", "gsplat")
RESPONSES = ("picture", "ray")
PRIMITIVES = ("volume", "surfel")
TILE_SIZES = (4, 8, 16)
# gsplat's tile edge on the film, and along rays if both image edges have at least _LARGE_IMAGE pixels; else 8.
_GSPLAT_TILE, _LARGE_IMAGE, _SMALL_TILE = 16, 1080, 8
SEMANTICS = ("exact", "gsplat", "inria_depth", "inria_exact")


@dataclass(frozen=True)
class UnscentedTransform:
    """The sigma points by which sensors project Gaussians.

    Attributes:
        alpha: Spread of the points: they lie alpha sqrt(3 + kappa) standard deviations from the mean.
        beta: Added to the centre's weight in the covariance, in addition to 1 - alpha^2.
        kappa: See alpha; above -3.
        margin: A point counts as valid up to this fraction of the image's size outside the image.
        require_all: Whether Gaussians are culled unless all seven points are valid; else one is enough.

    Raises:
        ArgumentError: A value is out of range.
    """

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    margin: float = 0.1
    require_all: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("alpha", 1e-3, 1e3),
            ("beta", -1e6, 1e6),
            ("kappa", -2.999, 1e6),
            ("margin", 0.0, 1e6),
        ):
            value = getattr(self, name)
            ok = is_number(value) and low <= float(value) <= high
            check(ok, f"unscented.{name}", f"a value in [{low:g}, {high:g}]", value)
        check(isinstance(self.require_all, bool), "unscented.require_all", "True or False", self.require_all)

    def native(self) -> _native.GaussianUnscented:
        """The extension's transform."""
        numbers = {name: float(getattr(self, name)) for name in ("alpha", "beta", "kappa", "margin")}
        return _native.make_gaussian_unscented(**numbers, require_all=self.require_all)


@dataclass(frozen=True)
class Settings:
    """Settings of a render call.

    Attributes:
        semantics: "exact" (gsplat's images, true derivatives), "gsplat" (gsplat's images and gradients), "inria_depth"
            (the images of diff-gaussian-rasterization and the gradients of its depth fork) or "inria_exact" (the same
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
        deterministic: Whether gradients have the same bits in each run on CUDA; on the CPU they always do.
        projection_method: For sensors: how Gaussians become ellipses: "unscented", by sigma points; "jacobian", by the
            Jacobian of the lens at the mean, with a global shutter. Other cameras support only "jacobian".
        unscented: For sensors: the sigma points.
        depth_order: For sensors: Gaussians are sorted, and depths are measured, along "z" or as "distance" from the
            camera, at the middle of the exposure. None: "distance" for lidars, which also see behind and below
            themselves, otherwise "z".
        tile_bounds: For sensors: which pixels see a Gaussian: "conservative", all in which its alpha reaches
            `alpha_min`; "gsplat", only those in tiles that gsplat's box around the mean meets.
        tile_size: Edge of gsplat's tiles, pixels: 4, 8 or 16. None: 16, but 8 along rays for images of less than 1080
            pixels in width or height. With surfels, only pixels in tiles that gsplat's box of a Gaussian meets see it.
        response: For sensors: the source of a Gaussian's alpha: "picture", its ellipse in the image; "ray", its
            largest response in 3D along the ray of each pixel.
        primitive: Shape of a Gaussian: "volume", or "surfel", flat, without a third scale: a 2D Gaussian, whose
            response is taken where a pixel's ray meets its plane ("2D Gaussian Splatting for Geometrically Accurate
            Radiance Fields", Huang et al. 2024). Surfels need perfect pinhole cameras, and have no `eps2d`.

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
    projection_method: str = "unscented"
    unscented: UnscentedTransform = UnscentedTransform()
    depth_order: str | None = None
    tile_bounds: str = "conservative"
    tile_size: int | None = None
    response: str = "picture"
    primitive: str = "volume"

    def __post_init__(self) -> None:
        check(self.semantics in SEMANTICS, "semantics", f"one of {SEMANTICS}", self.semantics)
        for name in _NUMBERS:
            check(is_number(getattr(self, name)), name, "a number", getattr(self, name))
        check(isinstance(self.unscented, UnscentedTransform), "unscented", "an UnscentedTransform", self.unscented)
        method = self.projection_method
        check(method in PROJECTION_METHODS, "projection_method", f"one of {PROJECTION_METHODS}", method)
        ok = self.depth_order is None or self.depth_order in DEPTH_ORDERS
        check(ok, "depth_order", f"None or one of {DEPTH_ORDERS}", self.depth_order)
        check(self.tile_bounds in TILE_BOUNDS, "tile_bounds", f"one of {TILE_BOUNDS}", self.tile_bounds)
        ok = self.tile_size is None or (is_whole(self.tile_size) and self.tile_size in TILE_SIZES)
        check(ok, "tile_size", f"None or one of {TILE_SIZES}", self.tile_size)
        check(self.response in RESPONSES, "response", f"one of {RESPONSES}", self.response)
        check(self.primitive in PRIMITIVES, "primitive", f"one of {PRIMITIVES}", self.primitive)
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

    @property
    def surfels(self) -> bool:
        """Whether Gaussians are flat."""
        return self.primitive == "surfel"

    @cached_property
    def sensor_settings(self) -> dict[str, object]:
        """Settings that have an effect with sensors only, and are not the defaults."""
        names = ("projection_method", "unscented", "depth_order", "tile_bounds", "tile_size", "response")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(Settings, name)}

    def _tile(self, width: int, height: int) -> int:
        if self.tile_size is not None:
            return self.tile_size
        return _SMALL_TILE if self.response == "ray" and min(width, height) < _LARGE_IMAGE else _GSPLAT_TILE

    def native(self, sh_degree: int, width: int, height: int, *, lidar: bool) -> _native.GaussianSettings:
        """The extension's settings for images of a size; `sh_degree` is the degree in use, -1 if colours are given."""
        key = sh_degree, width, height, lidar
        made = self._made.get(key)
        if made is None:
            # Settings for other sizes are rarely needed again.
            self._made.clear()
            made = self._made[key] = self._make(*key)
        return made

    @cached_property
    def _made(self) -> dict[tuple[int, int, int, bool], _native.GaussianSettings]:
        """The last result of `native`."""
        return {}

    def _make(self, sh_degree: int, width: int, height: int, lidar: bool) -> _native.GaussianSettings:
        by_jacobian, rays = self.projection_method == "jacobian", self.response == "ray"
        return _native.make_gaussian_settings(
            inria=self.inria,
            fork_gradients=self.semantics == "inria_depth",
            antialiased=self.antialiased,
            sh_degree=sh_degree,
            deterministic=self.deterministic,
            unscented=self.unscented.native(),
            by_jacobian=by_jacobian,
            distance_order=(self.depth_order or ("distance" if lidar else "z")) == "distance",
            gsplat_bounds=self.tile_bounds == "gsplat",
            tile_size=self._tile(width, height),
            rays=rays,
            surfels=self.surfels,
            # gsplat differentiates its projection by the Jacobian, but neither sigma points nor rays.
            frozen_projection=self.semantics == "gsplat" and (rays or not by_jacobian),
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
