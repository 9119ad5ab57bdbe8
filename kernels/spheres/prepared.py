"""Renders that differ in the poses of their cameras only: checked and prepared once, and then drawn without Python."""

from __future__ import annotations

from collections.abc import Sequence

from lumigrad.kernels import _native
from lumigrad.kernels.prepared import Place
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.camera_sources import OpenCVSource
from lumigrad.kernels.spheres.forward import TRACKED
from lumigrad.kernels.spheres.inputs import Inputs, check_cameras, depth_range
from lumigrad.kernels.spheres.settings import Settings


def prepare(
    inputs: Inputs,
    cameras: Sequence[Camera],
    settings: Settings,
    places: Sequence[Place],
    payload_bytes: int,
    head: bytes,
) -> _native.NativeRender:
    """Prepares renders of one scene by cameras as these from other poses.

    Args:
        inputs: The scene, which must not change while the result is in use.
        cameras: Created by `Camera.opencv`.
        settings: How to blend.
        places: The outputs, each once, of `OUTPUTS`.
        payload_bytes: The size of the payload.
        head: The bytes of a reply before its payload.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_cameras(cameras)
    lenses = []
    for camera in cameras:
        assert isinstance(camera.source, OpenCVSource)
        lenses.append(camera.source.lens(camera.width, camera.height))
    near, far = depth_range(cameras, settings)
    native = settings.native(any(place.name in TRACKED for place in places))
    return _native.sphere_render(lenses, near, far, native, places, payload_bytes, head, **inputs.arrays())
