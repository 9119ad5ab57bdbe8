"""Steps of trainings without Python: everything is checked and bound once, until the rows of the scene change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check
from lumigrad.kernels.density import Statistics
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from lumigrad.kernels.gaussians.camera_sources import OpenCVSource
from lumigrad.kernels.gaussians.forward import views_of
from lumigrad.kernels.gaussians.inputs import check_background, check_cameras
from lumigrad.kernels.gaussians.transforms import cut
from lumigrad.kernels.training.adam import ACTIVATIONS
from lumigrad.kernels.training.tensors import check_tensor, plane

# Initial and final value, and the steps between them; with a final value of 0 it is constant.
Rate: TypeAlias = tuple[float, float, int]
_NO_RATE: Rate = (0.0, 0.0, 0)


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


@dataclass(frozen=True)
class ImageTerms:
    """The weights of an image loss, as those of `training.image_loss`, and the padding of its windows."""

    l1: float
    l2: float
    dssim: float
    padding: str


@dataclass(frozen=True, eq=False)
class MeanTerm:
    """The mean of a tensor of the scene as a term of the loss, as `training.mean_term`."""

    name: str
    weight: float
    values: torch.Tensor


@dataclass(frozen=True)
class Adam:
    """Settings of the optimiser; with `visible_only` only rows that a view shows are stepped."""

    betas: tuple[float, float]
    epsilon: float
    visible_only: bool


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
    """Statistics that each step adds to, as `density.accumulate`, of absolute gradients or of plain ones."""

    statistics: Statistics
    is_absolute: bool

    def native(self) -> Any:
        """The extension's statistics."""
        arrays = self.statistics.arrays()
        return _native.make_resident_observation(self.is_absolute, **arrays), arrays


class Views:
    """The views of a training by number: cameras made by `Camera.opencv`, and target images [H, W, K]."""

    def __init__(self) -> None:
        self.native = _native.ResidentViews()

    def __contains__(self, number: int) -> bool:
        return number in self.native

    def add(self, number: int, camera: Camera, scene: Gaussians, settings: Settings, target: torch.Tensor) -> None:
        """Add a view; the camera must fit the scene and the settings."""
        assert isinstance(camera.source, OpenCVSource)
        check_cameras(scene, [camera], settings)
        shape = (camera.height, camera.width, scene.channels)
        check_tensor("target", target, (torch.float32, torch.uint8), shape, scene.device)
        self.native.set(number, views_of(scene, [camera], settings, cut((), scene.count)), **plane("target", target))


def bind(
    machine: Any,
    step: int,
    scene: Gaussians,
    settings: Settings,
    views: Views,
    camera: Camera,
    *,
    views_of_step: int,
    background: torch.Tensor | None,
    loss: ImageTerms,
    means: Sequence[MeanTerm],
    parameters: Mapping[str, Parameter],
    adam: Adam,
    noise: Noise | None,
    observation: Observation | None,
) -> Any:
    """Binds the steps of a training to its tensors, which the steps change in place.

    A step renders its views, compares them with their target images, differentiates, adds the gradients of the means of
    parameters, and steps the optimiser: the same bits as `gaussians.forward`, `training.image_loss`,
    `gaussians.backward`, `training.mean_term`, `training.adam_step`, `density.add_noise` and `density.accumulate`.

    Args:
        machine: What runs the steps.
        step: The number of the next step, counted from 0.
        scene: The scene, whose tensors are the values of the parameters; at least one row.
        settings: How to project and blend; volumes, and not along rays.
        views: The views, to which others may be added between steps.
        camera: One of their cameras.
        views_of_step: The number of views of each step.
        background: f32 [D]; None: 0.
        loss: The image loss.
        means: Terms of the loss beside that.
        parameters: By the names of the scene's tensors.
        adam: The optimiser's settings.
        noise: Noise after each step.
        observation: Statistics that each step adds to.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check(scene.scenes == 1 and scene.count > 0, "scene", "one scene with rows", scene.count)
    check_cameras(scene, [camera], settings)
    backgrounds = check_background(background, scene, views_of_step)
    bound = {name: parameter.native(name) for name, parameter in parameters.items()}
    names = list(bound)
    terms = [
        _native.make_resident_term(
            term.weight / term.values.numel(), names.index(term.name) if term.name in bound else -1, values=term.values
        )
        for term in means
    ]
    made_noise, noise_arrays = (None, None) if noise is None else noise.native()
    made_observation, observation_arrays = (None, None) if observation is None else observation.native()
    kept = [[arrays for _, arrays in bound.values()], [term.values for term in means], noise_arrays, observation_arrays]
    native_settings = settings.native(scene.degree(settings), camera.width, camera.height, lidar=False)
    return _native.make_resident_training(
        machine,
        step,
        views.native,
        views_of(scene, [camera], settings, cut((), scene.count)),
        native_settings,
        views_of_step,
        (loss.l1, loss.l2, loss.dssim, loss.padding == "valid"),
        terms,
        [parameter for parameter, _ in bound.values()],
        (*adam.betas, adam.epsilon, adam.visible_only),
        made_noise,
        made_observation,
        kept,
        background=backgrounds,
        **scene.arrays(),
    )
