"""The scene of a call, and checks of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lumigrad.kernels.checks import check, check_tensor, finite_range
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.camera_sources import OpenCVSource
from lumigrad.kernels.gaussians.sensor import SensorSource
from lumigrad.kernels.gaussians.settings import Settings

_COEFFICIENTS = (1, 4, 9, 16, 25)
_TENSORS = ("means", "opacities", "quats", "scales", "covariances", "sh", "colors")


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaussians:
    """N Gaussians, or S scenes of N Gaussians each; float32 tensors on one device, stored detached and contiguous.

    With a leading S a call has S * C cameras: cameras s * C to s * C + C - 1 show scene s.

    Attributes:
        means: [N, 3] or [S, N, 3], world frame, scene units. N may be 0.
        opacities: [N] or [S, N], in [0, 1] (see `check_values`).
        quats: [.., N, 4] w, x, y, z. The engine normalises them (not with Inria's semantics).
        scales: [.., N, 3] standard deviations along the axes, scene units.
        covariances: [.., N, 6] xx xy xz yy yz zz, squared scene units, instead of quats and scales.
        sh: [.., N, K, D] spherical harmonics, K = 1, 4, 9, 16 or 25 coefficients for each of D channels.
        colors: Instead of sh: [.., N, D], or per camera [V, N, D] (one scene) or [S, V / S, N, D].

    Raises:
        ArgumentError: An attribute has the wrong shape, type or device; names the first one.
    """

    means: torch.Tensor
    opacities: torch.Tensor
    quats: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    covariances: torch.Tensor | None = None
    sh: torch.Tensor | None = None
    colors: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.means, torch.Tensor) or self.means.dim() not in (2, 3):
            actual = f"shape {list(self.means.shape)}" if hasattr(self.means, "shape") else type(self.means).__name__
            raise ArgumentError("means", "a float32 tensor of shape [N, 3] or [S, N, 3]", actual)
        lead = tuple(self.means.shape[:-1])
        self._check("means", (*lead, 3))
        if self.count >= 2**31 - 1:
            raise ArgumentError("means", "fewer than 2**31 - 1 Gaussians", f"{self.count}")
        if self.scenes < 1:
            raise ArgumentError("means", "at least one scene", f"shape {list(self.means.shape)}")
        self._check("opacities", lead)
        shape = [name for name in ("quats", "scales", "covariances") if getattr(self, name) is not None]
        if shape not in (["quats", "scales"], ["covariances"]):
            raise ArgumentError("quats", "quats and scales, or covariances instead", f"{shape or 'none'}")
        for name, last in (("quats", 4), ("scales", 3), ("covariances", 6)):
            if name in shape:
                self._check(name, (*lead, last))
        self._check_colors(lead)
        given = {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}
        for name, tensor in given.items():
            object.__setattr__(self, name, tensor.detach().contiguous())

    def _check(self, name: str, shape: tuple[int | None, ...]) -> None:
        check_tensor(name, getattr(self, name), shape, self.means.device, "means")

    def _check_colors(self, lead: tuple[int, ...]) -> None:
        given = [name for name in ("sh", "colors") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ArgumentError("colors", "either sh or colors", " and ".join(given) or "none")
        if self.sh is not None:
            self._check("sh", (*lead, None, None))
            if self.sh.shape[-2] not in _COEFFICIENTS:
                raise ArgumentError("sh", f"K in {_COEFFICIENTS}: [.., N, K, D]", f"shape {list(self.sh.shape)}")
        elif getattr(self.colors, "ndim", 0) == len(lead) + 2:
            self._check("colors", (*lead[:-1], None, lead[-1], None))
        else:
            self._check("colors", (*lead, None))
        if self.channels < 1:
            raise ArgumentError(given[0], "at least one channel", f"shape {list(getattr(self, given[0]).shape)}")

    @property
    def batched(self) -> bool:
        """Whether there is a leading S."""
        return self.means.dim() == 3

    @property
    def scenes(self) -> int:
        """S; 1 without it."""
        return self.means.shape[0] if self.batched else 1

    @property
    def count(self) -> int:
        """N."""
        return self.means.shape[-2]

    @property
    def channels(self) -> int:
        """D."""
        tensor = self.sh if self.sh is not None else self.colors
        assert tensor is not None
        return tensor.shape[-1]

    @property
    def per_camera(self) -> bool:
        """Whether colours are given for each camera."""
        return self.colors is not None and self.colors.dim() == self.means.dim() + 1

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.means.device

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The given tensors, by name."""
        return self._by_name

    def arrays(self) -> Mapping[str, torch.Tensor]:
        """The tensors by the names of the extension's arguments, always with a leading S (colours per camera: V)."""
        return self._by_argument

    # Each call reads both several times.
    @cached_property
    def _by_name(self) -> Mapping[str, torch.Tensor]:
        return {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}

    @cached_property
    def _by_argument(self) -> Mapping[str, torch.Tensor]:
        return {name: native_shape(self, name, tensor) for name, tensor in self._by_name.items()}

    def degree(self, settings: Settings) -> int:
        """The degree of the spherical harmonics in use; -1 if colours are given instead.

        Raises:
            ArgumentError: `settings.sh_degree` is above the stored degree, or set although colours are given.
        """
        if self.sh is None:
            if settings.sh_degree is not None:
                raise ArgumentError("sh_degree", "None, since colors are given", f"{settings.sh_degree}")
            return -1
        stored = _COEFFICIENTS.index(self.sh.shape[-2])
        if settings.sh_degree is None:
            return stored
        if settings.sh_degree > stored:
            raise ArgumentError("sh_degree", f"at most {stored}, the degree stored in sh", f"{settings.sh_degree}")
        return settings.sh_degree


def native_shape(gaussians: Gaussians, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Reshapes a tensor of this attribute's shape for the extension: [S, N, ..], colours per camera [V, N, D]."""
    if name == "colors" and gaussians.per_camera:
        return tensor.flatten(0, 1) if gaussians.batched else tensor
    return tensor if gaussians.batched else tensor[None]


def check_values(gaussians: Gaussians) -> None:
    """Checks the values of a scene, which `forward` does not.

    Quaternions may have any length, including 0.

    Raises:
        ArgumentError: A value is not finite, an opacity is outside [0, 1], or a scale or a variance is negative.
    """
    ranges = {name: finite_range(name, tensor) for name, tensor in gaussians.tensors().items() if tensor.numel()}
    if gaussians.count == 0:
        return
    low, high = ranges["opacities"]
    if not (low >= 0.0 and high <= 1.0):
        raise ArgumentError("opacities", "values in [0, 1]", f"values from {low} to {high}")
    if gaussians.scales is not None and ranges["scales"][0] < 0.0:
        raise ArgumentError("scales", "values >= 0", f"values from {ranges['scales'][0]}")
    if gaussians.covariances is not None:
        low = float(gaussians.covariances[..., [0, 3, 5]].min())
        if low < 0.0:
            raise ArgumentError("covariances", "variances xx, yy, zz >= 0", f"values from {low}")


def check_cameras(gaussians: Gaussians, cameras: Sequence[Camera], settings: Settings) -> None:
    """Checks the cameras of a call against the scene, the settings and each other.

    Raises:
        ArgumentError: The cameras are inconsistent.
    """
    if not isinstance(cameras, Sequence):
        raise ArgumentError("cameras", "a sequence of cameras", type(cameras).__name__)
    if not cameras:
        raise ArgumentError("cameras", "at least one", "none")
    sizes = {(camera.width, camera.height) for camera in cameras}
    if len(sizes) > 1:
        raise ArgumentError("cameras", "one size (width, height) for all of a call", f"{sorted(sizes)}")
    if len(cameras) % gaussians.scenes != 0:
        raise ArgumentError("cameras", f"a multiple of {gaussians.scenes}, the number of scenes", f"{len(cameras)}")
    if settings.inria and any(camera.model != "pinhole" or camera.distorted for camera in cameras):
        expected = f"pinhole cameras without distortion with semantics '{settings.semantics}'"
        raise ArgumentError("cameras", expected, f"{sorted({camera.model for camera in cameras})}")
    if settings.surfels:
        _check_surfels(gaussians, cameras, settings)
    else:
        _check_sensors(gaussians, cameras, settings)
    if gaussians.per_camera:
        colors = gaussians.colors
        assert colors is not None
        views = len(cameras) // gaussians.scenes
        if colors.shape[-3] != views:
            expected = f"colours for {views} cameras of a scene, shape [.., {views}, {gaussians.count}, D]"
            raise ArgumentError("colors", expected, f"shape {list(colors.shape)}")


def _check_surfels(gaussians: Gaussians, cameras: Sequence[Camera], settings: Settings) -> None:
    for camera in cameras:
        perfect = isinstance(camera.source, OpenCVSource) and camera.model == "pinhole" and not camera.distorted
        if not perfect:
            actual = "distorted ones" if camera.distorted else type(camera.source).__name__
            actual = camera.model if camera.model != "pinhole" else actual
            raise ArgumentError("cameras", "OpenCV's pinholes without distortion with primitive 'surfel'", actual)
    check(not settings.inria, "semantics", "'exact' or 'gsplat' with primitive 'surfel'", settings.semantics)
    of_sensors = ("projection_method", "unscented", "depth_order", "tile_bounds", "response")
    for name in (*of_sensors, "antialiased", "pixel_center"):
        value = getattr(settings, name)
        check(value == getattr(Settings, name), name, "the default with primitive 'surfel'", value)
    if gaussians.covariances is not None:
        raise ArgumentError("covariances", "quats and scales instead, with primitive 'surfel'", "covariances")


def _check_sensors(gaussians: Gaussians, cameras: Sequence[Camera], settings: Settings) -> None:
    sources = [camera.source for camera in cameras if isinstance(camera.source, SensorSource)]
    if not sources:
        for name, value in settings.sensor_settings.items():
            raise ArgumentError(name, "the default unless the cameras are sensors", f"{value}")
        return
    if len(sources) < len(cameras):
        raise ArgumentError("cameras", "either all sensors, or none", f"{len(sources)} of {len(cameras)}")
    kinds = {type(source.lens).__name__ for source in sources}
    if len(kinds) > 1:
        raise ArgumentError("cameras", "sensors with one kind of lens", f"{sorted(kinds)}")
    if settings.inria:
        raise ArgumentError("cameras", f"none that are sensors with semantics '{settings.semantics}'", "sensors")
    for name, expected in (("antialiased", False), ("pixel_center", 0.5)):
        value = getattr(settings, name)
        if value != expected:
            raise ArgumentError(name, f"{expected} with sensors", f"{value}")
    if settings.projection_method == "jacobian":
        check(cameras[0].lidar is None, "projection_method", "'unscented' with lidars", "'jacobian'")
        rolling = any(camera.is_rolling for camera in cameras)
        check(not rolling, "projection_method", "'unscented' with rolling shutters", "'jacobian'")
    if gaussians.covariances is not None:
        raise ArgumentError("covariances", "quats and scales instead, with sensors", "covariances")


def lidar_tables(cameras: Sequence[Camera], device: torch.device) -> torch.Tensor | None:
    """The angles of lidars [V, 2 H + W], f64, on the device; None for other cameras."""
    tables = [camera.lidar.table() for camera in cameras if camera.lidar is not None]
    return torch.from_numpy(np.stack(tables)).to(device) if tables else None


def check_background(background: torch.Tensor | None, gaussians: Gaussians, views: int) -> torch.Tensor | None:
    """Expands a background [D] or [V, D] to [V, D], contiguous; None, which means 0, stays None.

    Raises:
        ArgumentError: The background has the wrong shape, type or device.
    """
    if background is None:
        return None
    shape = (gaussians.channels,) if getattr(background, "ndim", 1) == 1 else (views, gaussians.channels)
    check_tensor("background", background, shape, gaussians.device, "means")
    return background.detach().expand(views, gaussians.channels).contiguous()
