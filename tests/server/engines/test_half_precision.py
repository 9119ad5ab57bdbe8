"""Half precision over the network: what a worker accepts, refuses and reserves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.gaussians import gaussian_plan
from lumigrad.v1 import gaussians_pb2, render_pb2
from support.backends.footprint import CPU, CUDA
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, color_gradient, failure, opencv_camera, violation
from support.calls.raw_training import RawTraining, start_of

HALF, SURFEL = gaussians_pb2.PRECISION_HALF, gaussians_pb2.PRIMITIVE_SURFEL
CLOUD = gaussian_cloud(40)
WIDTH, HEIGHT = 48, 36


def spec_of(**settings: Any) -> render_pb2.RenderSpec:
    return gaussian_spec(opencv_camera(WIDTH, HEIGHT), **{"precision": HALF, **settings})


def test_a_cpu_renders_in_full(client: RawClient) -> None:
    full = client.render(spec_of(precision=gaussians_pb2.PRECISION_FULL), cloud=CLOUD)
    half = client.render(spec_of(), cloud=CLOUD)
    np.testing.assert_array_equal(half.arrays["color"], full.arrays["color"])
    assert full.arrays["color"].any()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"precision": 9}, "expected a known value, got 9"),
        ({"deterministic": True}, "expected 'full' with deterministic, got 'half'"),
        ({"response": gaussians_pb2.RESPONSE_RAY}, "expected 'full' with response 'ray', got 'half'"),
        ({"primitive": SURFEL}, "expected 'full' with primitive 'surfel', got 'half'"),
        ({"outputs": ("color", "ids")}, "expected PRECISION_FULL with the output ids, got PRECISION_HALF"),
    ],
)
def test_what_needs_full_precision_refuses_half(client: RawClient, settings: dict[str, Any], text: str) -> None:
    found, description = violation(failure(lambda: client.render(spec_of(**settings), cloud=CLOUD)))
    assert found == "spec.gaussians.precision" and text in description


def test_gradients_refuse_half_precision(client: RawClient) -> None:
    upstream = {"color": color_gradient(1, HEIGHT, WIDTH, 3)}
    for call, field in (
        (lambda: client.render(spec_of(), cloud=CLOUD, retain=True), "spec.gaussians.precision"),
        (lambda: client.backward(upstream, spec=spec_of(), cloud=CLOUD), "spec.render.gaussians.precision"),
    ):
        found, description = violation(failure(call))
        assert found == field and "expected 'full' with retain" in description
    start = start_of(client)
    start.spec.gaussians.precision = HALF
    found, description = violation(failure(RawTraining(client, start).reply))
    assert found == "start.spec.gaussians.precision"
    assert "expected PRECISION_FULL in trainings, got PRECISION_HALF" in description


def test_the_memory_of_full_precision_is_reserved() -> None:
    shapes, limits = {name: value.shape for name, value in CLOUD.items()}, Limits.of(Config())
    full, half = (gaussian_plan(spec_of(precision=each), shapes, limits, "spec") for each in (0, HALF))
    for device in (CPU, CUDA):
        sizes = [plan.forward_bytes(plan.outputs, retain=False, device=device) for plan in (full, half)]
        assert sizes[0] == sizes[1]
