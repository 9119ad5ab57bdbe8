"""The steps of which strategies are made (`gsplat.strategy.ops`), for strategies of one's own.

`params` are parameters by name, before activation. They, their optimizers' states and the tensors of `state` have a row
for each Gaussian, and change together. `scene` is a `GaussianScene` that follows, or None.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from lumigrad.client.compat.gsplat.strategy.rows import (
    NamedChange,
    Optimizers,
    Parameters,
    Splats,
    replace_rows,
    sampled,
)
from lumigrad.client.compat.gsplat.utils import normalized_quat_to_rotmat

__all__ = [
    "_multinomial_sample",
    "_update_param_with_optimizer",
    "duplicate",
    "inject_noise_to_position",
    "normalized_quat_to_rotmat",
    "relocate",
    "remove",
    "reset_opa",
    "sample_add",
    "split",
]
State = MutableMapping[str, Any]


def duplicate(params: Parameters, optimizers: Optimizers, state: State, mask: torch.Tensor, scene: Any = None) -> None:
    """Appends a copy of each Gaussian of the mask, bool [N]."""
    Splats(params, optimizers, state, scene).duplicate(mask)


def split(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    mask: torch.Tensor,
    revised_opacity: bool = False,
    scene: Any = None,
) -> None:
    """Replaces each Gaussian of the mask, bool [N], by two smaller ones, the last rows, which are sampled from it.

    With `revised_opacity` the two together are as opaque as the original, otherwise each is.
    """
    Splats(params, optimizers, state, scene).split(mask, revised_opacity)


def remove(params: Parameters, optimizers: Optimizers, state: State, mask: torch.Tensor, scene: Any = None) -> None:
    """Removes the Gaussians of the mask, bool [N]."""
    Splats(params, optimizers, state, scene).remove(mask)


def reset_opa(params: Parameters, optimizers: Optimizers, state: State, value: float) -> None:
    """Clamps opacities to at most `value`, after activation, and sets the state of their optimizer to 0."""
    Splats(params, optimizers, state).reset_opacities(value)


def relocate(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    mask: torch.Tensor,
    binoms: torch.Tensor | None = None,
    min_opacity: float = 0.005,
    scene: Any = None,
) -> None:
    """Moves the Gaussians of the mask, bool [N], onto others, sampled in proportion to opacity; ignores `binoms`."""
    Splats(params, optimizers, state, scene).relocate(mask, min_opacity)


def sample_add(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    n: int,
    binoms: torch.Tensor | None = None,
    min_opacity: float = 0.005,
    scene: Any = None,
) -> None:
    """Appends `n` copies of Gaussians, sampled in proportion to opacity; ignores `binoms`."""
    Splats(params, optimizers, state, scene).sample_add(n, min_opacity)


def inject_noise_to_position(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    noise_scale: float | None = None,
    *,
    scaler: float | None = None,
    t: float = 0.005,
    k: float = 100.0,
) -> None:
    """Moves the means by noise of each Gaussian's covariance, less the more opaque it is.

    Args:
        params: the parameters.
        optimizers: not changed.
        state: not changed.
        noise_scale: factor of the noise.
        scaler: an older name of `noise_scale`.
        t: opacity at which the noise has fallen to half.
        k: how fast it falls there.

    Raises:
        TypeError: neither of the two names of the factor is given.
    """
    factor = scaler if noise_scale is None else noise_scale
    if factor is None:
        raise TypeError("noise_scale: expected a factor, got None")
    Splats(params, optimizers, state).add_noise(factor, t, k)


@torch.no_grad()
def _update_param_with_optimizer(
    param_fn: NamedChange,
    optimizer_fn: NamedChange,
    params: Parameters,
    optimizers: Optimizers,
    names: list[str] | None = None,
) -> None:
    """Replaces parameters, and the tensors in their optimizers' states, by functions of their names and values."""
    replace_rows(params, optimizers, param_fn, optimizer_fn, names or ())


@torch.no_grad()
def _multinomial_sample(weights: torch.Tensor, n: int, replacement: bool = True) -> torch.Tensor:
    """Returns `n` indices of weights [N], sampled in proportion to them."""
    return sampled(weights, n) if replacement else torch.multinomial(weights, n, replacement=False)
