"""What a data set says of a lens, by the names that COLMAP gives to models, as a camera."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.client.arrays import Float64
from lumigrad.client.camera import Camera
from lumigrad.client.camera_models import Projection

# Parameters of each model in COLMAP's order.
PARAMETERS = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fx", "fy", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2"),
    "FULL_OPENCV": ("fx", "fy", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "OPENCV_FISHEYE": ("fx", "fy", "cx", "cy", "k1", "k2", "k3", "k4"),
}
READABLE = ", ".join(PARAMETERS)
_DISTORTION = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")


@dataclass(frozen=True)
class Intrinsics:
    """A calibrated lens.

    Attributes:
        model: one of `PARAMETERS`.
        width: picture width in pixels.
        height: picture height in pixels.
        values: of the model's parameters; those that are absent are 0.
    """

    model: str
    width: int
    height: int
    values: dict[str, float]

    @property
    def unrenderable(self) -> str:
        """Why no picture can be made with it; empty: one can."""
        if self.model not in PARAMETERS:
            return f"the camera model {self.model} is not supported; expected {READABLE}"
        if self.model == "OPENCV_FISHEYE" and any(self.values.get(name, 0.0) for name in _DISTORTION):
            return "OPENCV_FISHEYE is supported without distortion only, k1 = k2 = k3 = k4 = 0; undistort the pictures"
        return ""

    def camera(self, rotation: Float64, translation: Float64) -> Camera:
        """At a pose, world to camera: x right, y down, z forward."""
        values = self.values
        coefficients = [values.get(name, 0.0) for name in _DISTORTION]
        # As few as OpenCV takes.
        kept = 8 if any(coefficients[5:]) else 5 if coefficients[4] else 4 if any(coefficients) else 0
        projection: Projection = "fisheye" if self.model == "OPENCV_FISHEYE" else "pinhole"
        return Camera.opencv(
            values.get("fx", values.get("f", 0.0)),
            values.get("fy", values.get("f", 0.0)),
            values.get("cx", self.width / 2),
            values.get("cy", self.height / 2),
            rotation,
            translation,
            self.width,
            self.height,
            model=projection,
            distortion=coefficients[:kept],
        )
