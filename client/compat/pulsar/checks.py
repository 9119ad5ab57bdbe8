"""Checks of the renderer's arguments, its constants, errors and warnings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from lumigrad.client.compat.refusals import renamed
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera_models import PULSAR_LENGTHS

EPS = 1e-6
MAX_FLOAT = 3.4e38
MAX_INT = 2147483647
MAX_UINT = 4294967295
MAX_USHORT = 65535
# The largest n_track.
MAX_GRAD_SPHERES = 128


# The argument's name and number in the original, by a part of the path in the request or by the client's own argument.
_ARGUMENTS = {
    "positions": ("vert_pos", 1),
    "colors": ("vert_col", 2),
    "radii": ("vert_rad", 3),
    "opacities": ("opacity", 13),
    "cameras": ("cam_params", 4),
    "parameters": ("cam_params", 4),
    "gamma": ("gamma", 10),
    "max_depth": ("max_depth", 11),
    "min_depth": ("min_depth", 12),
    "background": ("bg_col", 13),
}


class PulsarArgumentError(InvalidArgument, RuntimeError):
    """An argument that Pulsar refuses. The text has its name and the number that the original gives it."""

    @classmethod
    def at(cls, number: int, name: str, description: str) -> PulsarArgumentError:
        """Creates the error for argument `number`."""
        return cls.of(name, f"invalid argument {number}: {description}")


def pulsar_refusals() -> AbstractContextManager[None]:
    """Raises PulsarArgumentError, which names the drop-in's arguments, where the client or the worker refuses one."""
    names = {field: name for field, (name, _) in _ARGUMENTS.items()}
    return renamed(PulsarArgumentError, names, dict(_ARGUMENTS.values()))


_EPS32 = np.float32(EPS)


@dataclass(frozen=True)
class RendererLimits:
    """The constructor's arguments; attributes are named like those of the original's native renderer."""

    width: int
    height: int
    max_num_balls: int
    orthogonal: bool
    right_handed: bool
    background_normalized_depth: float
    n_channels: int
    n_track: int

    def check(self) -> None:
        """Raises PulsarArgumentError for values that no renderer can have."""
        rules = (
            (1, "width", "> 0", self.width > 0),
            (2, "height", "> 0", self.height > 0),
            (3, "max_num_balls", "> 0", self.max_num_balls > 0),
            (5, "background_normalized_depth", "in (0, 1)", 0.0 < self.background_normalized_depth < 1.0),
            (6, "n_channels", "> 0", self.n_channels > 0),
            (7, "n_track", f"from 1 to {MAX_GRAD_SPHERES}", 0 < self.n_track <= MAX_GRAD_SPHERES),
            (2, "max_num_balls", f"< {MAX_INT}", self.max_num_balls < MAX_INT),
            (3, "width", "> 1", self.width > 1),
            (4, "height", "> 1", self.height > 1),
        )
        for number, name, expected, holds in rules:
            if not holds:
                raise PulsarArgumentError.at(number, name, f"expected a value {expected}, got {getattr(self, name)}")


@dataclass(frozen=True)
class ForwardArguments:
    """The arguments of `Renderer.forward`, with min_depth as the caller passed it."""

    vert_pos: torch.Tensor
    vert_col: torch.Tensor
    vert_rad: torch.Tensor
    cam_params: torch.Tensor
    gamma: float
    max_depth: float
    min_depth: float
    bg_col: torch.Tensor | None
    opacity: torch.Tensor | None
    percent_allowed_difference: float
    max_n_hits: int
    mode: int

    @property
    def batched(self) -> bool:
        """Whether the points have a batch axis."""
        return self.vert_pos.ndim == 3

    @property
    def focal_lengths(self) -> torch.Tensor:
        """The focal length of each camera, scene units."""
        return self.cam_params.detach()[..., 9 if self.cam_params.shape[-1] in (11, 13) else 6].reshape(-1)

    @property
    def effective_min_depth(self) -> float:
        """The near end of the depth range; for min_depth 0 just behind the film of the largest focal length."""
        if self.min_depth != 0.0:
            return self.min_depth
        return float(np.float32(self.focal_lengths.max().item()) + np.float32(2e-6))


