"""Training steps without Python: arguments are checked and bound once, until the rows of the scene change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from lumigrad.kernels import _native, spheres
from lumigrad.kernels.checks import check
from lumigrad.kernels.density import Statistics
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from lumigrad.kernels.gaussians.forward import views_of
from lumigrad.kernels.gaussians.inputs import check_background, check_cameras
from lumigrad.kernels.gaussians.transforms import cut
from lumigrad.kernels.spheres.inputs import Inputs as SphereInputs
from lumigrad.kernels.training.adam import ACTIVATIONS
from lumigrad.kernels.training.tensors import check_tensor, plane

# Initial value, final value and the number of steps between them; with a final value of 0 the rate is constant.
Rate: TypeAlias = tuple[float, float, int]
_NO_RATE: Rate = (0.0, 0.0, 0)
_HOST = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameter:
    """A tensor that is optimised, as `training.Parameter`, with the schedules of its learning rates."""

    raw: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    rate: Rate
    head: int = 0
    head_rate: Rate = _NO_RATE
    activation: str = "identity"
    value: torch.Tensor | None = None

    def native(self, name: str) -> Any:
        """The extension's parameter."""
        shape = (self.raw.shape[0], -1)
        flat = {}
        for part in ("raw", "first", "second", "value"):
            tensor = getattr(self, part)
            if tensor is not None:
                check_tensor(f"{name}.{part}", tensor, (torch.float32,), self.raw.shape, self.raw.device, in_place=True)
                flat[part] = tensor.detach().view(shape)
        group = {
            **{"gradient": None, "gradient_type": 0, "factors": None, "degree": 0, "rows": None},
            **{"step_size": 0.0, "head": self.head, "head_step_size": 0.0},
            **{"activation": ACTIVATIONS.index(self.activation), **flat},
        }
        return _native.make_resident_parameter(name, self.rate, self.head_rate, group), flat


@dataclass(frozen=True, kw_only=True)
class ImageTerms:
    """The weights of losses between images, and the padding of their windows.

    The losses are `training.image_loss`, `training.depth_loss`, `training.alpha_loss` and, on the CPU,
    `training.normal_loss`; the distortion is a mean. A term counts in steps whose views have its target.
    """

    l1: float
    l2: float
    dssim: float
    depth: float
    alpha: float
    normal: float
    distortion: float
    padding: str

    def native(self) -> Any:
        """The extension's loss."""
        names = ("l1", "l2", "dssim", "depth", "alpha", "normal", "distortion")
        weights = {name: float(getattr(self, name)) for name in names}
        return _native.make_resident_loss(**weights, valid=self.padding == "valid")


@dataclass(frozen=True, eq=False)
class MeanTerm:
    """The mean of a tensor of the scene as a term of the loss, as `training.mean_term`."""

    name: str
    weight: float
    values: torch.Tensor


@dataclass(frozen=True)
class Adam:
    """Settings of the optimiser; `visible_only` steps only rows that a view shows."""

    betas: tuple[float, float]
    epsilon: float
    visible_only: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Exposures:
    """Optimised exposures of all views, f32 [V, 3, 4], with the number of steps of each, i64 [V] on the host.

    `is_centered`: the mean of the exposures stays the identity.
    """

    values: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    steps: torch.Tensor
    rate: Rate
    is_centered: bool

    def native(self) -> Any:
        """The extension's exposures."""
        arrays = _rows(self, "exposures", (3, 4))
        return _native.make_resident_exposures(self.rate, len(self.values), self.is_centered, **arrays), arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class Motions:
    """Motions xi of the poses of all views, f32 [V, 6], 0 between steps, with Adam's state.

    Attributes:
        first: First moments of `values`.
        second: Second moments of `values`.
        steps: i64 [V] on the host, the number of steps of each pose.
    """

    values: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    steps: torch.Tensor
    rate: Rate


