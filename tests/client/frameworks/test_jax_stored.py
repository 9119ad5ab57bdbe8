"""Stored scenes in the operators of JAX: whole, or with some arrays of the caller's, compiled or not."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lumigrad.client import Gaussians, InvalidArgument, SceneHandle, Spheres
from lumigrad.client.jax import render_gaussians, render_spheres

COUNT, SIZE = 30, {"width": 16, "height": 12}
SPHERES = {**SIZE, "gamma": 0.1, "max_depth": 9.0}
CAMERA = jnp.array([0.0, 0, 0, 0, 0, 0, 1.0, 1.5])
VIEWS = {"viewmats": jnp.eye(4)[None], "Ks": jnp.array([[[12.0, 0, 8], [0, 12, 6], [0, 0, 1]]])}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "means": np.concatenate([rng.uniform(-1, 1, (COUNT, 2)), rng.uniform(3, 4, (COUNT, 1))], axis=1),
        "quats": rng.normal(size=(COUNT, 4)),
        "scales": rng.uniform(0.05, 0.25, (COUNT, 3)),
        "opacities": rng.uniform(0.2, 0.9, COUNT),
        "colors": rng.uniform(-0.3, 0.7, (COUNT, 4, 3)),
    }


@pytest.fixture
def gaussians(client) -> SceneHandle:
    values = arrays()
    return client.put(Gaussians(sh=values.pop("colors"), **values))


@pytest.fixture
def spheres(client) -> SceneHandle:
    return client.put(Spheres(*sphere_arrays().values()))


def sphere_arrays() -> dict[str, np.ndarray]:
    values = arrays()
    return {"positions": values["means"], "colors": values["colors"][:, 0] + 0.3, "radii": values["scales"][:, 0]}


@pytest.mark.parametrize("own", [(), ("opacities",), ("means", "colors")], ids=str)
@pytest.mark.parametrize("transform", [lambda function: function, jax.jit], ids=["eager", "compiled"])
def test_gaussians_render_as_those_that_are_sent(client, gaussians, own, transform, payload_lengths):
    values = {name: jnp.asarray(array, jnp.float32) for name, array in arrays().items()}
    given = {**{name: 0.9 * values[name] for name in own}, **VIEWS}
    degree = {"sh_degree": 1} if "colors" in own else {}

    def kept(inputs):
        result = render_gaussians(scene=gaussians, **inputs, **SIZE, **degree, client=client)
        return result.color.sum() + result.depth.sum()

    def sent(inputs):
        result = render_gaussians(**{**values, **inputs}, **SIZE, sh_degree=1, client=client)
        return result.color.sum() + result.depth.sum()

    payload_lengths.clear()
    value, found = transform(jax.value_and_grad(kept))(given)
    assert payload_lengths[0] <= sum(4 * values[name].size + 64 for name in own)
    wanted, expected = jax.value_and_grad(sent)(given)
    assert value == wanted
    for name in given:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("own", [(), ("radii",), ("positions", "colors")], ids=str)
def test_spheres_render_as_those_that_are_sent(client, spheres, own):
    values = {name: jnp.asarray(array, jnp.float32) for name, array in sphere_arrays().items()}
    given = {**{name: 0.9 * values[name] for name in own}, "cam_params": CAMERA}
    kept = lambda inputs: render_spheres(scene=spheres, **inputs, **SPHERES, client=client).color.sum()  # noqa: E731
    sent = lambda inputs: render_spheres(**{**values, **inputs}, **SPHERES, client=client).color.sum()  # noqa: E731
    found, expected = jax.grad(kept)(given), jax.grad(sent)(given)
    for name in given:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_errors_name_the_argument(client, gaussians, spheres):
    given = {**VIEWS, **SIZE, "client": client}
    with pytest.raises(InvalidArgument, match="means: expected a tensor, got a SceneHandle; pass the handle as scene="):
        render_gaussians(gaussians, **given)
    with pytest.raises(InvalidArgument, match="scene: expected a handle of gaussians, got one of kind 'spheres'"):
        render_gaussians(scene=spheres, **given)
    with pytest.raises(InvalidArgument, match="scene: expected a handle with a copy of its scene"):
        render_gaussians(scene=replace(gaussians, scene=None), **given)
    with pytest.raises(InvalidArgument, match=r"opacities: expected shape \[30\], got \[29\]"):
        render_gaussians(scene=gaussians, opacities=jnp.ones(29), **given)
    with pytest.raises(InvalidArgument, match="radii: expected an array of shape"):
        render_spheres(jnp.zeros((2, 3)), jnp.ones((2, 3)), None, CAMERA, **SPHERES, client=client)