def check_cam_params(cam_params: torch.Tensor) -> None:
    """Raises AssertionError, as the original does, unless cam_params has a known layout."""
    if cam_params.ndim not in (1, 2) or cam_params.shape[-1] not in PULSAR_LENGTHS:
        raise AssertionError(
            f"cam_params: expected 8, 10, 11 or 13 values per camera, [B, …] or without B, got shape "
            f"{list(cam_params.shape)}"
        )


def check_forward(arguments: ForwardArguments, limits: RendererLimits, device: torch.device) -> None:
    """Raises PulsarArgumentError for the first argument that Pulsar would refuse."""
    # The checks run lazily, because each relies on those before it.
    problems = chain(
        _batch_problems(arguments),
        _size_problems(arguments, limits),
        _device_problems(arguments, device),
        _type_problems(arguments),
        _value_problems(arguments, limits),
        _option_problems(arguments, limits, device),
    )
    for number, name, expected, actual in problems:
        raise PulsarArgumentError.at(number, name, f"expected {expected}, got {actual}")


Problem = tuple[int, str, str, object]


def _batch_problems(arguments: ForwardArguments) -> Iterator[Problem]:
    points = arguments.vert_pos
    if points.ndim not in (2, 3):
        yield 1, "vert_pos", "shape [N, 3] or [B, N, 3]", list(points.shape)
        return
    batch = list(points.shape[:-2])
    if batch == [0]:
        yield 1, "vert_pos", "a batch of at least 1", list(points.shape)
    for number, name, tensor, dimensions, names in _tensors(arguments):
        # A single camera may have a batch axis of length 1 although the points have none.
        leading = list(tensor.shape[:-dimensions]) if tensor.ndim >= dimensions else None
        if leading != batch and not (name == "cam_params" and leading == [1] and not batch):
            shape = ", ".join([*map(str, batch), names])
            yield number, name, f"shape [{shape}], batched as vert_pos", list(tensor.shape)


def _size_problems(arguments: ForwardArguments, limits: RendererLimits) -> Iterator[Problem]:
    count = arguments.vert_pos.shape[-2]
    if arguments.vert_col.shape[-2] != count:
        yield 2, "vert_col", f"{count} points as in vert_pos", arguments.vert_col.shape[-2]
    if arguments.vert_rad.shape[-1] != count:
        yield 3, "vert_rad", f"{count} points as in vert_pos", arguments.vert_rad.shape[-1]
    if arguments.opacity is not None and arguments.opacity.shape[-1] != count:
        number = 13 if arguments.batched else 12
        yield number, "opacity", f"{count} points as in vert_pos", arguments.opacity.shape[-1]
    if arguments.vert_pos.shape[-1] != 3:
        yield 1, "vert_pos", "3 coordinates", arguments.vert_pos.shape[-1]
    if arguments.vert_col.shape[-1] != limits.n_channels:
        yield 2, "vert_col", f"n_channels = {limits.n_channels} channels", arguments.vert_col.shape[-1]


def _device_problems(arguments: ForwardArguments, device: torch.device) -> Iterator[Problem]:
    for number, name, tensor, *_ in _tensors(arguments):
        if tensor.device != device:
            yield number, name, f"a tensor on {device}, where this renderer is (move one with .to)", tensor.device


def _type_problems(arguments: ForwardArguments) -> Iterator[Problem]:
    for number, name, tensor, *_ in _tensors(arguments):
        if tensor.dtype != torch.float32:
            yield number, name, "torch.float32 (Pulsar requires float types)", tensor.dtype


def _tensors(arguments: ForwardArguments) -> Iterator[tuple[int, str, torch.Tensor, int, str]]:
    """Yields number, name, tensor, and the count and names of the axes after those of the batch."""
    yield 1, "vert_pos", arguments.vert_pos, 2, "N, 3"
    yield 2, "vert_col", arguments.vert_col, 2, "N, K"
    yield 3, "vert_rad", arguments.vert_rad, 1, "N"
    yield 4, "cam_params", arguments.cam_params, 1, "8 | 10 | 11 | 13"
    if arguments.opacity is not None:
        yield 13, "opacity", arguments.opacity, 1, "N"


