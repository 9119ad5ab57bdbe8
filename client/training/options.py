"""Options of a training: losses, learning rates, density control."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import numpy as np

from lumigrad.client.base.arguments import number, truth, values_of, whole_number
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.v1 import density_pb2, training_pb2

_MOST = 1 << 40


@dataclass(frozen=True, kw_only=True)
class AdaptiveDensity:
    """Adaptive density control (Kerbl et al. 2023): clones or splits Gaussians with large gradients, prunes faint ones.

    Attributes:
        start: first step at which Gaussians are added and pruned.
        stop: last step at which Gaussians are added and pruned.
        every: interval, steps.
        reset_every: interval at which opacities are clamped to twice `prune_opacity`, steps; 0: never.
        pause_after_reset: number of steps after a reset in which no Gaussians are added.
        grow_gradient: threshold for the mean norm of the gradient of a projected centre, in normalised device
            coordinates.
        grow_scale: Gaussians larger than this fraction of the scene's extent are split, smaller ones cloned.
        prune_scale: Gaussians larger than this fraction of the extent are pruned after the first reset.
        prune_opacity: Gaussians with a lower opacity are pruned; above 0 where opacities are reset.
        grow_screen: Gaussians with a larger radius, as a fraction of the image, are split before `screen_stop`.
        prune_screen: Gaussians with a larger radius, as a fraction of the image, are pruned before `screen_stop`.
        screen_stop: step before which sizes in the image count; 0: they are ignored.
        absolute_gradients: sum absolute values over the pixels (Ye et al. 2024); use a larger `grow_gradient`, 8e-4.
        revised_opacity: compute opacities of split Gaussians as in Bulo et al. (2024).
        max_count: maximum number of Gaussians; 0: the worker's limit.

    Example:
        density = AdaptiveDensity(stop=5_000, grow_gradient=8e-4, absolute_gradients=True, max_count=500_000)
    """

    start: int = 500
    stop: int = 15_000
    every: int = 100
    reset_every: int = 3000
    pause_after_reset: int = 0
    grow_gradient: float = 2e-4
    grow_scale: float = 0.01
    prune_scale: float = 0.1
    prune_opacity: float = 0.005
    grow_screen: float = 0.05
    prune_screen: float = 0.15
    screen_stop: int = 0
    absolute_gradients: bool = False
    revised_opacity: bool = False
    max_count: int = 0

    def message(self, extent: float) -> density_pb2.DensityControl:
        """Returns the protobuf message; `extent` is the radius of the region around the cameras, scene units."""
        values = _checked(self)
        most = values.pop("max_count")
        return density_pb2.DensityControl(adaptive=density_pb2.DefaultStrategy(**values), extent=extent, max_count=most)


@dataclass(frozen=True, kw_only=True)
class Mcmc:
    """3D Gaussian splatting as Markov chain Monte Carlo (Kheradmand et al. 2024): dead Gaussians move to living ones.

    Use it with `Loss(opacity=0.01, scale=0.01)`.

    Attributes:
        cap: maximum number of Gaussians.
        start: first step at which Gaussians are moved and added.
        stop: last step at which Gaussians are moved and added.
        every: interval, steps.
        noise: scale of the noise that each step adds to the means, relative to their learning rate.
        min_opacity: Gaussians with a lower opacity are dead.
        growth: relative growth of the number of Gaussians each time.

    Example:
        density, loss = Mcmc(cap=100_000), Loss(opacity=0.01, scale=0.01)
    """

    cap: int
    start: int = 500
    stop: int = 25_000
    every: int = 100
    noise: float = 5e5
    min_opacity: float = 0.005
    growth: float = 0.05

    def message(self, extent: float) -> density_pb2.DensityControl:
        """Returns the protobuf message; `extent` is the radius of the region around the cameras, scene units."""
        return density_pb2.DensityControl(mcmc=density_pb2.McmcStrategy(**_checked(self)), extent=extent)


def warn_of_room(density: AdaptiveDensity | Mcmc, count: int) -> None:
    """Warns if a training begins with more Gaussians than density control allows; they stay, but none are added."""
    most = density.cap if isinstance(density, Mcmc) else density.max_count
    if 0 < most < count:
        name = "cap" if isinstance(density, Mcmc) else "max_count"
        warn_caller(f"{name}: the training begins with {count:,} Gaussians, more than {most:,}: none are added")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "int": partial(whole_number, least=0, largest=_MOST),
    "float": number,
    "bool": truth,
}


def _checked(options: AdaptiveDensity | Mcmc) -> dict[str, Any]:
    """Returns the values of options by name; raises InvalidArgument for values of the wrong type."""
    values: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        values[field.name] = _CHECKS[str(field.type)](field.name, value)
    return values


Padding = Literal["same", "valid"]
_PADDINGS = values_of(Padding, training_pb2.Padding)


@dataclass(frozen=True)
class Rate:
    """A learning rate that changes log-linearly, step by step.

    Attributes:
        initial: the rate at step 0.
        final: the rate from step `steps` on; None: the rate is constant.
        steps: the number of steps of the change, at least 1 with a final rate.

    Raises:
        InvalidArgument: with a final rate, a rate is not above 0, or `steps` is less than 1.

    Example:
        rate = Rate(1.6e-4, final=1.6e-6, steps=30_000)
        rate.at(15_000)  # 1.6e-5
    """

    initial: float
    final: float | None = None
    steps: int = 0

    def __post_init__(self) -> None:
        initial = number("initial", self.initial)
        vars(self)["initial"] = initial
        if self.final is None:
            return
        final = number("final", self.final)
        if not (final > 0 and initial > 0):
            text = f"expected rates above 0, between which it changes log-linearly, got {initial:g} to {final:g}"
            raise InvalidArgument.of("final", f"{text}; None: the rate is constant")
        vars(self).update(final=final, steps=whole_number("steps", self.steps, 1, _MOST))

    def at(self, step: int) -> float:
        """Returns the rate at a step, counted from 0."""
        if self.final is None:
            return self.initial
        return float(self.initial * (self.final / self.initial) ** min(step / self.steps, 1.0))

    def message(self) -> training_pb2.Rate:
        """Returns the protobuf message."""
        return training_pb2.Rate(initial=self.initial, final=self.final or 0.0, steps=self.steps)


@dataclass(frozen=True)
class Loss:
    """Weights of the terms of the loss, each a mean over pixels, channels and the views of a step.

    Attributes:
        l1: weight of |color - color of the target image|.
        l2: weight of (color - color of the target image)^2.
        dssim: weight of 1 - SSIM (Wang et al. 2004; window 11, sigma 1.5).
        padding: "same": SSIM of every pixel, with zeros around the image; "valid": only where the window fits.
        depth: weight of |expected depth - depth of the target image|, scene units, where the target's depth is known;
            Gaussians only.
        alpha: weight of |alpha - mask|.
        opacity: weight of the mean opacity of all primitives.
        scale: weight of the mean scale of Gaussians, or radius of spheres, scene units.
        normal: for surfels: weight of alpha - normals . surface_normals, which is 0 where each surfel lies in the
            surface that the depth describes (Huang et al. 2024); the paper uses 0.05.
        distortion: for surfels: weight of the distortion, scene units, which is 0 where all hits of a ray are at one
            depth.
        surface_start: first step in which `normal` and `distortion` count.

    Example:
        loss = Loss(l1=1.0, dssim=0.0, depth=0.1)  # for photographs with depths
    """

    l1: float = 0.8
    l2: float = 0.0
    dssim: float = 0.2
    padding: Padding = "same"
    depth: float = 0.0
    alpha: float = 0.0
    opacity: float = 0.0
    scale: float = 0.0
    normal: float = 0.0
    distortion: float = 0.0
    surface_start: int = 0

    def message(self) -> training_pb2.Loss:
        """Returns the protobuf message."""
        if self.padding not in _PADDINGS:
            raise InvalidArgument.of("padding", f"expected {' or '.join(_PADDINGS)}, got {self.padding!r}")
        start = whole_number("surface_start", self.surface_start, 0, _MOST)
        others = ("padding", "surface_start")
        weights = {name: number(name, value) for name, value in vars(self).items() if name not in others}
        return training_pb2.Loss(**weights, padding=_PADDINGS[self.padding], surface_start=start)


Rates = Mapping[str, "Rate | float"]


def rates_message(rates: Rates) -> dict[str, training_pb2.Rate]:
    """Returns the protobuf messages of the rates, by parameter."""
    return {
        name: (rate if isinstance(rate, Rate) else Rate(number(f"rates[{name!r}]", rate))).message()
        for name, rate in rates.items()
    }


# Parameters of cameras and exposures, and the largest rate at which they are refined without a warning.
REFINED = ("poses", "end_poses", "intrinsics", "lenses", "exposures")
_LARGEST_RATE = 0.1


def warn_of_large_rates(rates: Rates, argument: str) -> None:
    """Warns about rates at which each step of Adam moves cameras or exposures by more than any error they may have.

    `argument` is the format of the argument's name, with braces in place of the parameter's.
    """
    for name in REFINED:
        rate, named = rates.get(name, 0.0), argument.format(name)
        largest = max(rate.initial, rate.final or 0.0) if isinstance(rate, Rate) else number(named, rate)
        if largest > _LARGEST_RATE:
            text = f"expected a rate of at most {_LARGEST_RATE:g}, such as 1e-4, got {largest:g}"
            warn_caller(f"{named}: {text}; each step moves a value by about the rate")


def default_rates(kind: str, tensors: Sequence[str], extent: float, steps: int) -> dict[str, Rate | float]:
    """Returns the default rates: those of Kerbl et al. (2023) for Gaussians, and analogous ones for spheres.

    `kind` is "gaussians" or "spheres"; `extent` the radius of the region around the cameras, scene units.
    """
    means = Rate(1.6e-4 * extent, 1.6e-6 * extent, steps)
    of_gaussians: dict[str, Rate | float] = {
        **{"means": means, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2},
        **({"sh0": 2.5e-3, "sh_rest": 1.25e-4} if "sh" in tensors else {"colors": 2.5e-3}),
    }
    of_spheres: dict[str, Rate | float] = {
        **{"positions": Rate(1e-3 * extent, 1e-5 * extent, steps), "colors": 1e-2, "radii": 5e-3},
        **({"opacities": 5e-2} if "opacities" in tensors else {}),
    }
    return of_gaussians if kind == "gaussians" else of_spheres


def calibrations_of(cameras: Sequence[Camera]) -> list[int]:
    """Returns a number for each camera; cameras with equal size, intrinsics and lens have the same number."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_calibration(camera), len(numbers)) for camera in cameras]


def _calibration(camera: Camera) -> Hashable:
    model, size = camera.model, (camera.width, camera.height)
    if isinstance(model, OpenCVModel):
        return (model.fx, model.fy, model.cx, model.cy, model.projection, model.distortion, size)
    # Other models have no intrinsics or lens that could be refined.
    return (model.lens, model.windshield, size) if isinstance(model, SensorModel) else id(camera)


def extent_of(cameras: Sequence[Camera]) -> float:
    """Returns the radius of the region around cameras: 1.1 times the largest distance from their mean, scene units.

    For a single camera, returns 1.
    """
    positions = np.array([camera.model.eye for camera in cameras], np.float64)
    extent = 1.1 * float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).max())
    return extent or 1.0
