"""Refusals of the JAX functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Client, InvalidArgument, LumigradError
from support.calls.jax_cases import GAUSSIANS, SPHERES, gaussians, rows, spheres, world

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402 - after the helpful skip

from lumigrad.client import jax as functions  # noqa: E402

MASKED = np.ma.masked_equal(np.eye(3), 1.0)
REFUSED = [
    (lambda c: distances(c, jnp.ones((3, 5))), r"spheres: expected shape \[B, H, S, 4\]"),
    (lambda c: distances(c, outputs="costs"), "outputs: expected some of cost, distance"),
    (lambda c: distances(c, poses=jnp.ones((3, 7))), r"poses: expected shape \[2, 7\]"),
    (lambda c: render(c, cam_params=jnp.ones(9)), "cam_params: expected shape"),
    (lambda c: render(c, width=None), "width, height: expected"),
    (lambda c: render(c, colors=jnp.ones((30, 3), complex)), "colors: expected real numbers"),
    (lambda c: splat(c, quats=None), r"quats: expected an array of shape \[30, 4\], got None"),
    (lambda c: splat(c, means="here"), "means: expected an array, got str"),
    (lambda c: splat(c, means=torch.ones(30, 3, requires_grad=True)), "means: expected an array, got Tensor .*detach"),
    (lambda c: splat(c, scales=[[1, 2], [3]], primitive="surfel"), "scales: expected an array, got list"),
    (lambda c: splat(c, means=MASKED), r"^means: expected values everywhere, got an array with 3 of 9 masked"),
    (lambda c: splat(c, means=list(MASKED)), r"^means: expected values everywhere, got an array with 1 of 3 masked"),
    (lambda c: splat(c, means=[list(MASKED)]), r"^means: expected values everywhere, got an array with 1 of 3 masked"),
    (lambda c: distances(c, MASKED), r"^spheres: expected values everywhere, got an array with 3 of 9 masked"),
    (lambda c: distances(c, [list(MASKED)]), r"^spheres: expected values everywhere, got an array with 1 of 3 masked"),
    (lambda c: distances(c, poses=[MASKED]), r"^poses: expected values everywhere, got an array with 3 of 9 masked"),
    (lambda c: splat(c, sh_degree=3), "sh_degree: expected a degree from 0 to 4 whose"),
    (lambda c: splat(c, projection="round"), 'projection: expected one of "pinhole"'),
    (lambda c: splat(c, distortion=np.ones((3, 4))), r"distortion: expected \[k\] or one row"),
    (lambda c: splat(c, outputs="normals"), 'outputs: normals needs response="ray"'),
    (lambda c: splat(c, means=jnp.ones((2, 30, 3))), r"means: expected shape \[N, 3\], got \[2, 30, 3\]; use jax.vmap"),
    (
        lambda c: jax.grad(lambda b: render(c, background=b, semantics="compat").color.sum())(jnp.ones(3)),
        'background: expected an argument that is not differentiated, since it has no gradient with semantics="compat"',
    ),
    (
        lambda c: jax.grad(lambda p: distances(c, poses=p, semantics="curobo").cost.sum())(jnp.ones((2, 7))),
        'poses: expected an argument that is not differentiated, since it has no gradient with semantics="curobo"',
    ),
]


# Refusals that depend on values, which only the call itself sees.
LATE = [
    (lambda c: splat(c, Ks=jnp.tile(2 * jnp.eye(3), (2, 1, 1))), r"Ks: .* the last row \[0.0, 0.0, 2.0\]; divide each"),
    (
        lambda c: splat(c, Ks=jnp.tile(2 * jnp.eye(3), (2, 1, 1)), projection_method="unscented"),
        r"Ks: .* divide each by its last entry",
    ),
    (lambda c: splat(c, Ks=jnp.tile(jnp.eye(3).at[0, 1].set(0.1), (2, 1, 1))), "Ks: .* got skew"),
    (lambda c: splat(c, viewmats=jnp.ones((2, 4, 4))), "viewmats: expected 0 0 0 1 as the last row"),
]


def distances(client: Client, values: Any = None, **options: Any) -> Any:
    return functions.mesh_distance(rows() if values is None else values, world(), client=client, **options)


def render(client: Client, **changes: Any) -> Any:
    return functions.render_spheres(**{**spheres(), **SPHERES, **changes}, client=client)


def splat(client: Client, **changes: Any) -> Any:
    return functions.render_gaussians(**{**gaussians(), **GAUSSIANS, **changes}, client=client)


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_mistakes_are_told_before_anything_is_computed(client: Client, call: Callable[[Client], Any], said: str):
    with pytest.raises(InvalidArgument, match=said):
        call(client)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_the_worker_refuses_is_told(client: Client, compiled: bool):
    call = partial(render, client, gamma=7.0)
    with pytest.raises(Exception, match="gamma"):
        jax.block_until_ready((jax.jit(call) if compiled else call)())


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_are_refused_by_name(client: Client, compiled: bool):
    slope = jax.grad(lambda weight: distances(client, weight=weight, activation_distance=0.5).cost.sum())
    again = jax.grad(lambda weight: slope(weight) ** 2)
    with pytest.raises(LumigradError, match="second derivatives are not computed"):
        (jax.jit(again) if compiled else again)(jnp.float32(2))


@pytest.mark.parametrize(("call", "said"), LATE)
def test_wrong_matrices_are_named(client: Client, call: Callable[[Client], Any], said: str):
    with pytest.raises(InvalidArgument, match=said):
        call(client)
    with pytest.raises(Exception, match=said):
        jax.block_until_ready(jax.jit(lambda: call(client).color)())
