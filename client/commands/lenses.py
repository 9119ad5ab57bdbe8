"""The lens and the shutter of `lumigrad render`, in place of the cameras' own."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.commands.options import FILE, numbers, option
from lumigrad.client.datasets import View
from lumigrad.client.datasets.calibration import Calibration
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel, Shutter
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.lenses import FisheyeLens, FThetaLens, Lens, OrthographicLens, PinholeLens
from lumigrad.client.values.rotations import axis_angle_rotation
from lumigrad.client.values.spheres import Spheres

MODELS = ("pinhole", "opencv", "fisheye", "ftheta", "orthographic")
_MOST_COEFFICIENTS = {"opencv": 12, "fisheye": 4, "ftheta": 6}
_SHUTTERS = ("top_to_bottom", "bottom_to_top", "left_to_right", "right_to_left")
# Beyond this angle from the axis, radians, order by z does not describe what hides what.
_WIDE = math.radians(80)
_ANGLES = 4096


def add_lens(group: argparse._ActionsContainer) -> None:
    """Declares the options."""
    help_text = "lens of the pictures of Gaussians, in place of the camera's, with its vertical field of view"
    option(group, "--camera-model", help_text, choices=MODELS)
    help_text = (
        "of --camera-model: opencv k1,k2[,p1,p2[,k3..k6[,s1..s4]]]; fisheye k1..k4; ftheta the polynomial of the angle "
        "from the axis in pixels, from its constant term on (default: none; ftheta: proportional)"
    )
    option(group, "--coefficients", help_text, type=numbers, metavar="K1,K2,..")
    help_text = "a .json file of a lens, as NCore writes camera models, in place of the camera's"
    option(group, "--lens", help_text, **FILE)
    help_text = "in which order rows or columns are exposed, while the camera makes --motion"
    option(group, "--shutter", help_text, choices=_SHUTTERS)
    help_text = (
        "how the camera moves during the exposure, in its own axes (right, down, forward): scene units, and degrees "
        "about these axes"
    )
    option(group, "--motion", help_text, type=numbers, metavar="X,Y,Z[,A,B,C]")


@dataclass(frozen=True)
class LensOptions:
    """The lens that the options ask for.

    Attributes:
        model: one of `MODELS`; None: the camera's own.
        coefficients: the model's coefficients.
        calibration: the calibration in the file; None without a file.
        shutter: the shutter; None: the camera's own.
        motion: [3] translation of the camera, in its axes.
        turn: [3, 3] rotation of the camera.
    """

    model: str | None
    coefficients: tuple[float, ...]
    calibration: Calibration | None
    shutter: Shutter | None
    motion: Float64
    turn: Float64

    @staticmethod
    def of(arguments: argparse.Namespace) -> LensOptions:
        """Checks the options."""
        model, path = arguments.camera_model, arguments.lens
        if model is not None and path is not None:
            raise InvalidArgument.of("lens", "expected without --camera-model; leave one of them out")
        if path is not None and arguments.fov is not None:
            raise InvalidArgument.of("fov", "is defined by --lens; leave it out")
        given = arguments.coefficients or ()
        if arguments.coefficients is not None and model not in _MOST_COEFFICIENTS:
            raise InvalidArgument.of("coefficients", "expected with --camera-model opencv, fisheye or ftheta")
        if len(given) > (most := _MOST_COEFFICIENTS.get(model, 0)):
            raise InvalidArgument.of("coefficients", f"expected at most {most} of the lens {model}, got {len(given)}")
        if (arguments.shutter is None) != (arguments.motion is None):
            raise InvalidArgument.of("shutter", "expected together with --motion, which is how the camera moves")
        motion = arguments.motion or (0.0,) * 6
        if len(motion) not in (3, 6):
            raise InvalidArgument.of("motion", f"expected X,Y,Z or X,Y,Z,A,B,C, got {len(motion)} numbers")
        calibration = None if path is None else Calibration.load(Path(path))
        turn = axis_angle_rotation(np.radians((*motion[3:], 0.0, 0.0, 0.0)[:3]))
        return LensOptions(model, given, calibration, arguments.shutter, np.array(motion[:3]), turn)

    @property
    def size(self) -> tuple[int, int] | None:
        """The picture size of the file's lens; None without one."""
        return None if self.calibration is None else (self.calibration.width, self.calibration.height)

    def check_for_surfels(self) -> None:
        """Raises InvalidArgument if the options change the camera, because surfels need plain pinholes."""
        given = {"camera_model": self.model, "lens": self.calibration, "shutter": self.shutter}
        for name, value in given.items():
            if value is not None:
                need = "surfels, which need a pinhole without distortion or shutter"
                raise InvalidArgument.of(name, f"expected none with {need}; leave it out, or pass --primitive volumes")

    def applied(self, views: Sequence[View], scene: Spheres | Gaussians) -> list[View]:
        """Returns the views with this lens and shutter."""
        if self.model is None and self.calibration is None and self.shutter is None:
            return list(views)
        if not isinstance(scene, Gaussians):
            raise InvalidArgument.of("camera_model", "expected with Gaussians; spheres are seen through pinholes")
        return [replace(view, camera=self._camera(view.camera, scene)) for view in views]

    def _camera(self, camera: Camera, scene: Gaussians) -> Camera:
        model, size = camera.model, (camera.width, camera.height)
        if not isinstance(model, OpenCVModel | SensorModel):
            raise InvalidArgument.of("camera", f"expected OpenCV's or a sensor's, got {type(model).__name__}")
        glass = model.windshield if isinstance(model, SensorModel) else None
        lens, shutter = _own_lens(model), model.shutter if isinstance(model, SensorModel) else "global"
        if self.calibration is not None:
            found = self.calibration.resized(*size)
            lens, glass = found.lens, found.windshield
        elif self.model is not None:
            lens, glass = _made(self.model, self.coefficients, camera, scene), None
        end: dict[str, Any] = {}
        if self.shutter is not None:
            rotation = self.turn.T @ model.rotation
            translation = self.turn.T @ (model.translation - self.motion)
            shutter, end = self.shutter, {"end_rotation": rotation, "end_translation": translation}
        elif isinstance(model, SensorModel) and model.shutter != "global":
            end = {"end_rotation": model.end_rotation, "end_translation": model.end_translation}
        return Camera.sensor(lens, model.rotation, model.translation, *size, shutter=shutter, windshield=glass, **end)


