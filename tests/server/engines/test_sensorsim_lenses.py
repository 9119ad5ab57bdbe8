"""Lenses of driving simulators with any finite numbers: a sensor, or an error that names a field."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.sensorsim.lenses import Size, optics_of

NUMBER = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1e-300, 1.0, 80.0, -80.0, 1e100, -1e300])
)
KINDS = {
    "ftheta_param": sensorsim_pb2.FthetaCameraParam,
    "opencv_pinhole_param": sensorsim_pb2.OpenCVPinholeCameraParam,
    "opencv_fisheye_param": sensorsim_pb2.OpenCVFisheyeCameraParam,
}


@st.composite
def lenses(draw: st.DrawFn) -> sensorsim_pb2.CameraSpec:
    kind = draw(st.sampled_from(list(KINDS)))
    lens = KINDS[kind]()
    for field in lens.DESCRIPTOR.fields:
        if field.name == "linear_cde":
            lens.linear_cde.linear_c, lens.linear_cde.linear_d, lens.linear_cde.linear_e = (draw(NUMBER) for _ in "cde")
        elif field.name == "reference_poly":
            lens.reference_poly = draw(st.sampled_from([1, 2]))
        elif field.is_repeated:
            getattr(lens, field.name).extend(draw(st.lists(NUMBER, max_size=6)))
        else:
            setattr(lens, field.name, draw(NUMBER))
    spec = sensorsim_pb2.CameraSpec(resolution_h=48, resolution_w=64, shutter_type=sensorsim_pb2.GLOBAL)
    getattr(spec, kind).CopyFrom(lens)
    return spec


def numbers(message: Any) -> list[float]:
    found: list[float] = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            found += numbers(value)
        elif field.is_repeated:
            found += value
        else:
            found.append(value)
    return found


@given(lenses(), st.sampled_from([0.25, 1.0, 3.0]))
def test_a_lens_is_refused_by_name_or_has_finite_numbers(spec: sensorsim_pb2.CameraSpec, scale: float) -> None:
    check(spec, scale)


def test_a_fisheye_whose_coefficients_overflow_is_refused_by_name_or_has_finite_numbers() -> None:
    spec = sensorsim_pb2.CameraSpec(resolution_h=48, resolution_w=64, shutter_type=sensorsim_pb2.GLOBAL)
    spec.opencv_fisheye_param.focal_length_x = spec.opencv_fisheye_param.focal_length_y = 1.0
    spec.opencv_fisheye_param.radial_coeffs.extend([5.9923104495410527e307, 1.0])
    check(spec, 0.25)


def check(spec: sensorsim_pb2.CameraSpec, scale: float) -> None:
    try:
        optics = optics_of(spec, Size(64, 48, scale), "camera_intrinsics")
    except InvalidArgumentError as error:
        assert error.field.startswith("camera_intrinsics")
        return
    assert all(math.isfinite(number) for number in numbers(optics.sensor))


@pytest.mark.parametrize("center", [1e100, -1e200])
def test_a_center_far_outside_of_the_picture_is_refused(center: float) -> None:
    spec = sensorsim_pb2.CameraSpec(resolution_h=48, resolution_w=64, shutter_type=sensorsim_pb2.GLOBAL)
    lens = sensorsim_pb2.FthetaCameraParam(
        reference_poly=sensorsim_pb2.FthetaCameraParam.PIXELDIST_TO_ANGLE, principal_point_x=center,
        pixeldist_to_angle_poly=[0, 1e-3, 0, 0, 0, 1e-5], angle_to_pixeldist_poly=[0, 900],
    )  # fmt: skip
    spec.ftheta_param.CopyFrom(lens)
    with pytest.raises(InvalidArgumentError, match="principal_point_x"):
        optics_of(spec, Size(64, 48, 1.0), "camera_intrinsics")
    spec.ftheta_param.principal_point_x = 32.0
    assert np.isfinite(optics_of(spec, Size(64, 48, 1.0), "camera_intrinsics").sensor.ftheta.max_angle)
