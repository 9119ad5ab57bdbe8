"""A stored scene whose pictures keep the device busy for as long as a test needs, for tests that use the client."""

from __future__ import annotations

from typing import Any

from lumigrad.client import Camera, Spheres
from support.calls.raw_calls import sphere_cloud

# Each pixel blends thousands of spheres, which takes ten seconds or more unless the call is cancelled.
CAMERAS = [Camera.look_at((0.0, 0.0, 0.0), (0.0, 0.0, 6.0), up=(0, -1, 0), width=256, height=256)] * 200
SETTINGS: dict[str, Any] = {"gamma": 1.0, "outputs": ("alpha",), "timeout_s": 120.0}


def slow_spheres() -> Spheres:
    """Spheres one behind another, in front of the cameras."""
    return Spheres(**sphere_cloud(5000, radius=1.0, seed=99))
