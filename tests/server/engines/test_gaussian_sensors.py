"""Sensors over the network: the kernels' results, bit for bit, and refusals that name field and limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.protos import dtypes
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, gaussians_pb2, render_pb2, tensor_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec, inria_camera, same_bits
from support.calls.raw_calls import (
    Arrays,
    RawClient,
    color_gradient,
    failure,
    opencv_camera,
    reply_of,
    violation,
    with_scene,
)
from support.calls.raw_training import RawTraining, start_of
from support.gaussians.lidars import CASES as LIDARS
from support.gaussians.sensor_cases import CASES, JACOBIAN_CASES, RAY_CASES, SLICES, SensorCase

UNSCENTED = gaussians_pb2.PROJECTION_METHOD_UNSCENTED
JACOBIAN = gaussians_pb2.PROJECTION_METHOD_JACOBIAN
# Prefixes of the values of enums, by the field.
ENUMS = {"domain": "LENS_DOMAIN", "reference": "F_THETA_REFERENCE", "direction": "SPIN_DIRECTION"}
FIELDS = {
    gaussians.PinholeLens: "pinhole",
    gaussians.OrthographicLens: "orthographic",
    gaussians.FisheyeLens: "fisheye",
    gaussians.FThetaLens: "ftheta",
    gaussians.SpinningLidar: "lidar",
}


def pose_of(matrix: Any) -> camera_pb2.CameraPose:
    return camera_pb2.CameraPose(rotation=matrix[:3, :3].ravel().tolist(), translation=matrix[:3, 3].tolist())


def message_of(case: SensorCase) -> camera_pb2.Camera:
    camera = camera_pb2.Camera(width=case.width, height=case.height)
    sensor = camera.sensor
    sensor.start.CopyFrom(pose_of(case.start))
    sensor.shutter = getattr(camera_pb2, f"SHUTTER_{case.shutter.upper()}")
    if case.end is not None:
        sensor.end.CopyFrom(pose_of(case.end))
    if case.row_time == "staircase":
        sensor.row_time = camera_pb2.ROW_TIME_STAIRCASE
    lens = getattr(sensor, FIELDS[type(case.lens)])
    lens.SetInParent()
    for name, value in vars(case.lens).items():
        if isinstance(value, tuple | np.ndarray):
            getattr(lens, name).extend(value)
        elif value is not None:
            setattr(lens, name, getattr(camera_pb2, f"{ENUMS[name]}_{value.upper()}") if name in ENUMS else value)
    for name, values in vars(case.windshield).items() if case.windshield is not None else ():
        getattr(sensor.windshield, name).extend(values)
    if case.rays is not None:
        rays = sensor.rays.rays
        rays.dtype, rays.shape[:], rays.inline = dtypes.FLOAT32, case.rays.shape, case.rays.numpy().tobytes()
    return camera


def slice_of(transform: gaussians.Transform) -> gaussians_pb2.SliceTransform:
    message = gaussians_pb2.SliceTransform(begin=transform.begin, end=transform.end, matrix=transform.matrix.ravel())
    if transform.matrix_end is not None:
        message.matrix_end.extend(transform.matrix_end.ravel())
    return message


def settings_of(case: SensorCase) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if case.settings.get("projection_method") == "jacobian":
        given["projection_method"] = JACOBIAN
    if case.settings.get("depth_order") == "distance":
        given["depth_order"] = gaussians_pb2.DEPTH_ORDER_DISTANCE
    if case.settings.get("tile_bounds") == "gsplat":
        given["tile_bounds"] = gaussians_pb2.TILE_BOUNDS_GSPLAT
    if case.on_rays:
        given["response"] = gaussians_pb2.RESPONSE_RAY
    if case.transforms:
        given["transforms"] = [slice_of(transform) for transform in case.transforms]
    if "unscented" in case.settings:
        given["unscented"] = gaussians_pb2.UnscentedTransform(**vars(case.settings["unscented"]))
    return given


def spec_of(case: SensorCase, outputs: Any = ()) -> render_pb2.RenderSpec:
    return gaussian_spec(message_of(case), outputs=outputs, **settings_of(case))


def arrays_of(case: SensorCase) -> Arrays:
    return {name: tensor.numpy() for name, tensor in case.scene.items()}


MOVING = tuple(
    replace(case, name=f"{case.name}, moving slices", transforms=SLICES)
    for case in (CASES["rolling"], RAY_CASES["rolling up"])
)
ALL = (*CASES.values(), *JACOBIAN_CASES.values(), *RAY_CASES.values(), *LIDARS.values(), *MOVING)


def forward_of(case: SensorCase, outputs: tuple[str, ...]) -> gaussians.Forward:
    """Renders a case with the kernels, and retains its state."""
    return gaussians.forward(
        gaussians.Gaussians(**case.scene),
        [case.camera()],
        gaussians.Settings(**case.settings),
        transforms=case.transforms,
        rays=None if case.rays is None else case.rays[None],
        outputs=outputs,
        retain=True,
    )


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_sensors_are_the_kernels_own(client: RawClient, case: SensorCase) -> None:
    outputs: tuple[str, ...] = ("color", "alpha", "depth", "means2d", "radii", "depths")
    outputs += gaussians.ON_RAYS if case.on_rays else ()
    local = forward_of(case, outputs)
    assert local.outputs["alpha"].max() > 0.3
    spec = spec_of(case, outputs)
    same_bits(client.render(spec, cloud=arrays_of(case)).arrays, local.outputs)
    upstream = {"color": color_gradient(1, case.height, case.width, 3)}
    if case.on_rays:
        upstream |= {"hit_distance": color_gradient(1, case.height, case.width), "normals": upstream["color"]}
    # The worker computes only what the gradients need, and sums with fewer features have another order.
    state = forward_of(case, tuple(upstream)).state
    assert state is not None
    wanted = ("means", "cameras", "lenses", *(() if case.rays is None else ("rays",)))
    wanted += ("transforms",) if case.transforms else ()
    expected = gaussians.backward(state, {name: torch.from_numpy(value) for name, value in upstream.items()}, wanted)
    found = client.backward(upstream, spec=spec, cloud=arrays_of(case), wanted=wanted)
    same_bits(found.arrays, expected.gradients)
    assert {"camera_pose", "camera_pose_end", "camera_rotation_end", "camera_translation_end"} <= set(found.arrays)
    if case.transforms:
        assert found.arrays["transforms"].any() and found.arrays["transforms_end"].any()


def test_given_rays_come_in_the_payload_and_stay_with_the_context(client: RawClient) -> None:
    """The payload has the rays of two cameras, one after the other."""
    case = RAY_CASES["given"]
    assert case.rays is not None
    both = torch.stack([case.rays, case.rays.flip(1)])
    spec, payload = spec_of(case, ("color", "normals")), PayloadWriter()
    spec.cameras.append(spec.cameras[0])
    for camera, rays in zip(spec.cameras, both, strict=True):
        camera.sensor.rays.rays.CopyFrom(payload.add(rays.numpy()))
    request = render_pb2.RenderRequest(spec=with_scene(spec, arrays_of(case), payload), retain=True)
    reply = reply_of(client.render_stub.Render(frames_of(request, payload)), lambda header: header.outputs)
    local = gaussians.forward(
        gaussians.Gaussians(**case.scene),
        [case.camera()] * 2,
        gaussians.Settings(**case.settings),
        rays=both,
        outputs=("color", "normals"),
        retain=True,
    )
    same_bits(reply.arrays, local.outputs)
    upstream = {"normals": color_gradient(2, case.height, case.width, 3)}
    assert local.state is not None
    expected = gaussians.backward(local.state, {"normals": torch.from_numpy(upstream["normals"])}, ("rays",))
    found = client.backward(upstream, context_id=reply.header.context_id, wanted=("rays",))
    same_bits(found.arrays, expected.gradients)
    assert found.arrays["rays"].any()


CLOUD = gaussian_cloud(20)


@pytest.mark.parametrize(
    ("camera", "lens"),
    [
        (camera_of(), gaussians.PinholeLens),
        (camera_of(distortion=(-0.1, 0.02, 0.001, 0.002, 0.01)), gaussians.PinholeLens),
        (camera_of(camera_pb2.PROJECTION_FISHEYE), gaussians.FisheyeLens),
        (camera_of(camera_pb2.PROJECTION_ORTHOGRAPHIC), gaussians.OrthographicLens),
    ],
)
def test_opencvs_cameras_can_be_sensors(client: RawClient, camera: Any, lens: Any) -> None:
    opencv = camera.opencv
    film = {name: getattr(opencv, name) for name in ("fx", "fy", "cx", "cy")}
    if opencv.distortion:
        film |= {"radial": (-0.1, 0.02, 0.01), "tangential": (0.001, 0.002)}
    local = gaussians.Camera.sensor(
        lens(**film), np.reshape(opencv.rotation, (3, 3)), opencv.translation, camera.width, camera.height
    )
    scene = gaussians.Gaussians(**{name: torch.from_numpy(value) for name, value in CLOUD.items()})
    expected = gaussians.forward(scene, [local], gaussians.Settings())
    reply = client.render(gaussian_spec(camera, projection_method=UNSCENTED), cloud=CLOUD)
    same_bits(reply.arrays, expected.outputs)
    # Along rays, cameras keep their own projection.
    expected = gaussians.forward(scene, [local], gaussians.Settings(response="ray", projection_method="jacobian"))
    reply = client.render(gaussian_spec(camera, response=RAY), cloud=CLOUD)
    same_bits(reply.arrays, expected.outputs)


def test_lidars_order_by_distance_unless_told_otherwise(client: RawClient) -> None:
    case = LIDARS["turn"]
    specs = [
        gaussian_spec(message_of(case), response=RAY, outputs=("depth",), **order)
        for order in ({}, {"depth_order": gaussians_pb2.DEPTH_ORDER_DISTANCE}, {"depth_order": 1})
    ]
    found, distance, z = (client.render(spec, cloud=arrays_of(case)).arrays["depth"] for spec in specs)
    np.testing.assert_array_equal(found, distance)
    assert not np.array_equal(found, z)


def changed(change: Callable[[Any], object], name: str = "rolling", **settings: Any) -> render_pb2.RenderSpec:
    """Returns a spec with a changed sensor."""
    spec = gaussian_spec(message_of(CASES[name]), **settings)
    change(spec.cameras[0].sensor)
    return spec


def put(field: str, *values: float) -> Callable[[Any], None]:
    """Sets a field, given by its path."""

    def change(sensor: Any) -> None:
        *path, last = field.split(".")
        for part in path:
            sensor = getattr(sensor, part)
        if sensor.DESCRIPTOR.fields_by_name[last].is_repeated:
            getattr(sensor, last)[:] = values
        else:
            setattr(sensor, last, *values)

    return change


def changed_lidar(change: Callable[[Any], object], **settings: Any) -> render_pb2.RenderSpec:
    """Returns a spec with a changed lidar."""
    spec = gaussian_spec(message_of(LIDARS["moving"]), **{"response": gaussians_pb2.RESPONSE_RAY, **settings})
    change(spec.cameras[0].sensor)
    return spec


def unchanged(sensor: Any) -> None:
    """Leaves the sensor as it is."""


FLAT = [1.0, 0, 0, 0, 1, 0, 0, 0, 1.001]
MIXED = [message_of(CASES["pinhole"]), message_of(CASES["fisheye"])]
GLASS = message_of(replace(CASES["windshield"], windshield=None))
REFUSED: list[tuple[Any, str, str]] = [
    (changed(lambda s: s.ClearField("pinhole")), "sensor", "expected one of the lenses pinhole, orthographic, fisheye"),
    (changed(lambda s: s.ClearField("end")), "sensor.end", "expected a pose, since the shutter is top_to_bottom, got"),
    (changed(put("shutter", 0)), "sensor.end", "expected none with a global shutter, got a pose"),
    (changed(put("shutter", 9)), "sensor.shutter", "expected a known value, got 9"),
    (changed(put("row_time", 9)), "sensor.row_time", "expected a known value, got 9"),
    (changed(put("pinhole.domain", 9)), "sensor.pinhole.domain", "expected a known value, got 9"),
    (changed(put("start.rotation", 1, 0, 0)), "sensor.start.rotation", "expected 9 values, got 3"),
    (changed(put("end.translation", 1)), "sensor.end.translation", "expected 3 values, got 1"),
    (changed(put("start.rotation", *FLAT)), "sensor.start.rotation", "expected a rotation: orthonormal to 0.0001"),
    (changed(put("end.translation", 0, np.nan, 0)), "sensor.end.translation", "expected finite values"),
    (changed(put("pinhole.fx", 0)), "sensor.pinhole.fx", "expected a finite focal length other than 0"),
    (changed(put("pinhole.radial", *[0.1] * 7)), "sensor.pinhole.radial", "expected 0 to 6 coefficients in"),
    (changed(put("fisheye.max_angle", 4), "fisheye"), "sensor.fisheye.max_angle", "expected an angle above 0, at most"),
    (changed(put("ftheta.reference", 7), "ftheta"), "sensor.ftheta.reference", "expected a known value, got 7"),
    (changed(put("windshield.horizontal", 1, 2), "windshield"),
     "sensor.windshield.horizontal", "expected 1 or 3 or 6 or 10 or 15 or 21 coefficients"),
    (changed(lambda s: [s.windshield.horizontal.append(1), s.windshield.vertical.append(1)], "orthographic"),
     "sensor.windshield", "expected none with an orthographic lens, got 'one'"),
    (changed_lidar(put("lidar.row_elevations", *np.linspace(0, 0.5, 14))),
     "sensor.lidar.row_elevations", "expected elevations from the highest to the lowest"),
    (changed_lidar(put("lidar.row_azimuth_offsets", 1)), "sensor.lidar.row_azimuth_offsets", "expected 14 angles"),
    (changed_lidar(put("lidar.column_azimuths", *[0.0] * 65537)), "sensor.lidar.column_azimuths", "at most 65536"),
    (changed_lidar(put("lidar.column_azimuths", np.nan)), "sensor.lidar.column_azimuths", "angles in [-100, 100]"),
    (changed_lidar(put("lidar.direction", 9)), "sensor.lidar.direction", "expected a known value, got 9"),
    (changed_lidar(put("lidar.column_azimuths", *[0.0] * 89)), "width", "expected 89, as many as"),
    (changed_lidar(put("shutter", 2)), "sensor.shutter", "('global', 'left_to_right') with a lidar"),
]  # fmt: skip
RAY = gaussians_pb2.RESPONSE_RAY
PICTURE = gaussians_pb2.RESPONSE_PICTURE
GIVEN = message_of(RAY_CASES["given"])


def with_rays(**fields: Any) -> render_pb2.RenderSpec:
    """Returns a spec with rays whose fields are changed."""
    spec = gaussian_spec(GIVEN, response=RAY)
    rays = spec.cameras[0].sensor.rays.rays
    for name in fields:
        rays.ClearField(name)
    rays.MergeFrom(tensor_pb2.Tensor(**fields))
    return spec


MATRIX, FLATTENED = np.eye(4), np.diag([1.0, 1.0, 1.0003, 1.0])


def with_slice(name: str = "rolling", **fields: Any) -> render_pb2.RenderSpec:
    """Returns a spec with a moving slice whose fields are changed."""
    given = {"begin": 0, "end": 3, "matrix": MATRIX.ravel(), "matrix_end": MATRIX.ravel(), **fields}
    return changed(unchanged, name, transforms=[gaussians_pb2.SliceTransform(**given)])


SPECS: list[tuple[Any, str, str]] = [
    (with_slice("pinhole"), "gaussians.transforms", "expected no matrix_end unless all cameras have a rolling shutter"),
    (with_slice(matrix_end=[1.0]), "gaussians.transforms[0].matrix_end", "expected 16 values, got 1"),
    (with_slice(matrix_end=FLATTENED.ravel()), "gaussians.transforms[0]", "expected a rotation: orthonormal to 0.0001"),
    (with_slice(matrix=FLATTENED.ravel()), "gaussians.transforms[0]", "expected a rotation: orthonormal to 0.0001"),
    (gaussian_spec(*MIXED), "cameras[1].sensor", "expected a PinholeLens, as of the first camera, got FisheyeLens"),
    (gaussian_spec(message_of(CASES["windshield"]), GLASS),
     "cameras[1].sensor.windshield", "expected (10, 6) coefficients, as of the first camera, got (0, 0)"),
    (gaussian_spec(opencv_camera(48, 36), MIXED[0]), "cameras[1]", "expected sensors only, or no sensors, got sensor"),
    (changed(unchanged, projection_method=JACOBIAN),
     "gaussians.projection_method", "expected PROJECTION_METHOD_UNSCENTED or none with rolling shutters"),
    (changed_lidar(unchanged, projection_method=JACOBIAN),
     "gaussians.projection_method", "expected PROJECTION_METHOD_UNSCENTED or none with lidars"),
    (changed(unchanged, "pinhole", projection_method=JACOBIAN, antialiased=True),
     "gaussians.antialiased", "expected false with sensors"),
    (changed(unchanged, projection_method=9), "gaussians.projection_method", "expected a known value, got 9"),
    (changed(unchanged, depth_order=9), "gaussians.depth_order", "expected a known value, got 9"),
    (changed(unchanged, tile_bounds=9), "gaussians.tile_bounds", "expected a known value, got 9"),
    (changed(unchanged, unscented={"alpha": 0}), "gaussians.unscented.alpha",
     "expected a value in [0.001, 1000], got 0"),
    (changed(unchanged, antialiased=True), "gaussians.antialiased", "expected false with sigma points"),
    (changed(unchanged, pixel_center=0), "gaussians.pixel_center", "expected 0.5 with sigma points"),
    (changed(unchanged, semantics=gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT),
     "gaussians.semantics", "expected exact or gsplat with sigma points, got inria_exact"),
    (gaussian_spec(opencv_camera(48, 36), depth_order=2), "gaussians.depth_order",
     "expected the default unless Gaussians are projected by sigma points, got distance"),
    (gaussian_spec(inria_camera(), projection_method=UNSCENTED), "cameras[0].inria",
     "expected opencv or sensor with PROJECTION_METHOD_UNSCENTED or RESPONSE_RAY, got inria"),
    (gaussian_spec(inria_camera(), response=RAY), "cameras[0].inria",
     "expected opencv or sensor with PROJECTION_METHOD_UNSCENTED or RESPONSE_RAY, got inria"),
    (gaussian_spec(opencv_camera(48, 36), response=RAY, antialiased=True), "gaussians.antialiased",
     "expected false with rays"),
    (changed_lidar(unchanged, response=PICTURE), "gaussians.response", "expected RESPONSE_RAY with lidars, got"),
    (changed(unchanged, response=9), "gaussians.response", "expected a known value, got 9"),
    (changed(unchanged, tile_size=5), "gaussians.tile_size", "expected None or one of (4, 8, 16), got 5"),
    (changed(unchanged, outputs=["normals"]), "outputs",
     "opacities (with RESPONSE_RAY also hit_distance, expected_hit_distance, normals), got normals"),
    (changed(unchanged, "windshield", response=RAY), "cameras[0].sensor.windshield.horizontal_inverse",
     "expected coefficients with RESPONSE_RAY, got none"),
    (gaussian_spec(GIVEN), "cameras[0].sensor.rays", "expected none unless the response is RESPONSE_RAY"),
    (gaussian_spec(GIVEN, MIXED[0], response=RAY), "cameras[1].sensor.rays",
     "expected rays of all cameras of a call, or of none, got none"),
    (with_rays(shape=[36, 48, 3]), "cameras[0].sensor.rays.shape", "expected [36, 48, 6], got [36, 48, 3]"),
    (with_rays(dtype=dtypes.FLOAT16), "cameras[0].sensor.rays.dtype", "expected DTYPE_FLOAT32"),
    (with_rays(inline=bytes(36 * 48 * 24)), "cameras[0].sensor.rays",
     "finite directions other than 0, got 0 0 0 0 0 0 at row 0, column 0"),
    (with_rays(inline=np.where(np.arange(36 * 48 * 6) == 50 * 6 + 1, np.nan, 1).astype(np.float32).tobytes()),
     "cameras[0].sensor.rays", "got 1 nan 1 1 1 1 at row 1, column 2"),
    (gaussian_spec(camera_of(distortion=(1, 2, 3)), projection_method=UNSCENTED), "cameras[0].opencv.distortion",
     "expected 4, 5 or 8 values"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "field", "text"), [*((spec, f"cameras[0].{field}", text) for spec, field, text in REFUSED), *SPECS]
)
def test_refusals_name_field_limit_and_value(client: RawClient, spec: Any, field: str, text: str) -> None:
    found, description = violation(failure(lambda: client.render(spec, cloud=CLOUD)))
    assert found == f"spec.{field}"
    assert text in description


def test_trainings_take_no_rays_that_are_given_and_no_lidars(client: RawClient) -> None:
    along, given, scanned = start_of(client), start_of(client), start_of(client)
    lidar = gaussians.SpinningLidar(row_elevations=np.linspace(0.2, -0.2, 32), column_azimuths=np.linspace(0, 1, 40))
    for view in scanned.views:
        view.camera.CopyFrom(message_of(replace(LIDARS["turn"], lens=lidar, width=40, height=32)))
    along.spec.gaussians.response = RAY
    along.spec.density.adaptive.SetInParent()
    along.spec.density.extent = 1.0
    given.views[1].camera.CopyFrom(GIVEN)
    for start, field, text in (
        (along, "spec.density.adaptive", "expected mcmc, or none, with RESPONSE_RAY, got adaptive"),
        (given, "views[1].camera.sensor.rays", "expected none in trainings, got some"),
        (scanned, "views[0].camera.sensor.lidar", "expected none in trainings, got a lidar"),
    ):
        found, description = violation(failure(RawTraining(client, start).reply))
        assert found == f"start.{field}"
        assert text in description