def _value_problems(arguments: ForwardArguments, limits: RendererLimits) -> Iterator[Problem]:
    smallest = float(arguments.vert_rad.detach().min()) if arguments.vert_rad.numel() else float("inf")
    if not smallest > _EPS32:
        yield 3, "vert_rad", f"radii > {EPS:g}", f"a smallest one of {smallest:g}"
    focal = arguments.focal_lengths
    if limits.orthogonal and bool((focal != 0).any()):
        yield 8, "cam_params", "a focal length of exactly 0 for an orthogonal projection", focal.tolist()
    if not limits.orthogonal and not bool((focal > EPS).all()):
        yield 8, "cam_params", f"a focal length > {EPS:g} for a perspective projection", focal.tolist()
    if not np.float32(1e-5) <= np.float32(arguments.gamma) <= 1.0:
        yield 10, "gamma", "a value in [1e-5, 1]", arguments.gamma
    near = np.float32(arguments.effective_min_depth)
    if not near > focal.max().item():
        yield 12, "min_depth", f"a depth behind the film, > {focal.max().item():g}", f"{near:.9g}; pass a larger one"
    if not np.float32(arguments.max_depth) > near + _EPS32:
        yield 11, "max_depth", f"a depth > min_depth + {EPS:g} = {near + _EPS32:.9g}", arguments.max_depth


def _option_problems(arguments: ForwardArguments, limits: RendererLimits, device: torch.device) -> Iterator[Problem]:
    if not 0.0 <= arguments.percent_allowed_difference < 1.0:
        yield 14, "percent_allowed_difference", "a value in [0, 1)", arguments.percent_allowed_difference
    if not arguments.max_n_hits > 0:
        yield 14, "max_n_hits", "a number > 0", arguments.max_n_hits
    if arguments.mode not in (0, 1):
        yield 15, "mode", "0 (image) or 1 (hits)", arguments.mode
    background = arguments.bg_col
    if background is not None:
        if background.device != device:
            yield 13, "bg_col", f"a tensor on {device}", background.device
        if list(background.shape) != [limits.n_channels]:
            yield 13, "bg_col", f"shape [{limits.n_channels}]", list(background.shape)
        if background.dtype != torch.float32:
            yield 13, "bg_col", "torch.float32", background.dtype
    opacity = arguments.opacity
    if opacity is not None and not bool(((opacity >= 0) & (opacity <= 1)).all()):
        yield 13, "opacity", "values in [0, 1]", f"{opacity.min().item():g} to {opacity.max().item():g}"
    count = arguments.vert_pos.shape[-2]
    if not 1 <= count <= limits.max_num_balls:
        yield 9, "vert_pos", f"1 to max_num_balls = {limits.max_num_balls} points", count


_given: set[str] = set()


def on_forward(arguments: ForwardArguments) -> None:
    """Warns of camera parameters and depth ranges that work badly, at the line that called the module."""
    if arguments.cam_params.shape[-1] in (8, 10) and arguments.cam_params.requires_grad and _first("axis-angle"):
        warnings.warn(
            "cam_params hold an axis-angle rotation and require a gradient; axis-angle is discontinuous, so optimise "
            "the six-D rotation instead (11 or 13 values)",
            stacklevel=_to_caller(),
        )
    smallest = float(arguments.focal_lengths.min()) if arguments.focal_lengths.numel() else 0.0
    if 0.0 < 10_000.0 * smallest < arguments.max_depth:
        warnings.warn(
            f"max_depth {arguments.max_depth:g} is more than 10000 times the smallest focal length {smallest:g}: "
            "expect numerical artefacts; use a smaller max_depth, or a larger focal length and sensor width",
            stacklevel=_to_caller(),
        )


def on_backward(wanted: Sequence[str], gamma: float) -> None:
    """Warns of gradients of the geometry that are practically zero."""
    if gamma < 1e-3 and {"positions", "radii", "cameras"} & set(wanted) and _first("gamma"):
        warnings.warn(
            f"gamma is {gamma:g}: below 1e-3, gradients of positions, radii and cameras are practically zero; use a "
            "larger gamma for those",
            stacklevel=2,
        )


def _to_caller() -> int:
    """Returns the stack level of the module's caller for `on_forward`, above the frames of torch and this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "lumigrad"):
        level, frame = level + 1, frame.f_back
    return level


def _first(kind: str) -> bool:
    """Returns whether this is the first warning of its kind, and records it."""
    is_first = kind not in _given
    _given.add(kind)
    return is_first