def order_settings(views: Sequence[View]) -> dict[str, Any]:
    """Returns the setting that orders Gaussians by distance for wide lenses; none for other lenses."""
    is_wide = any(_largest_angle(view.camera) > _WIDE for view in views)
    return {"depth_order": "distance"} if is_wide else {}


def _largest_angle(camera: Camera) -> float:
    """Returns the angle from the axis, radians, at which a fisheye or f-theta lens shows the corners; 0 for others."""
    model = camera.model
    lens = model.lens if isinstance(model, SensorModel) else None
    if isinstance(lens, FThetaLens):
        return lens.max_angle
    if not isinstance(lens, FisheyeLens):
        return 0.0
    angles = np.linspace(0.0, lens.max_angle or math.pi, _ANGLES)
    radial = np.polynomial.Polynomial([0.0, 1.0, *(x for k in lens.radial for x in (0.0, k))])
    return float(angles[np.searchsorted(radial(angles) * lens.fy, _corner(camera)).clip(max=_ANGLES - 1)])


def _corner(camera: Camera) -> float:
    return math.hypot(camera.width, camera.height) / 2


def _own_lens(model: OpenCVModel | SensorModel) -> Lens:
    if isinstance(model, SensorModel):
        return model.lens
    film: dict[str, Any] = {"fx": model.fx, "fy": model.fy, "cx": model.cx, "cy": model.cy}
    if model.projection != "pinhole":
        return (FisheyeLens if model.projection == "fisheye" else OrthographicLens)(**film)
    return _opencv(model.distortion, film)


def _opencv(distortion: Sequence[float], film: dict[str, Any]) -> PinholeLens:
    """Returns the lens with coefficients in OpenCV's order."""
    radial, prism = (*distortion[:2], *distortion[4:8]), tuple(distortion[8:12])
    return PinholeLens(**film, radial=radial, tangential=tuple(distortion[2:4]), thin_prism=prism)


def _made(kind: str, coefficients: tuple[float, ...], camera: Camera, scene: Gaussians) -> Lens:
    """Returns a lens with the vertical field of view that a camera's paraxial focal length gives."""
    focal = camera.paraxial_focal_lengths[1]
    center: dict[str, Any] = {"cx": camera.width / 2, "cy": camera.height / 2}
    if kind in ("pinhole", "opencv"):
        return _opencv(coefficients, {"fx": focal, "fy": focal, **center})
    if kind == "orthographic":
        assert isinstance(camera.model, OpenCVModel | SensorModel)
        depths = scene.means.reshape(-1, 3) @ camera.model.rotation[2] + camera.model.translation[2]
        ahead = depths[depths > 0]
        scale = focal / float(np.median(ahead)) if len(ahead) else focal
        return OrthographicLens(fx=scale, fy=scale, **center)
    # Pixels per radian that keep the vertical field of view.
    slope = camera.height / 2 / math.atan(camera.height / 2 / focal)
    if kind == "fisheye":
        return FisheyeLens(fx=slope, fy=slope, radial=coefficients, **center)
    polynomial = coefficients or (0.0, slope)
    angles = np.linspace(0.0, math.pi, _ANGLES)
    distances = np.polynomial.Polynomial(polynomial)(angles)
    shown = (distances < 1.01 * _corner(camera)) & np.append(True, np.diff(distances) > 0)
    # The polynomial may already fall between the last two angles that rise.
    last = _ANGLES - 1 if shown.all() else int(np.argmin(shown)) - 2
    return FThetaLens(max_angle=float(angles[max(last, 1)]), angle_to_pixel_distance=polynomial, **center)
