"""The translation of gsplat's arguments for sensors: checks, cameras, inputs and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, cast

import torch

from lumigrad.client.base.arguments import number, one_of, truth
from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.parameters import (
    BivariateWindshieldModelParameters,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    RowOffsetStructuredSpinningLidarModelParameters,
    SpinningDirection,
    UnscentedTransformParameters,
)
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.sensors import OF_LIDAR, RAYS, SensorMatrices
from lumigrad.client.settings.gaussians import UnscentedTransform
from lumigrad.client.torch.gaussian_inputs import TENSORS
from lumigrad.client.torch.remote import on_host
from lumigrad.client.values.camera_models import NCORE_SHUTTERS, Projection, Shutter
from lumigrad.client.values.lenses import NCORE_REFERENCES, WINDSHIELD_LENGTHS, LensDomain, Reference, SpinDirection

Arguments = Mapping[str, Any]
MODELS = {"pinhole": "pinhole", "ortho": "orthographic", "fisheye": "fisheye", "ftheta": "ftheta", "lidar": "lidar"}
_OF_FTHETA = ("angle_to_pixel_distance", "pixel_distance_to_angle", "linear")
_COEFFICIENTS = ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs")
# Arguments that rule out the projection by the Jacobian.
_OF_SIGMA_POINTS = (
    *(*_COEFFICIENTS, "ftheta_coeffs", "lidar_coeffs", "external_distortion_coeffs", "viewmats_rs", "ut_params"),
)
_DIRECTIONS: dict[str, SpinDirection] = {"CLOCKWISE": "clockwise", "COUNTER_CLOCKWISE": "counter_clockwise"}
# Names of coefficients in the protocol, and the numbers of them that each lens takes.
_TAKEN: dict[str, dict[str, tuple[str, Sequence[int]]]] = {
    "pinhole": {
        "radial_coeffs": ("radial", range(1, 7)),
        "tangential_coeffs": ("tangential", (2,)),
        "thin_prism_coeffs": ("thin_prism", (4,)),
    },
    "fisheye": {"radial_coeffs": ("radial", (4,))},
}


def check_without(given: Arguments) -> None:
    """Raises InvalidArgument for arguments that need `with_ut`, which is False."""
    for name in _OF_SIGMA_POINTS:
        if given[name] is not None:
            raise InvalidArgument.of(name, "expected None without with_ut=True, got one; pass with_ut=True")
    if _shutter(given["rolling_shutter"]) != "global":
        raise InvalidArgument.of("rolling_shutter", "expected GLOBAL without with_ut=True; pass with_ut=True")
    if not truth("global_z_order", given["global_z_order"]):
        raise InvalidArgument.of("global_z_order", "expected True without with_ut=True; pass with_ut=True")
    model = given["camera_model"]
    if model in ("ftheta", "lidar"):
        raise InvalidArgument.of("camera_model", f'"{model}" needs with_ut=True; pass with_ut=True')


def sensor_settings(given: Arguments) -> dict[str, Any]:
    """Returns the settings of Gaussians that are specific to sensors."""
    found: dict[str, Any] = {"tile_bounds": "gsplat", "tile_size": given["tile_size"]}
    found["response"] = "ray" if truth("with_eval3d", given["with_eval3d"]) else "picture"
    found["projection_method"] = "unscented" if given["with_ut"] else "jacobian"
    if given["global_z_order"] is not None:
        found["depth_order"] = "z" if truth("global_z_order", given["global_z_order"]) else "distance"
    parameters = given["ut_params"]
    if parameters is not None:
        names = ("alpha", "beta", "kappa", "in_image_margin_factor", "require_all_sigma_points_valid")
        found["unscented"] = UnscentedTransform(*_read("ut_params", parameters, UnscentedTransformParameters, names))
    return found


def projection_of(camera_model: str) -> Projection:
    """Returns the client's name of a camera model that is not a sensor."""
    one_of("camera_model", camera_model, ("pinhole", "ortho", "fisheye"))
    return cast(Projection, MODELS[camera_model])


def intrinsics_of(given: Arguments) -> Any:
    """Returns Ks, or identities for a lidar, which has no intrinsics."""
    if given["Ks"] is not None or given["camera_model"] != "lidar" or given["viewmats"] is None:
        return given["Ks"]
    return torch.eye(3, dtype=torch.float64, device="cpu").expand(
        *on_host("viewmats", given["viewmats"]).shape[:-2], 3, 3
    )


