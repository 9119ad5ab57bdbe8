"""Cached cameras keep nothing of a request but their known fields."""

from __future__ import annotations

import pytest

from lumigrad.server.engines import cameras, spheres
from lumigrad.v1 import camera_pb2
from support.calls.raw_calls import opencv_camera


@pytest.mark.parametrize(
    ("create", "cache"),
    [
        (lambda camera: cameras._camera(camera, "cameras[0]", as_sensor=False), cameras._known_camera),
        (lambda camera: spheres._camera(camera, "cameras[0]"), spheres._known_camera),
    ],
    ids=["gaussians", "spheres"],
)
def test_unknown_fields_are_not_kept(create, cache) -> None:
    encoded = opencv_camera(32, 24).SerializeToString()
    # An unknown field, 2000, of 100 bytes, in the camera and in its model.
    unknown = b"\x82\x7d\x64" + bytes(100)
    nested = camera_pb2.Camera.FromString(encoded)
    nested.opencv.MergeFromString(unknown)
    cache.cache_clear()
    for extra in (encoded, encoded + unknown, nested.SerializeToString()):
        create(camera_pb2.Camera.FromString(extra))
    assert len(nested.SerializeToString()) > len(encoded) + 100
    assert cache.cache_info().currsize == 1
