"""Random motion of Gaussians, as in 3DGS as MCMC."""

from __future__ import annotations

from collections.abc import Callable

from lumigrad.kernels.checks import check, is_number
from lumigrad.kernels.density.engine import engine_for
from lumigrad.kernels.density.parameters import Parameters, check_parameters
from lumigrad.kernels.density.random import Draw, check_draw
from lumigrad.kernels.stages import Stages

_MAX_RATE = 1e12


def add_noise(parameters: Parameters, draw: Draw, *, learning_rate: float, noise_rate: float = 5e5) -> Stages:
    """Adds Gaussian noise to the means, in place, as in 3DGS as MCMC (Kheradmand et al., NeurIPS 2024).

    means += learning_rate * noise_rate * gate * covariance * normal, where gate = 1 / (1 + exp(-100 (1 - opacity -
    0.995))), so that only nearly transparent Gaussians move, mostly along their longest axes.

    Args:
        parameters: Gaussians; their means are changed.
        draw: The random numbers to use.
        learning_rate: The learning rate of the means in this step, scene units.
        noise_rate: The factor of the noise.

    Returns:
        The times of the stages.

    Raises:
        ArgumentError: An argument is invalid.
    """
    return prepare_noise(parameters, draw, learning_rate=learning_rate, noise_rate=noise_rate)()


def prepare_noise(
    parameters: Parameters, draw: Draw, *, learning_rate: float, noise_rate: float = 5e5
) -> Callable[[], Stages]:
    """Checks the arguments of `add_noise` without changing them; the returned function, called once, adds the noise.

    Args:
        parameters: See `add_noise`.
        draw: See `add_noise`.
        learning_rate: See `add_noise`.
        noise_rate: See `add_noise`.

    Raises:
        ArgumentError: An argument is invalid.
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
