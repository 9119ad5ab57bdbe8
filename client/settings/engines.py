"""Settings of the engines, and their construction from the keyword arguments of render."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from lumigrad.client.base.arguments import instance, number, one_of, truth, whole_number
from lumigrad.client.base.arrays import Float64, affine_array, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import InriaModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle, kind_in_words
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.rotations import matrix_of
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage
from lumigrad.client.values.world import World

S = TypeVar("S", bound="Settings")


class Settings:
    """Settings of an engine: a base of dataclasses whose fields define names and defaults."""

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """The names of the settings, in order."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    def _check_numbers(self) -> None:
        """Converts fields declared as floats to float; None is kept where it is allowed."""
        for name, kind in self.__annotations__.items():
            value = getattr(self, name)
            if kind == "float" or (kind == "float | None" and value is not None):
                vars(self)[name] = number(name, value)

    @classmethod
    def of(cls: type[S], arguments: Mapping[str, Any], **instead: Any) -> S:
        """Returns the settings among a function's arguments, e.g. `locals()`; `instead` replaces some of them."""
        given = {**arguments, **instead}
        return made(cls, {name: given[name] for name in cls.names() if name in given})


# Types of values that do not change.
_CONSTANTS = frozenset((bool, int, float, str, type(None)))


def made(kind: Callable[..., S], given: Mapping[str, Any]) -> S:
    """Checks and makes settings, or returns those that were made of the same constants before."""
    types = tuple(map(type, given.values()))
    if _CONSTANTS.issuperset(types) or all(map(_is_constant, given.values())):
        kept: S = _kept(kind, tuple(given.items()), types)
        return kept
    return kind(**given)


def _is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) is tuple and _CONSTANTS.issuperset(map(type, value)))


