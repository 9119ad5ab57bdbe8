"""Minimal requests: the defaults are the worker's, not those of a client in some language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lumigrad.v1 import camera_pb2, gaussians_pb2, render_pb2, spheres_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, color_gradient, opencv_camera, pulsar_camera, spec_of, sphere_cloud

SPHERES, GAUSSIANS = sphere_cloud(60), gaussian_cloud(60)
NEAR = {"min_depth": 0.0}
IDENTITY = [1.0, 0, 0, 0, 1, 0, 0, 0, 1]


def bare_camera(**model: Any) -> camera_pb2.Camera:
    film = {"fx": 30.0, "fy": 30.0, "cx": 16.0, "cy": 12.0}
    model = model or {"opencv": camera_pb2.OpenCVCamera(**film)}
    return camera_pb2.Camera(width=32, height=24, **model)


def posed_camera() -> camera_pb2.Camera:
    camera = bare_camera()
    camera.opencv.rotation.extend(IDENTITY)
    camera.opencv.translation.extend([0, 0, 0])
    return camera


def away(cloud: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the cloud moved in front of a camera at the origin."""
    return {**cloud, name: cloud[name] + np.array([0, 0, 6], np.float32)}


def image(client: RawClient, cloud: Any = None, **fields: Any) -> Any:
    return client.render(render_pb2.RenderSpec(**fields), cloud=cloud).arrays["color"]


def test_settings_are_the_defaults_if_there_are_none(client: RawClient) -> None:
    settings = gaussians_pb2.GaussianSettings()
    found = image(client, away(GAUSSIANS, "means"), cameras=[posed_camera()])
    np.testing.assert_array_equal(
        found, image(client, away(GAUSSIANS, "means"), cameras=[posed_camera()], gaussians=settings)
    )
    assert found.any()
    found = image(client, SPHERES, cameras=[opencv_camera()])
    np.testing.assert_array_equal(
        found, image(client, SPHERES, cameras=[opencv_camera()], spheres=spheres_pb2.SphereSettings(gamma=0.01))
    )
    assert (found != 1).any()


@pytest.mark.parametrize("kind", ["spheres", "gaussians"])
def test_a_camera_without_a_pose_stands_at_the_origin(client: RawClient, kind: str) -> None:
    cloud = away(SPHERES, "positions") if kind == "spheres" else away(GAUSSIANS, "means")
    ref = client.put(cloud).scene.scene_id
    # Repeated calls are read by other code than first ones.
    for _ in range(4):
        found, expected = (
            image(client, scene_ref={"scene_id": ref}, cameras=[camera]) for camera in (bare_camera(), posed_camera())
        )
        np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 10


def test_a_sensor_without_a_pose_stands_at_the_origin(client: RawClient) -> None:
    lens = camera_pb2.PinholeLens(fx=30, fy=30, cx=16, cy=12)
    pose = camera_pb2.CameraPose(rotation=IDENTITY, translation=[0, 0, 0])
    found, expected = (
        image(client, away(GAUSSIANS, "means"), cameras=[bare_camera(sensor=sensor)])
        for sensor in (camera_pb2.SensorCamera(pinhole=lens), camera_pb2.SensorCamera(pinhole=lens, start=pose))
    )
    np.testing.assert_array_equal(found, expected)
    assert found.any()


def test_lidars_see_along_rays(client: RawClient) -> None:
    lidar = camera_pb2.SpinningLidar(row_elevations=np.linspace(0.4, -0.4, 24), column_azimuths=np.linspace(0, 6, 32))
    camera = bare_camera(sensor=camera_pb2.SensorCamera(lidar=lidar))
    along = gaussians_pb2.GaussianSettings(response=gaussians_pb2.RESPONSE_RAY)
    cloud = {**GAUSSIANS, "means": GAUSSIANS["means"] - GAUSSIANS["means"].mean(axis=0)}
    found = image(client, cloud, cameras=[camera])
    np.testing.assert_array_equal(found, image(client, cloud, cameras=[camera], gaussians=along))
    assert found.any()


@pytest.mark.parametrize("camera", [opencv_camera(x=0.5), pulsar_camera()], ids=["opencv", "pulsar"])
def test_the_depth_range_of_spheres_ends_behind_the_scene(client: RawClient, camera: camera_pb2.Camera) -> None:
    ref = client.put(SPHERES).scene.scene_id
    hits: Callable[..., Any] = lambda **settings: client.render(  # noqa: E731
        spec_of(camera, scene_id=ref, outputs=["hits"], **settings)
    ).arrays["hits"]
    for _ in range(3):
        np.testing.assert_array_equal(hits(max_depth=0, **NEAR), hits(max_depth=100, **NEAR))
    # The range ends behind the spheres of this call, not behind the stored ones.
    moved = {name: array * np.float32(3) if name == "positions" else array for name, array in SPHERES.items()}
    far = client.render(spec_of(camera, outputs=["hits"], max_depth=0, **NEAR), cloud=moved).arrays["hits"]
    np.testing.assert_array_equal(
        far, client.render(spec_of(camera, outputs=["hits"], max_depth=100, **NEAR), cloud=moved).arrays["hits"]
    )


def test_gradients_are_those_of_the_depth_range_that_was_drawn(client: RawClient) -> None:
    ref = client.put(SPHERES).scene.scene_id
    spec = spec_of(opencv_camera(), scene_id=ref, max_depth=0)
    reply = client.render(spec, retain=True)
    upstream = {"color": color_gradient(1, 48, 64, 3)}
    kept = client.backward(upstream, context_id=reply.header.context_id).arrays
    anew = client.backward(upstream, spec=spec).arrays
    assert kept["positions"].any()
    for name, gradient in kept.items():
        np.testing.assert_array_equal(gradient, anew[name])
