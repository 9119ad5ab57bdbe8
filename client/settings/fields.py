"""Types the fields of settings as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from lumigrad.client.settings.gaussians import (
    DepthOrder,
    GaussianSemantics,
    GaussianSettings,
    Primitive,
    ProjectionMethod,
    Response,
    TileBounds,
    Transform,
    UnscentedTransform,
)
from lumigrad.client.settings.spheres import Semantics, SphereSettings


class _OfSpheres(TypedDict, total=False):
    max_depth: float | None
    min_depth: float | None
    allowed_difference: float | None
    max_hits: int | None
    n_track: int | None
    background_depth: float | None
    deterministic: bool | None


class _OfGaussians(TypedDict, total=False):
    sh_degree: int | None
    antialiased: bool | None
    eps2d: float | None
    near: float | None
    far: float | None
    radius_clip: float | None
    alpha_min: float | None
    alpha_max: float | None
    transmittance_min: float | None
    pixel_center: float | None
    scale_modifier: float | None
    projection_method: ProjectionMethod | None
    unscented: UnscentedTransform | None
    depth_order: DepthOrder | None
    tile_bounds: TileBounds | None
    tile_size: int | None
    response: Response | None
    primitive: Primitive | None
    max_error_px: float | None
    max_gaussians: int | None
    wait: bool | None
    deterministic: bool | None


class SphereFields(_OfSpheres, total=False):
    """The fields of `SphereSettings` except those that operators take as arrays; None: the default."""

    semantics: Semantics | None


class GaussianFields(_OfGaussians, total=False):
    """The fields of `GaussianSettings` except those that operators take as arrays; None: the default."""

    semantics: GaussianSemantics | None


class RenderFields(_OfSpheres, _OfGaussians, total=False):
    """The fields of the settings of both kinds of scene; None: the default."""

    semantics: Semantics | GaussianSemantics | None
    background: Any
    gamma: float | None
    transforms: Sequence[Transform] | None


# The names of all fields.
RENDER_FIELDS = frozenset((*SphereSettings.names(), *GaussianSettings.names()))
