"""Noise that lets Gaussians explore."""

from __future__ import annotations

from collections.abc import Callable

from lumigrad.kernels.checks import check, is_number
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.random import Draw, check_draw
from lumigrad.kernels.stages import Stages

_MAX_RATE = 1e12


def add_noise(parameters: Parameters, draw: Draw, *, learning_rate: float, noise_rate: float = 5e5) -> Stages:
    """Moves the means of Gaussians at random, in place, as in 3DGS as MCMC (Kheradmand et al., NeurIPS 2024).

    means += learning_rate * noise_rate * gate * covariance * normal, where gate = 1 / (1 + exp(-100 (1 - opacity -
    0.995))): those that are nearly transparent move, within their own ellipsoid.

    Args:
        parameters: Gaussians; their means are changed.
        draw: Whose numbers.
        learning_rate: Of the means in this step, scene units.
        noise_rate: Times that.

    Returns:
        How long it took.

    Raises:
        ArgumentError: An argument does not fit.
    """
    return prepare_noise(parameters, draw, learning_rate=learning_rate, noise_rate=noise_rate)()


def prepare_noise(
    parameters: Parameters, draw: Draw, *, learning_rate: float, noise_rate: float = 5e5
) -> Callable[[], Stages]:
    """Checks all that `add_noise` needs, and changes nothing; what it returns adds the noise, once.

    Args:
        parameters: See `add_noise`.
        draw: See `add_noise`.
        learning_rate: See `add_noise`.
        noise_rate: See `add_noise`.

    Raises:
        ArgumentError: An argument does not fit.
    """
    check_parameters(parameters)
    parameters.require_gaussians("noise")
    check_draw(draw)
    for name, value in (("learning_rate", learning_rate), ("noise_rate", noise_rate)):
        check(is_number(value) and 0.0 <= float(value) <= _MAX_RATE, name, f"a value from 0 to {_MAX_RATE:g}", value)
    arrays = parameters.arrays("means", "quats", "scales", "opacities")
    strength = float(learning_rate) * float(noise_rate)
    engine, numbers = engine_for(parameters.device), draw.native("noise")
    return lambda: Stages([engine.run("add_noise", numbers, strength, **arrays)])
