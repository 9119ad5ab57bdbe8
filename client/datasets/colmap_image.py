"""An image of a COLMAP reconstruction."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.client.arrays import Float64


@dataclass(frozen=True)
class ColmapImage:
    """A photograph with its pose.

    Attributes:
        name: of its file.
        camera_id: which camera took it.
        quaternion: (w, x, y, z) world to camera; x right, y down, z forward.
        translation: [3] world to camera.
    """

    name: str
    camera_id: int
    quaternion: tuple[float, float, float, float]
    translation: Float64