def sensors(
    given: Arguments, views: tuple[int, ...], lens_domain: LensDomain
) -> tuple[SensorMatrices, dict[str, torch.Tensor]]:
    """Returns the cameras, and the inputs besides the matrices from which they are made.

    Args:
        given: the arguments of gsplat's function by their names.
        views: the sizes before [4, 4] of `viewmats`.
        lens_domain: up to where a lens is valid.
    """
    one_of("camera_model", given["camera_model"], MODELS)
    model, shutter = MODELS[given["camera_model"]], _shutter(given["rolling_shutter"])
    inputs = _coefficients(given, views, model)
    reference, max_angle = _ftheta(given["ftheta_coeffs"], views, model, inputs)
    direction = _lidar(given, views, model, inputs)
    _windshield(given["external_distortion_coeffs"], views, model, inputs, along_rays=given["with_eval3d"])
    counts = tuple((key, tensor.shape[-1]) for key, tensor in inputs.items())
    if model == "lidar":
        if shutter not in ("global", "left_to_right"):
            raise InvalidArgument.of("rolling_shutter", f"expected GLOBAL or ROLLING_LEFT_TO_RIGHT, got {shutter}")
        # Columns are always scanned in order; a lidar moves if it has poses at the end, whatever the shutter.
        shutter = "global" if given["viewmats_rs"] is None else "left_to_right"
    if (given["viewmats_rs"] is not None) != (shutter != "global"):
        expected = "None with the shutter GLOBAL" if shutter == "global" else f"poses with the shutter {shutter}"
        raise InvalidArgument.of("viewmats_rs", f"expected {expected}")
    if given["viewmats_rs"] is not None:
        ends = inputs["view_end"] = TENSORS.real("viewmats_rs", given["viewmats_rs"])
        check_shape("viewmats_rs", ends.shape, (*views, 4, 4))
    # A lidar's picture has the size of its tables.
    size = given["width"], given["height"]
    if model == "lidar":
        size = inputs["azimuths"].shape[-1], inputs["elevations"].shape[-1]
    if given["rays"] is not None:
        if not given["with_eval3d"]:
            raise InvalidArgument.of("rays", "expected None without with_eval3d=True; pass with_eval3d=True")
        rays, shape = on_host("rays", given["rays"]), (*views, size[1], size[0], 6)
        if rays.shape[-3:] == shape[-3:]:
            with suppress(RuntimeError):
                # Cameras may share rays, as in gsplat.
                rays = rays.expand(shape)
        check_shape("rays", rays.shape, shape)
        inputs[RAYS] = rays
    matrices = SensorMatrices(*size, model, shutter, "staircase", lens_domain, reference, max_angle, counts, direction)
    return matrices, inputs


def _shutter(value: Any) -> Shutter:
    if value is None:
        return "global"
    name = _name_of(value, RollingShutterType)
    if name not in tuple(NCORE_SHUTTERS):
        raise InvalidArgument.of("rolling_shutter", f"expected a RollingShutterType, got {value!r}")
    return NCORE_SHUTTERS[name]


def _name_of(value: Any, kind: type[Enum]) -> Any:
    """Returns the name of an enum's value, ours or gsplat's, or of its number, which gsplat's own classes return."""
    if isinstance(value, int) and not isinstance(value, bool) and value in [member.value for member in kind]:
        return kind(value).name
    return getattr(value, "name", value)


def _read(argument: str, parameters: Any, kind: type, names: Sequence[str]) -> list[Any]:
    """Returns the attributes of an argument; raises InvalidArgument unless it is a `kind`, ours or gsplat's own."""
    try:
        return [getattr(parameters, name) for name in names]
    except AttributeError as error:
        raise InvalidArgument.of(argument, f"expected {kind.__name__}, got {type(parameters).__name__}") from error


def _coefficients(given: Arguments, views: tuple[int, ...], model: str) -> dict[str, Any]:
    """Returns the coefficients of each camera, [V, k]."""
    taken, inputs = _TAKEN.get(model, {}), dict[str, Any]()
    for name in _COEFFICIENTS:
        if given[name] is None:
            continue
        if name not in taken:
            raise InvalidArgument.of(name, f"expected None with the camera model {given['camera_model']}")
        ours, counts = taken[name]
        values = TENSORS.real(name, given[name])
        check_shape(name, values.shape, (*views, "k"))
        if values.shape[-1] not in counts:
            allowed = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
            raise InvalidArgument.of(name, f"expected {allowed} coefficients of each camera, got {values.shape[-1]}")
        inputs[ours] = values.reshape(-1, values.shape[-1])
    return inputs


def _shared(views: tuple[int, ...], name: str, values: Any) -> torch.Tensor:
    """Returns coefficients [k] that all cameras share, as [V, k]."""
    if values is None:
        raise InvalidArgument.of(name, "expected coefficients [k], got None")
    tensor = TENSORS.real(name, values)
    check_shape(name, tensor.shape, ("k",))
    return tensor.expand(math.prod(views), -1)  # type: ignore[no-any-return]


