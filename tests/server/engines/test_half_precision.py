"""The field `precision` of the contract, which has no effect."""

from __future__ import annotations

import numpy as np

from lumigrad.v1 import gaussians_pb2, render_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, color_gradient, opencv_camera

CLOUD = gaussian_cloud(40)
WIDTH, HEIGHT = 48, 36


def spec_of(precision: int) -> render_pb2.RenderSpec:
    return gaussian_spec(opencv_camera(WIDTH, HEIGHT), precision=precision)


def test_images_and_gradients_are_those_of_full_precision(client: RawClient) -> None:
    upstream = {"color": color_gradient(1, HEIGHT, WIDTH, 3)}
    full, half = (
        {**client.render(spec_of(each), cloud=CLOUD, retain=True).arrays}
        | client.backward(upstream, spec=spec_of(each), cloud=CLOUD).arrays
        for each in (gaussians_pb2.PRECISION_FULL, gaussians_pb2.PRECISION_HALF)
    )
    assert full.keys() == half.keys() and full["color"].any() and full["means"].any()
    for name, array in full.items():
        np.testing.assert_array_equal(half[name], array)
