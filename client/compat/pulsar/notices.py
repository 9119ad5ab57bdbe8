"""Pulsar's warnings. Two of them are given once per process, as in the original."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from lumigrad.client.compat.pulsar.checks import ForwardArguments

_given: set[str] = set()


def on_forward(arguments: ForwardArguments) -> None:
    """About camera parameters and the depth range; shown at the line that called the module."""
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
    """About gradients of the geometry."""
    if gamma < 1e-3 and {"positions", "radii", "cameras"} & set(wanted) and _first("gamma"):
        warnings.warn(
            f"gamma is {gamma:g}: below 1e-3, gradients of positions, radii and cameras are practically zero; use a "
            "larger gamma for those",
            stacklevel=2,
        )


def _to_caller() -> int:
    """The stack level, for `on_forward`, of whoever called the module: past what is torch's and this package's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "lumigrad"):
        level, frame = level + 1, frame.f_back
    return level


def _first(kind: str) -> bool:
    """Whether this kind of warning has not been given yet; now it has."""
    is_first = kind not in _given
    _given.add(kind)
    return is_first