def _ftheta(
    parameters: Any, views: tuple[int, ...], model: str, inputs: dict[str, Any]
) -> tuple[Reference, float | None]:
    """Adds the coefficients of an f-theta lens to `inputs`; returns its reference and its largest angle."""
    if (parameters is not None) != (model == "ftheta"):
        expected = "FThetaCameraDistortionParameters" if model == "ftheta" else 'None unless camera_model is "ftheta"'
        raise InvalidArgument.of("ftheta_coeffs", f"expected {expected}")
    if parameters is None:
        return "angle_to_pixel_distance", None
    names = ("angle_to_pixeldist_poly", "pixeldist_to_angle_poly", "linear_cde", "reference_poly", "max_angle")
    *polynomials, kind, angle = _read("ftheta_coeffs", parameters, FThetaCameraDistortionParameters, names)
    for ours, theirs, values in zip(_OF_FTHETA, names, polynomials, strict=False):
        inputs[ours] = _shared(views, f"ftheta_coeffs.{theirs}", values)
    reference = _name_of(kind, FThetaPolynomialType)
    one_of("ftheta_coeffs.reference_poly", reference, NCORE_REFERENCES)
    # No angle from the axis is larger than half a turn, and gsplat's own programs write 1000 for "no limit".
    return NCORE_REFERENCES[reference], min(number("ftheta_coeffs.max_angle", angle), math.pi)


def _lidar(given: Arguments, views: tuple[int, ...], model: str, inputs: dict[str, Any]) -> SpinDirection:
    """Adds the tables of a lidar to `inputs`; returns how it spins."""
    parameters = given["lidar_coeffs"]
    if (parameters is not None) != (model == "lidar"):
        expected = 'None unless camera_model is "lidar"'
        if model == "lidar":
            expected = "RowOffsetStructuredSpinningLidarModelParameters"
        raise InvalidArgument.of("lidar_coeffs", f"expected {expected}")
    if parameters is None:
        return "counter_clockwise"
    if not given["with_eval3d"]:
        raise InvalidArgument.of("with_eval3d", "expected True with a lidar, which has no film; pass with_eval3d=True")
    if given["external_distortion_coeffs"] is not None:
        raise InvalidArgument.of("external_distortion_coeffs", "expected None with a lidar, got one")
    names = ("row_elevations_rad", "column_azimuths_rad", "row_azimuth_offsets_rad", "spinning_direction")
    *tables, spinning = _read("lidar_coeffs", parameters, RowOffsetStructuredSpinningLidarModelParameters, names)
    for ours, theirs, values in zip(OF_LIDAR, names, tables, strict=False):
        inputs[ours] = _shared(views, f"lidar_coeffs.{theirs}", values)
    direction = _name_of(spinning, SpinningDirection)
    one_of("lidar_coeffs.spinning_direction", direction, _DIRECTIONS)
    return _DIRECTIONS[direction]


def _windshield(
    parameters: Any, views: tuple[int, ...], model: str, inputs: dict[str, Any], *, along_rays: bool
) -> None:
    """Adds the polynomials of a windshield to `inputs`, including the inverse ones, which only rays need.

    An orthographic lens has no windshield; one that bends nothing is left out, as programs switch it off in this way.
    """
    if parameters is None:
        return
    fields = {"horizontal": "horizontal_poly", "vertical": "vertical_poly"}
    if along_rays:
        fields |= {"horizontal_inverse": "horizontal_poly_inverse", "vertical_inverse": "vertical_poly_inverse"}
    argument = "external_distortion_coeffs"
    polynomials = _read(argument, parameters, BivariateWindshieldModelParameters, tuple(fields.values()))
    for (name, field), values in zip(fields.items(), polynomials, strict=True):
        if name.endswith("_inverse") and values is None:
            # Rays that are given need no inverse; otherwise the worker asks for it.
            continue
        path = f"{argument}.{field}"
        coefficients = inputs[name] = _shared(views, path, values)
        if coefficients.shape[-1] not in WINDSHIELD_LENGTHS:
            allowed = " or ".join(map(str, WINDSHIELD_LENGTHS))
            raise InvalidArgument.of(path, f"expected {allowed} coefficients, got {coefficients.shape[-1]}")
    if model == "orthographic" and all(
        _is_identity(name, inputs[name][0].tolist()) for name in ("horizontal", "vertical")
    ):
        for name in fields:
            inputs.pop(name, None)


def _is_identity(name: str, coefficients: Sequence[float]) -> bool:
    """Whether a polynomial of a windshield returns its own angle."""
    order = WINDSHIELD_LENGTHS.index(len(coefficients))
    place = 1 if name == "horizontal" else order + 1
    return order > 0 and list(coefficients) == [float(k == place) for k in range(len(coefficients))]
