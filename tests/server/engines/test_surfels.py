"""Surfels over the network: the kernels' results, and refusals that name field, limit and value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.v1 import camera_pb2, gaussians_pb2, render_pb2
from support.calls.gaussian_calls import (
    camera_of,
    gaussian_cloud,
    gaussian_spec,
    inria_camera,
    kernel_camera,
    same_bits,
)
from support.calls.raw_calls import RawClient, color_gradient, failure, opencv_camera, violation
from support.calls.raw_training import RawTraining, start_of
from support.gaussians.sensor_cases import CASES

SURFEL = gaussians_pb2.PRIMITIVE_SURFEL
CLOUD = gaussian_cloud(40)
WIDTH, HEIGHT = 48, 36


def surfels(*cameras: Any, **settings: Any) -> render_pb2.RenderSpec:
    return gaussian_spec(*(cameras or (opencv_camera(WIDTH, HEIGHT),)), primitive=SURFEL, **settings)


def test_surfels_are_the_kernels_own(client: RawClient) -> None:
    outputs = ("color", "alpha", "depth", "expected_depth", "means2d", "radii", "depths", "contributors", "ids")
    outputs += gaussians.ON_SURFELS
    camera = camera_of()
    scene = gaussians.Gaussians(**{name: torch.from_numpy(value) for name, value in CLOUD.items()})
    settings = gaussians.Settings(primitive="surfel")
    expected = gaussians.forward(scene, [kernel_camera(camera)], settings, outputs=outputs, retain=True)
    spec = surfels(camera, outputs=outputs)
    found = client.render(spec, cloud=CLOUD, retain=True)
    same_bits(found.arrays, expected.outputs)
    assert found.arrays["alpha"].max() > 0.3 and found.arrays["distortion"].max() > 0
    image = color_gradient(1, camera.height, camera.width)
    upstream = {"color": color_gradient(1, camera.height, camera.width, 3), "median_depth": image, "distortion": image}
    upstream |= {"normals": upstream["color"], "surface_normals": upstream["color"]}
    wanted = ("means", "quats", "scales", "opacities", "sh", "cameras", "means2d", "means2d_abs")
    assert expected.state is not None
    gradients = gaussians.backward(
        expected.state, {name: torch.from_numpy(value) for name, value in upstream.items()}, wanted
    ).gradients
    kept = client.backward(upstream, context_id=found.header.context_id, wanted=wanted)
    same_bits(kept.arrays, gradients)
    same_bits(client.backward(upstream, spec=spec, cloud=CLOUD, wanted=wanted).arrays, gradients)
    assert kept.arrays["scales"].any() and not kept.arrays["scales"][:, 2].any()


def sensor() -> camera_pb2.Camera:
    lens = CASES["pinhole"].lens
    camera = camera_pb2.Camera(width=WIDTH, height=HEIGHT)
    camera.sensor.start.rotation[:], camera.sensor.start.translation[:] = np.eye(3).ravel(), np.zeros(3)
    camera.sensor.pinhole.fx, camera.sensor.pinhole.fy = lens.fx, lens.fy
    return camera


PINHOLE = "an opencv camera, a pinhole without distortion or shutter,"
REFUSED: list[tuple[Any, str, str]] = [
    (gaussian_spec(opencv_camera(WIDTH, HEIGHT), primitive=9), "gaussians.primitive", "expected a known value, got 9"),
    (surfels(sensor()), "cameras[0].sensor", f"expected {PINHOLE} with PRIMITIVE_SURFEL, got sensor"),
    (surfels(inria_camera()), "cameras[0].inria", f"expected {PINHOLE} with PRIMITIVE_SURFEL, got inria"),
    (surfels(camera_of(camera_pb2.PROJECTION_FISHEYE)), "cameras[0].opencv.projection",
     "expected a pinhole with PRIMITIVE_SURFEL, got fisheye"),
    (surfels(camera_of(), camera_of(distortion=(0.1, 0, 0, 0))), "cameras[1].opencv.distortion",
     "expected none with PRIMITIVE_SURFEL, got some"),
    (surfels(projection_method=gaussians_pb2.PROJECTION_METHOD_UNSCENTED), "gaussians.projection_method",
     "expected none, or PROJECTION_METHOD_JACOBIAN, with PRIMITIVE_SURFEL, got PROJECTION_METHOD_UNSCENTED"),
    (surfels(response=gaussians_pb2.RESPONSE_RAY), "gaussians.response",
     "expected the default with PRIMITIVE_SURFEL, got ray"),
    (surfels(semantics=gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_DEPTH), "gaussians.semantics",
     "expected exact or gsplat with PRIMITIVE_SURFEL, got inria_depth"),
    (surfels(pixel_center=0), "gaussians.pixel_center", "expected 0.5 with PRIMITIVE_SURFEL, got 0"),
    (surfels(tile_size=5), "gaussians.tile_size", "expected None or one of (4, 8, 16), got 5"),
    (surfels(antialiased=True), "gaussians.antialiased", "expected false with PRIMITIVE_SURFEL, got True"),
    (surfels(eps2d=0.3), "gaussians.eps2d", "expected none with PRIMITIVE_SURFEL, which is not blurred, got 0.3"),
    (surfels(outputs=["inverse_depth"]), "outputs", "expected one of color, alpha, transmittance, depth"),
    (surfels(outputs=["conics"]), "outputs", "got conics"),
    (gaussian_spec(opencv_camera(WIDTH, HEIGHT), outputs=["distortion"]), "outputs", "got distortion"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "field", "text"), REFUSED)
def test_refusals_name_field_limit_and_value(client: RawClient, spec: Any, field: str, text: str) -> None:
    found, description = violation(failure(lambda: client.render(spec, cloud=CLOUD)))
    assert found == f"spec.{field}"
    assert text in description


def test_surfels_need_quats_and_scales(client: RawClient) -> None:
    cloud = gaussian_cloud(40, covariances=True)
    found, description = violation(failure(lambda: client.render(surfels(), cloud=cloud)))
    assert found == "spec.gaussians.primitive" and "quats and scales" in description


def test_output_gradients_are_those_of_the_primitive(client: RawClient) -> None:
    image = color_gradient(1, HEIGHT, WIDTH)
    volumes = gaussian_spec(opencv_camera(WIDTH, HEIGHT))
    for spec, name in ((surfels(), "inverse_depth"), (volumes, "distortion")):
        call = failure(lambda spec=spec, name=name: client.backward({name: image}, spec=spec, cloud=CLOUD))
        found, description = violation(call)
        assert found == "spec.output_gradients[0].name" and name in description


def test_losses_of_surfaces_are_for_surfels(client: RawClient) -> None:
    for name in ("normal", "distortion"):
        start = start_of(client)
        setattr(start.spec.loss, name, 0.1)
        found, description = violation(failure(RawTraining(client, start).reply))
        assert found == f"start.spec.loss.{name}"
        assert "expected 0 unless the primitive is PRIMITIVE_SURFEL" in description


def test_losses_of_surfaces_begin_when_they_should(client: RawClient) -> None:
    start = start_of(client)
    start.spec.gaussians.primitive = SURFEL
    start.spec.loss.normal, start.spec.loss.distortion, start.spec.loss.surface_start = 0.05, 0.5, 2
    training = RawTraining(client, start)
    training.started()
    done = [training.step(number) for number in range(4)]
    for step in done[:2]:
        assert not {"normal", "distortion"} & set(step.terms)
    for step in done[2:]:
        terms = step.terms
        assert 0 < terms["normal"] < 2 and terms["distortion"] > 0
        image = 0.8 * terms["l1"] + 0.2 * (1 - terms["ssim"])
        assert step.loss == pytest.approx(image + 0.05 * terms["normal"] + 0.5 * terms["distortion"], rel=1e-4)
    training.finish()