@lru_cache(maxsize=256)
def _kept(kind: Callable[..., Any], given: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> Any:
    # Equal values of other types may be wrong: 1 is no True.
    return kind(**dict(given))


Semantics = Literal["exact", "compat"]


@dataclass(frozen=True)
class SphereSettings(Settings):
    """The settings of one rendering; the worker checks their ranges.

    Attributes:
        gamma: softness of the depth blending, in [1e-5, 1].
        max_depth: far end of the depth range, scene units.
        min_depth: its near end; 0: just behind the film of Pulsar cameras.
        semantics: "exact" or "compat".
        background: K values; empty: all 1.
        allowed_difference: share of the colour that stopping early may cost; None: 0 in exact, 0.01 in compat.
        max_hits: maximum number of spheres blended per pixel; 0: no limit.
        n_track: spheres recorded per pixel in "info", "sphere_ids" and "weights", 1 to 128.
        background_depth: normalised closeness of the background, in (0, 1); None: 1e-6.
        deterministic: sum gradients in a fixed order on every device.
    """

    gamma: float
    max_depth: float
    min_depth: float = 0.0
    semantics: Semantics = "exact"
    background: tuple[float, ...] = ()
    allowed_difference: float | None = None
    max_hits: int = 0
    n_track: int = 5
    background_depth: float | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.semantics not in ("exact", "compat"):
            raise InvalidArgument.of("semantics", f'expected "exact" or "compat", got {self.semantics!r}')
        for name, largest in (("max_hits", 2**32 - 1), ("n_track", 128)):
            vars(self)[name] = whole_number(name, getattr(self, name), 0, largest)
        vars(self)["deterministic"] = truth("deterministic", self.deterministic)
        self._check_numbers()


def enclosing_depth(spheres: Spheres, cameras: Sequence[Camera], min_depth: float) -> float:
    """A depth behind the box around all spheres, seen from every camera; scene units."""
    smallest = 2.0 * max([min_depth, 1e-3, *(camera.model.focal_length for camera in cameras)])
    if not len(spheres):
        return smallest
    low, high = (corner.tolist() for corner in spheres.bounds)
    farthest = max(_farthest(low, high, camera.model.eye.tolist()) for camera in cameras)
    if not math.isfinite(farthest):
        raise InvalidArgument.of("max_depth", "has no default for positions that are not finite; pass it")
    return max(smallest, 1.001 * farthest)


def _farthest(low: Sequence[float], high: Sequence[float], eye: Sequence[float]) -> float:
    """The distance to the farthest corner of a box. Avoids NumPy, which is slower for so few numbers."""
    return math.hypot(*(max(abs(a - e), abs(b - e)) for a, b, e in zip(low, high, eye, strict=True)))


GaussianSemantics = Literal["exact", "gsplat", "inria_depth", "inria_exact"]
ProjectionMethod = Literal["jacobian", "unscented"]
DepthOrder = Literal["z", "distance"]
TileBounds = Literal["conservative", "gsplat"]
Response = Literal["picture", "ray"]
Primitive = Literal["volume", "surfel"]
Precision = Literal["full", "half"]


@dataclass(frozen=True)
class UnscentedTransform:
    """The seven sigma points by which Gaussians are projected; the worker checks ranges.

    Attributes:
        alpha: spread: the points lie alpha sqrt(3 + kappa) standard deviations from the mean.
        beta: added to the weight of the centre in the covariance, beside 1 - alpha^2.
        kappa: see alpha.
        margin: points are valid up to this fraction of the image's size outside the image.
        require_all: show Gaussians only if all seven points are valid; otherwise one is enough.

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
        begin: the first Gaussian of the slice.
        end: the one after its last; slices are disjoint.
        matrix: [4, 4] object to world, for column vectors; the last row is 0 0 0 1. It may be made from a pose as of an
            `Obstacle`: [7] x y z qw qx qy qz, or [3] x y z.
        matrix_end: the same at the end of the exposure of sensors with a rolling shutter, while `matrix` is for its
            start; None: the slice does not move. In between the translation is interpolated along a straight line, and
            the rotation along the shorter arc.

    Raises:
        InvalidArgument: `begin` is not below `end`, or a pose is none.

    Example:
        moving = Transform(0, len(gaussians), np.eye(4), (0, 0, 0.3))
        moving.matrix_end[:3, 3]  # 0, 0, 0.3
    """

    __slots__ = ()

    def __new__(cls, begin: int, end: int, matrix: Any, matrix_end: Any = None) -> Transform:
        """Checks the slice and makes matrices of poses."""
        return super().__new__(cls, *_checked_slice("", (begin, end, matrix, matrix_end)))


def _checked_slice(prefix: str, entry: Sequence[Any]) -> tuple[int, int, Any, Any]:
    """The fields of a slice, with matrices; `prefix` is that of their names in errors.

    Tensors, which may have gradients, are left as they are.
    """
    begin, end = (whole_number(f"{prefix}{name}", entry[k], 0, 2**63 - 1) for k, name in enumerate(("begin", "end")))
    if not begin < end:
        raise InvalidArgument.of(f"{prefix}begin", f"expected begin < end, got {begin} and {end}")
    matrices = [
        _slice_matrix(f"{prefix}{name}", it) if isinstance(it, np.ndarray | list | tuple) else it
        for name, it in zip(("matrix", "matrix_end"), entry[2:], strict=True)
    ]
    return begin, end, matrices[0], matrices[1]


def _slice_matrix(name: str, value: Any) -> Float64:
    """[4, 4] of a matrix, which may have a scale, or of a pose."""
    array = to_numpy(name, value)
    return affine_array(name, array) if array.shape == (4, 4) else matrix_of(name, array)


@dataclass(frozen=True)
class GaussianSettings(Settings):
    """The settings of one rendering. None means the worker's default, given here; the worker checks ranges.

    Attributes:
        semantics: "exact": gsplat's image formation with true derivatives; "gsplat": its own gradients; "inria_depth":
            Inria's image formation with the gradients of its depth fork; "inria_exact": with true derivatives.
        sh_degree: degree of the spherical harmonics in use, at most the stored one; None: the stored one.
        antialiased: scale opacities to compensate for the area that the blur adds to each Gaussian.
        background: D values, or D for each camera; empty: 0.
        transforms: place slices of the Gaussians in the world, where they may move during an exposure.
        deterministic: sum gradients in a fixed order on every device.
        eps2d: blur in the image, pixels squared; 0.3.
        near: least depth shown, scene units; 0.01.
        far: largest depth shown; 1e10.
        radius_clip: Gaussians with radii of at most this many pixels are not shown; 0.
        alpha_min: contributions with a smaller alpha are skipped; 1/255.
        alpha_max: larger alphas are clamped to it; 0.99.
        transmittance_min: blending of a pixel stops when its transmittance falls to this; 1e-4.
        pixel_center: where the centre of the first pixel is, pixels: 0.5 or 0; 0.5.
        scale_modifier: factor on all scales; 1.
        projection_method: "jacobian": by the camera's Jacobian; "unscented": by sigma points. None: the first, and the
            second for sensors. Rolling shutters and lidars have the second only.
        unscented: of sensors, as all up to `tile_size`: where the sigma points lie.
        depth_order: how Gaussians are sorted and depths measured, at the middle of the exposure: "z" or "distance"
            from the camera. None: "distance" with lidars, else "z".
        tile_bounds: which pixels see a Gaussian: "conservative" (None), all in which its alpha reaches `alpha_min`;
            "gsplat", those of gsplat's tiles, which cut some.
        tile_size: of gsplat's tiles, pixels: 4, 8 or 16. None: 16, along rays 8 for images of less than 1080 pixels in
            width or height. Surfels are cut at such tiles, too.
        response: where the alpha of a Gaussian comes from: "picture" (None), its ellipse in the image; "ray", its
            largest response in space along the ray of each pixel.
        primitive: "volume" (None): ellipsoids; "surfel": flat discs in the plane of the first two axes, which rays hit,
            with OpenCV's pinholes without distortion.
        precision: "full" (None); "half" permits a worker to compute with numbers of 16 bits, of which none makes use.
            Not with `deterministic`, "ids", `retain` or gradients, along rays or of surfels.

    Example:
        settings = client.render(gaussians, camera, near=0.1).request.settings
        settings.near, settings.far  # 0.1, and None: the worker's default
    """

    semantics: GaussianSemantics = "exact"
    sh_degree: int | None = None
    antialiased: bool = False
    background: tuple[float, ...] = ()
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
    precision: Precision | None = None

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
        self._check_numbers()
        vars(self)["transforms"] = tuple(_transform(index, entry) for index, entry in enumerate(self.transforms))


_CHOICES = {
    "projection_method": ProjectionMethod,
    "depth_order": DepthOrder,
    "tile_bounds": TileBounds,
    "response": Response,
    "primitive": Primitive,
    "precision": Precision,
}


def _transform(index: int, entry: Any) -> Transform:
    field = f"transforms[{index}]"
    if not isinstance(entry, tuple | list) or len(entry) not in (3, 4):
        raise InvalidArgument.of(field, f"expected (begin, end, matrix), got {type(entry).__name__}; pass a Transform")
    begin, end, matrix, last = _checked_slice(f"{field}.", (*entry, None)[:4])
    # What is left are tensors.
    matrix = _slice_matrix(f"{field}.matrix", matrix)
    return Transform(begin, end, matrix, None if last is None else _slice_matrix(f"{field}.matrix_end", last))


_DEFAULT_GAMMA = 1e-2
_RENDERED = ("spheres", "gaussians")


# All settings of render; each engine uses a subset.
RENDER_SETTINGS = dict.fromkeys((*SphereSettings.names(), *GaussianSettings.names()))
_OF_ENGINES = {kind: frozenset(kind.names()) for kind in (SphereSettings, GaussianSettings)}


def settings_of(
    scene: Spheres | Gaussians | SceneHandle, cameras: Sequence[Camera], arguments: Mapping[str, Any]
) -> SphereSettings | GaussianSettings:
    """The settings of one rendering.

    Args:
        scene: the scene, which determines the engine.
        cameras: all cameras of the rendering.
        arguments: a function's arguments by name, with the settings of both engines; None means not given.

    Raises:
        InvalidArgument: a setting was given that belongs to the other engine.
    """
    kind = engine_of(scene)
    given = {name: value for name, value in arguments.items() if value is not None and name in RENDER_SETTINGS}
    if not given.keys() <= _OF_ENGINES[kind]:
        name = next(name for name in given if name not in _OF_ENGINES[kind])
        owner, actual = ("Gaussians", "spheres") if kind is SphereSettings else ("spheres", "Gaussians")
        raise InvalidArgument.of(name, f"belongs to {owner}, but this scene is {actual}; leave it out")
    known = scene.scene if isinstance(scene, SceneHandle) else scene
    assert not isinstance(known, Mesh | World | TargetImage)
    if "background" in given:
        given["background"] = _background(given["background"], known)
    if kind is GaussianSettings:
        for camera in cameras:
            if isinstance(camera.model, InriaModel):
                # Inria's projection puts the centre of the first pixel at 0.
                given.setdefault("pixel_center", 0.0)
        return made(GaussianSettings, given)
    if "max_depth" not in given:
        if not isinstance(known, Spheres):
            text = "has no default for a handle without its scene; pass it, or get the scene with_tensors=True"
            raise InvalidArgument.of("max_depth", text)
        given["max_depth"] = enclosing_depth(known, cameras, number("min_depth", given.get("min_depth", 0.0)))
    return made(SphereSettings, {"gamma": _DEFAULT_GAMMA, **given})


def engine_of(scene: Spheres | Gaussians | SceneHandle) -> type[SphereSettings] | type[GaussianSettings]:
    """The type of the settings for renderings of a scene.

    Raises:
        InvalidArgument: it is no scene of spheres or Gaussians, nor the handle of one.
    """
    if not isinstance(scene, SceneHandle):
        advice = "pass Spheres(positions, colors, radii), Gaussians(…), or a handle from put or get"
        instance("scene", scene, (Spheres, Gaussians, SceneHandle), advice)
        return SphereSettings if isinstance(scene, Spheres) else GaussianSettings
    if scene.kind not in _RENDERED:
        advice = "" if scene.kind == "target" else "; pass it to query, for distances"
        text = f"expected {' or '.join(_RENDERED)}, got {kind_in_words(scene.kind)}{advice}"
        raise InvalidArgument.of("scene", text)
    return SphereSettings if scene.kind == "spheres" else GaussianSettings


def _background(background: Any, scene: Spheres | Gaussians | None) -> tuple[float, ...]:
    channels = to_numpy("background", background)
    if channels.dtype.kind not in "fiub":
        raise InvalidArgument.of(
            "background", f"expected a number, or one for each channel, got {background!r}; 0 is black, 1 is white"
        )
    channels = channels.astype(np.float32)
    if channels.ndim == 0 and scene is None:
        raise InvalidArgument.of("background", "expected one value per channel for a handle without its scene")
    if channels.ndim == 0 and scene is not None:
        channels = np.full(scene.channels, channels)
    return tuple(channels.ravel().tolist())
