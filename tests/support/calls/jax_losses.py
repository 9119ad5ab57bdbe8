"""Losses of two groups of inputs, one for each JAX function, whose gradients are compared in many ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lumigrad.client import Client
from lumigrad.client import jax as functions
from support.calls.jax_cases import GAUSSIANS, SPHERES, gaussians, rows, spheres, world

Arrays = dict[str, Any]
Loss = Callable[[Arrays, Arrays], Any]

# The inputs of the second group; those of the first are all others.
SECOND = {
    "render_gaussians": ("colors", "viewmats"),
    "render_spheres": ("colors", "radii"),
    "mesh_distance": ("poses",),
}


def inputs(name: str) -> tuple[Arrays, Arrays]:
    """The two groups of inputs of a function."""
    made = {
        "render_gaussians": gaussians,
        "render_spheres": spheres,
        "mesh_distance": lambda: {"spheres": rows(2, 5), "poses": world().poses.astype("float32")},
    }[name]()
    arrays = {key: jnp.asarray(array) for key, array in made.items()}
    second = {key: arrays.pop(key) for key in SECOND[name]}
    return arrays, second


def loss_of(name: str, client: Client) -> Loss:
    """A loss of both groups; each has a gradient that is not 0."""
    options: dict[str, dict[str, Any]] = {
        "render_gaussians": GAUSSIANS,
        "render_spheres": {**SPHERES, "outputs": ()},
        "mesh_distance": {"world": world(), "activation_distance": 0.5, "outputs": "cost"},
    }

    def loss(first: Arrays, second: Arrays) -> Any:
        result = getattr(functions, name)(**first, **second, **options[name], client=client)
        return ((result.cost if name == "mesh_distance" else result.color) ** 2).sum()

    return loss


def stopped(arrays: Arrays) -> Arrays:
    """The arrays without gradients."""
    return jax.tree.map(jax.lax.stop_gradient, arrays)