@dataclass(frozen=True, kw_only=True, eq=False)
class Poses:
    """Poses of all views, f64 [V, 12], which are optimised: rotations, row by row, and translations, world to camera.

    A step multiplies them from the left by exp(xi), as `training.apply_pose_update`.

    Attributes:
        ends: Poses of sensors at the end of the exposure, f64 [V, 12]; None for OpenCV's cameras.
        start: Motions of the poses, which also move the ends if these have none; None if they do not move.
        end: Motions of the ends.
    """

    poses: torch.Tensor
    ends: torch.Tensor | None
    start: Motions | None
    end: Motions | None

    def native(self) -> Any:
        """The extension's poses."""
        arrays: dict[str, Any] = {}
        rates: dict[str, Any] = {}
        for prefix, motions in (("start", self.start), ("end", self.end)):
            found = {} if motions is None else _rows(motions, f"poses.{prefix}", (6,))
            arrays.update({f"{prefix}_{part}": tensor for part, tensor in found.items()})
            rates[f"{prefix}_rate"] = None if motions is None else motions.rate
        for name, tensor in (("poses", self.poses), ("end_poses", self.ends)):
            if tensor is not None:
                check_tensor(f"poses.{name}", tensor, (torch.float64,), (None, 12), self.poses.device, in_place=True)
                arrays[name] = tensor
        return _native.make_resident_poses(**rates, **arrays), arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class Intrinsics:
    """Intrinsics that are optimised for each of K calibrations, as offsets from the cameras' own.

    Offsets are logarithms of factors of fx and fy, and shifts of cx and cy in units of the cameras' own fx and fy. A
    step after which a camera that it shows has no intrinsics leaves its calibration as it is.

    Attributes:
        films: f64 [V, 4], fx, fy, cx and cy of all views without offsets.
        calibrations: The calibration of each view.
        values: f32 [K, 4], the offsets.
        first: First moments of `values`.
        second: Second moments of `values`.
        steps: i64 [K], the number of steps of each calibration, where the values are.
    """

    films: torch.Tensor
    calibrations: Sequence[int]
    values: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    steps: torch.Tensor
    rate: Rate

    def native(self) -> Any:
        """The extension's intrinsics."""
        device, shape = self.values.device, (len(self.calibrations), 4)
        arrays = _rows(self, "intrinsics", (4,), device)
        check_tensor("intrinsics.films", self.films, (torch.float64,), shape, device)
        arrays["films"] = self.films
        return _native.make_resident_intrinsics(self.rate, list(self.calibrations), **arrays), arrays


def _rows(
    of: Exposures | Motions | Intrinsics, name: str, shape: tuple[int, ...], steps_on: torch.device = _HOST
) -> dict[str, torch.Tensor]:
    """Checks and returns the arrays of optimised rows."""
    arrays = {part: getattr(of, part) for part in ("values", "first", "second")}
    for part, tensor in arrays.items():
        check_tensor(
            f"{name}.{part}", tensor, (torch.float32,), (of.steps.shape[0], *shape), of.values.device, in_place=True
        )
    check_tensor(f"{name}.steps", of.steps, (torch.int64,), (None,), steps_on, in_place=True)
    return {**arrays, "steps": of.steps}


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise of the means after each step, as `density.add_noise`, for the schedule of the means' learning rate."""

    raw: Mapping[str, torch.Tensor]
    rate: Rate
    noise_rate: float
    seed: int

    def native(self) -> Any:
        """The extension's noise."""
        arrays = {name: self.raw[name].detach() for name in ("means", "quats", "scales", "opacities")}
        count = arrays["means"].shape[0]
        return _native.make_resident_noise(self.rate, float(self.noise_rate), self.seed, count, **arrays), arrays


@dataclass(frozen=True, eq=False)
class Observation:
    """Statistics that each step updates, as `density.accumulate`, from absolute or plain gradients."""

    statistics: Statistics
    is_absolute: bool

    def native(self) -> Any:
        """The extension's statistics."""
        arrays = self.statistics.arrays()
        return _native.make_resident_observation(self.is_absolute, **arrays), arrays


class Views:
    """The views of a training by number: cameras, render settings and target images."""

    def __init__(self) -> None:
        self.native = _native.ResidentViews()

    def __contains__(self, number: int) -> bool:
        return number in self.native

    def add(
        self, number: int, camera: Camera, scene: Gaussians, settings: Settings, target: Mapping[str, torch.Tensor]
    ) -> None:
        """Add a view.

        Args:
            number: Number of the step.
            camera: A camera that is not a lidar and fits the scene and the settings.
            scene: The scene.
            settings: How to project and blend; the degree of harmonics is the step's.
            target: By name, f32 or u8: "color" [H, W, D], "mask" [H, W] and "depth" f32 [H, W]; bytes are 255ths.

        Raises:
            ArgumentError: An argument is invalid.
        """
        check_cameras(scene, [camera], settings)
        arrays = _target((camera.height, camera.width), scene, target)
        native_settings = settings.native(scene.degree(settings), camera.width, camera.height, lidar=False)
        views = views_of(scene, [camera], settings, cut((), scene.count))
        self.native.set(number, views, native_settings, **arrays)

    def add_spheres(
        self, number: int, camera: spheres.Camera, scene: SphereInputs, target: Mapping[str, torch.Tensor]
    ) -> None:
        """Add a view of spheres; see `add`.

        Raises:
            ArgumentError: An argument is invalid.
        """
        arrays = _target((camera.height, camera.width), scene, target)
        # Each step sets the depth range.
        native = camera.native(1.0, 2.0)
        self.native.set_spheres(number, native, camera.eye, camera.auto_min_depth, **arrays)


