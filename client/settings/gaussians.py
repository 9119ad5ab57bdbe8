"""The settings of renderings of Gaussians."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from lumigrad.client.base.arguments import instance, number, one_of, truth, whole_number
from lumigrad.client.base.arrays import Float64, affine_array, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.settings import RenderSettings, all_channels, backgrounds_of, made, of_each_camera
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import InriaModel
from lumigrad.client.values.rotations import matrix_of

GaussianSemantics = Literal["exact", "gsplat", "inria_depth", "inria_exact"]
ProjectionMethod = Literal["jacobian", "unscented"]
DepthOrder = Literal["z", "distance"]
TileBounds = Literal["conservative", "gsplat"]
Response = Literal["picture", "ray"]
Primitive = Literal["volume", "surfel"]


@dataclass(frozen=True)
class UnscentedTransform:
    """The parameters of the seven sigma points that project a Gaussian; the worker checks ranges.

    Attributes:
        alpha: spread: the points lie alpha sqrt(3 + kappa) standard deviations from the mean.
        beta: added to the weight of the centre in the covariance, together with 1 - alpha^2.
        kappa: see `alpha`.
        margin: points outside the image are valid up to this fraction of its size.
        require_all: show a Gaussian only if all seven points are valid; otherwise one valid point is enough.

    Example:
        wide = UnscentedTransform(alpha=0.5, require_all=True)
        client.render(gaussians, camera, projection_method="unscented", unscented=wide)
    """

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    margin: float = 0.1
    require_all: bool = False

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "kappa", "margin"):
            vars(self)[name] = number(f"unscented.{name}", getattr(self, name))
        vars(self)["require_all"] = truth("unscented.require_all", self.require_all)


class _Slice(NamedTuple):
    begin: int
    end: int
    matrix: Any
    matrix_end: Any = None


class Transform(_Slice):
    """Places a slice of the Gaussians rigidly in the world: means, covariances and spherical harmonics turn with it.

    Attributes:
        begin: index of the slice's first Gaussian.
        end: index after its last Gaussian; slices are disjoint.
        matrix: [4, 4] object to world, for column vectors; the last row is 0 0 0 1. A pose as for an `Obstacle` is
            converted: [7] x y z qw qx qy qz, or [3] x y z.
        matrix_end: the matrix at the end of a rolling shutter's exposure, where `matrix` is for the start; None: the
            slice does not move. In between, the translation is interpolated linearly, and the rotation along the
            shorter arc.

    Raises:
        InvalidArgument: `begin` is not below `end`, or a pose is invalid.

    Example:
        moving = Transform(0, len(gaussians), np.eye(4), (0, 0, 0.3))
        moving.matrix_end[:3, 3]  # 0, 0, 0.3
    """

    __slots__ = ()

    def __new__(cls, begin: int, end: int, matrix: Any, matrix_end: Any = None) -> Transform:
        """Checks the slice and converts poses to matrices."""
        return super().__new__(cls, *_checked_slice("", (begin, end, matrix, matrix_end)))

    def __eq__(self, other: object) -> bool:
        """Whether both place the same slice with equal matrices."""
        if not isinstance(other, Transform):
            return NotImplemented
        return self[:2] == other[:2] and all(map(_equal_matrices, self[2:], other[2:]))

    def __ne__(self, other: object) -> bool:
        """Whether they differ; tuples would compare arrays, which have no truth value."""
        return not self == other

    def __hash__(self) -> int:
        """Hashes only the slice, since arrays have no hash."""
        return hash(self[:2])


def _checked_slice(prefix: str, entry: Sequence[Any]) -> tuple[int, int, Any, Any]:
    """Returns the checked fields of a slice, with poses as matrices; `prefix` comes before field names in errors.

    Tensors, which may have gradients, are left unchanged.
    """
    begin, end = (whole_number(f"{prefix}{name}", entry[k], 0, 2**63 - 1) for k, name in enumerate(("begin", "end")))
    if not begin < end:
        raise InvalidArgument.of(f"{prefix}begin", f"expected begin < end, got {begin} and {end}")
    matrices = [
        _slice_matrix(f"{prefix}{name}", it) if isinstance(it, np.ndarray | list | tuple) else it
        for name, it in zip(("matrix", "matrix_end"), entry[2:], strict=True)
    ]
    return begin, end, matrices[0], matrices[1]


def _equal_matrices(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(to_numpy("matrix", first), to_numpy("matrix", second))


def _slice_matrix(name: str, value: Any) -> Float64:
    """Returns the matrix [4, 4] of a pose, or checks a matrix [4, 4], which may have a scale."""
    array = to_numpy(name, value)
    return affine_array(name, array) if array.shape == (4, 4) else matrix_of(name, array)


# The worker's least depth, scene units.
_NEAR = 0.01


def near_for(size: float) -> float | None:
    """Returns the least depth to show of a scene by its radius, scene units; None: the default.

    The default could hide all of a scene that is smaller than a unit, as one in kilometres.
    """
    return _NEAR * size if 0.0 < size < 1.0 else None


@dataclass(frozen=True)
class GaussianSettings(RenderSettings):
    """The settings of renderings of Gaussians. None means the worker's default, given here; the worker checks ranges.

    Attributes:
        semantics: "exact": gsplat's image formation with true derivatives; "gsplat": its own gradients; "inria_depth":
            Inria's image formation with the gradients of its depth fork; "inria_exact": with true derivatives.
        sh_degree: degree of spherical harmonics to use, at most the stored one; None: the stored one.
        antialiased: scale opacities to compensate for the area that the blur adds to each Gaussian.
        background: [D] channels, [C, D] for each camera, or one number for all; empty: 0.
        transforms: place slices of the Gaussians in the world, where they may move during an exposure.
        deterministic: sum gradients in a fixed order on every device.
        eps2d: blur in the image, pixels squared; None: 0.3.
        near: least depth shown, scene units; None: 0.01.
        far: largest depth shown, scene units; None: 1e10.
        radius_clip: Gaussians with radii of at most this many pixels are not shown; None: 0.
        alpha_min: contributions with a smaller alpha are skipped; None: 1/255.
        alpha_max: larger alphas are clamped to this value; None: 0.99.
        transmittance_min: blending of a pixel stops when its transmittance falls to this value; None: 1e-4.
        pixel_center: coordinate of the centre of the first pixel, 0.5 or 0; None: 0.5, with Inria's cameras 0.
        scale_modifier: factor on all scales; None: 1.
        projection_method: "jacobian": by the camera's Jacobian; "unscented": by sigma points. None: "unscented" for
            sensors, else "jacobian". Rolling shutters and lidars support only "unscented".
        unscented: the sigma points. This and the following up to `tile_size` are for sensors only.
        depth_order: how Gaussians are sorted and depths measured, at the middle of the exposure: "z" or "distance"
            from the camera. None: "distance" with lidars, else "z".
        tile_bounds: which pixels see a Gaussian: "conservative" (None): all in which its alpha reaches `alpha_min`;
            "gsplat": those of gsplat's tiles, which cut off some.
        tile_size: edge of gsplat's tiles, pixels: 4, 8 or 16. None: 16, along rays 8 for images of less than 1080
            pixels in width or height. Surfels are also cut off at such tiles.
        response: what determines the alpha of a Gaussian: "picture": its ellipse in the image; "ray": its largest
            response in space along the ray of each pixel. None: "ray" with lidars, else "picture".
        primitive: "volume" (None): ellipsoids; "surfel": flat discs in the plane of the first two axes, intersected
            with rays, for OpenCV's pinholes without distortion.
        max_error_px: for scenes with levels of detail, like the next two: each page is drawn at its coarsest level with
            an error of at most this many pixels; None: 1.
        max_gaussians: the most Gaussians to draw; all pages become equally coarser to meet it. None: as many as the
            worker has room for.
        wait: wait until the worker has read missing pages (None: True). False: draw the coarser levels that are in
            memory, as `Frame.levels` reports, and have the missing pages read for later calls.

    Example:
        sharp = GaussianSettings(antialiased=True, near=0.1)
        frame = client.render(gaussians, camera, settings=sharp)
        frame.request.settings.near  # 0.1
    """

    scenes: ClassVar[str] = "Gaussians"

    semantics: GaussianSemantics = "exact"
    sh_degree: int | None = None
    antialiased: bool = False
    background: Any = ()
    transforms: Sequence[Transform] = ()
    deterministic: bool = False
    eps2d: float | None = None
    near: float | None = None
    far: float | None = None
    radius_clip: float | None = None
    alpha_min: float | None = None
    alpha_max: float | None = None
    transmittance_min: float | None = None
    pixel_center: float | None = None
    scale_modifier: float | None = None
    projection_method: ProjectionMethod | None = None
    unscented: UnscentedTransform | None = None
    depth_order: DepthOrder | None = None
    tile_bounds: TileBounds | None = None
    tile_size: int | None = None
    response: Response | None = None
    primitive: Primitive | None = None
    max_error_px: float | None = None
    max_gaussians: int | None = None
    wait: bool | None = None

    def __post_init__(self) -> None:
        one_of("semantics", self.semantics, get_args(GaussianSemantics), quote='"', suffix=" for Gaussians")
        for name, kinds in _CHOICES.items():
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), get_args(kinds), quote='"')
        if self.unscented is not None:
            instance("unscented", self.unscented, (UnscentedTransform,), "or leave it out")
        if self.sh_degree is not None:
            vars(self)["sh_degree"] = whole_number("sh_degree", self.sh_degree, 0, 4)
        if self.tile_size is not None:
            vars(self)["tile_size"] = whole_number("tile_size", self.tile_size, 4, 16)
        if self.max_gaussians is not None:
            vars(self)["max_gaussians"] = whole_number("max_gaussians", self.max_gaussians, 1, 2**63 - 1)
        if self.wait is not None:
            vars(self)["wait"] = truth("wait", self.wait)
        for name in ("antialiased", "deterministic"):
            vars(self)[name] = truth(name, getattr(self, name))
        vars(self)["background"] = backgrounds_of(self.background)
        self._check_numbers()
        instance("transforms", self.transforms, (Iterable,), "pass a list of Transform")
        vars(self)["transforms"] = tuple(_transform(index, entry) for index, entry in enumerate(self.transforms))
        vars(self)["is_open"] = type(self.background) is float or self._has_rows

    @property
    def _has_rows(self) -> bool:
        """Whether the background has a tuple for each camera."""
        return type(self.background) is tuple and type(next(iter(self.background), None)) is tuple

    def filled(self, cameras: Sequence[Camera], channels: int | None) -> GaussianSettings:
        """Returns the settings with defaults that depend on the cameras and the scene's channels (None: unknown)."""
        changes: dict[str, Any] = {}
        if type(self.background) is float:
            changes["background"] = all_channels(self.background, channels)
        elif self._has_rows:
            changes["background"] = of_each_camera(self.background, len(cameras), channels)
        if self.pixel_center is None and any(type(camera.model) is InriaModel for camera in cameras):
            # Inria's projection puts the centre of the first pixel at 0.
            changes["pixel_center"] = 0.0
        return made(GaussianSettings, {**self.values(), **changes}) if changes else self


_CHOICES = {
    "projection_method": ProjectionMethod,
    "depth_order": DepthOrder,
    "tile_bounds": TileBounds,
    "response": Response,
    "primitive": Primitive,
}


def _transform(index: int, entry: Any) -> Transform:
    field = f"transforms[{index}]"
    if not isinstance(entry, tuple | list) or len(entry) not in (3, 4):
        raise InvalidArgument.of(field, f"expected (begin, end, matrix), got {type(entry).__name__}; pass a Transform")
    begin, end, matrix, last = _checked_slice(f"{field}.", (*entry, None)[:4])
    # Other entries are tensors.
    matrix = _slice_matrix(f"{field}.matrix", matrix)
    return Transform(begin, end, matrix, None if last is None else _slice_matrix(f"{field}.matrix_end", last))