def _target(
    shape: tuple[int, int], scene: Gaussians | SphereInputs, target: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Checks a target image and returns the extension's arguments for it."""
    arrays: dict[str, Any] = {}
    shapes = {"color": (*shape, scene.channels), "mask": shape, "depth": shape}
    for name, tensor in target.items():
        dtypes = (torch.float32,) if name == "depth" else (torch.float32, torch.uint8)
        check_tensor(name, tensor, dtypes, shapes[name], scene.device)
        arrays.update(plane(name, tensor))
    return arrays


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianScene:
    """A scene of Gaussians whose tensors are the values of the parameters, and how steps render it.

    Attributes:
        scene: The scene; at least one row.
        settings: How to project and blend, with the degree of harmonics.
        camera: The camera of one of the views.
        background: f32 [D], or [C, D] for the views of each step; None: 0.
    """

    scene: Gaussians
    settings: Settings
    camera: Camera
    background: torch.Tensor | None

    def native(self, views_of_step: int) -> tuple[tuple[Any, Any, int], dict[str, Any]]:
        """The extension's views, spheres and degree of harmonics, and arrays."""
        scene, settings = self.scene, self.settings
        check(scene.scenes == 1 and scene.count > 0, "scene", "one scene with rows", scene.count)
        check_cameras(scene, [self.camera], settings)
        background = check_background(self.background, scene, views_of_step)
        views = views_of(scene, [self.camera], settings, cut((), scene.count))
        return (views, None, scene.degree(settings)), {"background": background, **scene.arrays()}


@dataclass(frozen=True, kw_only=True, eq=False)
class SphereScene:
    """A scene of spheres, likewise, on the CPU; at least one row.

    Attributes:
        scene: The scene.
        settings: How to blend.
    """

    scene: SphereInputs
    settings: spheres.Settings

    def native(self, views_of_step: int) -> tuple[tuple[Any, Any, int], dict[str, Any]]:
        """The extension's views, spheres and degree of harmonics, and arrays."""
        scene, settings = self.scene, self.settings
        check(scene.count > 0, "scene", "one scene with rows", scene.count)
        arrays = scene.arrays()
        native = settings.native(track=True)
        made = _native.make_resident_spheres(native, settings.min_depth, settings.max_depth, **arrays)
        return (None, made, 0), arrays


def bind(
    machine: Any,
    step: int,
    scene: GaussianScene | SphereScene,
    views: Views,
    *,
    views_of_step: int,
    loss: ImageTerms,
    means: Sequence[MeanTerm],
    parameters: Mapping[str, Parameter],
    adam: Adam,
    exposures: Exposures | None,
    poses: Poses | None,
    intrinsics: Intrinsics | None,
    noise: Noise | None,
    observation: Observation | None,
) -> Any:
    """Binds the steps of a training to its tensors, which the steps change in place.

    A step renders its views, compares them with their target images, backpropagates, adds the gradients of the mean
    terms, and steps the optimiser. It gives the same bits as `forward` and `backward` of Gaussians or of spheres, and
    `training.apply_exposure`, `training.image_loss`, `training.depth_loss`, `training.alpha_loss`,
    `training.exposure_gradient`, `training.mean_term`, `training.adam_step`, `training.apply_pose_update`,
    `density.add_noise` and `density.accumulate`.

    Args:
        machine: Machine that runs the steps.
        step: The number of the next step, counted from 0.
        scene: The scene.
        views: The views; more may be added between steps.
        views_of_step: The number of views of each step.
        loss: The losses between images.
        means: Further terms of the loss.
        parameters: By the names of the scene's tensors.
        adam: The optimiser's settings.
        exposures: Exposures of the views.
        poses: Poses of the views, which replace those of the cameras: all of them sensors, or all OpenCV's.
        intrinsics: Intrinsics of the views, which replace those of the cameras; the cameras must then be OpenCV's.
        noise: Noise after each step.
        observation: Statistics that each step updates.

    Raises:
        ArgumentError: An argument is invalid.
    """
    drawn, scene_arrays = scene.native(views_of_step)
    bound = {name: parameter.native(name) for name, parameter in parameters.items()}
    names = list(bound)
    terms = [
        _native.make_resident_term(
            term.weight / term.values.numel(), names.index(term.name) if term.name in bound else -1, values=term.values
        )
        for term in means
    ]
    made_exposures, exposure_arrays = (None, None) if exposures is None else exposures.native()
    made_poses, pose_arrays = (None, None) if poses is None else poses.native()
    made_intrinsics, intrinsics_arrays = (None, None) if intrinsics is None else intrinsics.native()
    made_noise, noise_arrays = (None, None) if noise is None else noise.native()
    made_observation, observation_arrays = (None, None) if observation is None else observation.native()
    kept = [
        [arrays for _, arrays in bound.values()],
        [term.values for term in means],
        *(exposure_arrays, pose_arrays, intrinsics_arrays, noise_arrays, observation_arrays),
    ]
    return _native.make_resident_training(
        machine,
        step,
        views.native,
        *drawn,
        views_of_step,
        loss.native(),
        terms,
        [parameter for parameter, _ in bound.values()],
        (*adam.betas, adam.epsilon, adam.visible_only),
        made_exposures,
        made_poses,
        made_intrinsics,
        made_noise,
        made_observation,
        kept,
        **scene_arrays,
    )
