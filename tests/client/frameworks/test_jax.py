"""The JAX functions, compiled, mapped and repeated, against the PyTorch operators and finite differences."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Distances
from lumigrad.client import torch as operators
from lumigrad.client.operators.gaussians import OUTPUTS
from support.calls.jax_cases import (
    CAMERAS,
    COSTS,
    COUNT,
    GAUSSIANS,
    HEIGHT,
    SPHERES,
    WIDTH,
    Arrays,
    gaussians,
    rows,
    spheres,
    world,
)
from support.files.documents import ROOT, run_code_of
from support.workers.worker import WorkerProcess

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402 - after the helpful skip

from lumigrad.client import jax as functions  # noqa: E402

LOOP = ROOT / "tests" / "support" / "calls" / "jax_loop.py"


def weighted(result: Any, sum_of: Callable[[Any], Any], convert: Callable[[np.ndarray], Any]) -> Any:
    """A loss in which every output has other weights."""
    total = 0.0
    for index, (name, value) in enumerate(result._asdict().items()):
        if value is not None and name != "info":
            total = total + sum_of(
                value * convert(np.random.default_rng(index).normal(size=value.shape).astype(np.float32))
            )
    return total


def assert_same(name: str, arrays: Arrays, options: dict[str, Any]) -> None:
    """Fails unless results and the gradients of all arrays are those of the PyTorch operator."""
    given = {key: torch.from_numpy(array.copy()).requires_grad_() for key, array in arrays.items()}
    expected = getattr(operators, name)(**given, **options)
    weighted(expected, torch.sum, torch.from_numpy).backward()
    for compiled in (lambda function: function, jax.jit):
        run = compiled(lambda values: getattr(functions, name)(**values, **options))
        found = run(arrays)
        for output, value in expected._asdict().items():
            if value is not None:
                np.testing.assert_array_equal(
                    np.asarray(found._asdict()[output]).view(np.int32), value.detach().numpy().view(np.int32), output
                )
        gradients = compiled(jax.grad(lambda values, run=run: weighted(run(values), jnp.sum, jnp.asarray)))(arrays)
        for key, tensor in given.items():
            size = max(float(tensor.grad.abs().max()), 1e-6)
            np.testing.assert_allclose(gradients[key] / size, tensor.grad.numpy() / size, atol=2e-5, err_msg=key)
            assert np.abs(gradients[key]).max() > 0, key


@pytest.mark.parametrize("degree", [None, 1])
def test_gaussians_are_those_of_torch(client: Client, degree: int | None):
    # Derived outputs differ in rounding.
    outputs = ("color", "depth", "transmittance", "inverse_depth")
    assert_same(
        "render_gaussians", gaussians(degree), {**GAUSSIANS, "sh_degree": degree, "client": client, "outputs": outputs}
    )


def test_derived_images_are_those_of_torch(client: Client):
    arrays = gaussians()
    expected = operators.render_gaussians(
        **{k: torch.from_numpy(v) for k, v in arrays.items()}, **GAUSSIANS, client=client
    )
    found = functions.render_gaussians(**arrays, **GAUSSIANS, client=client)
    along_rays = ("hit_distance", "expected_hit_distance", "normals")
    assert found._fields == ("color", *OUTPUTS[1:], "inverse_depth", *along_rays)
    assert found.inverse_depth is None and found.color.shape == (CAMERAS, HEIGHT, WIDTH, 3)
    for name in OUTPUTS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name)


def test_surfels_and_gradients_of_few_rows_are_those_of_torch(client: Client):
    arrays, outputs = gaussians(), ("alpha", "normals")
    given = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in arrays.items()}
    expected = operators.render_gaussians_2d(**given, **GAUSSIANS, outputs=outputs, client=client)
    expected.color.sum().backward()

    def brightness(means: Any) -> Any:
        options = {"primitive": "surfel", "sparse": True, "outputs": outputs}
        flat = {**arrays, "means": means, "scales": arrays["scales"][:, :2]}
        found = functions.render_gaussians(**flat, **GAUSSIANS, **options, client=client)
        return found.color.sum(), found

    (_, found), slopes = jax.value_and_grad(brightness, has_aux=True)(arrays["means"])
    for name in ("color", *outputs):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name).detach(), rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(slopes, given["means"].grad, rtol=1e-5, atol=1e-6)


def test_covariances_and_transforms_are_those_of_torch(client: Client):
    arrays = gaussians(None)
    factor = np.random.default_rng(0).normal(size=(COUNT, 3, 3)).astype(np.float32) * 0.15
    arrays |= {"covariances": factor @ factor.transpose(0, 2, 1) + 0.01 * np.eye(3, dtype=np.float32)}
    del arrays["quats"], arrays["scales"]
    matrix = np.eye(4, dtype=np.float32)
    matrix[:3, 3] = (0.1, -0.2, 0.3)

    def jax_loss(values: Arrays, placed: Any) -> Any:
        result = functions.render_gaussians(
            quats=None, scales=None, **values, width=WIDTH, height=HEIGHT, client=client, transforms=[(5, 20, placed)]
        )
        return weighted(result, jnp.sum, jnp.asarray)

    found, of_matrix = jax.jit(jax.grad(jax_loss, argnums=(0, 1)))(arrays, matrix)
    given = {key: torch.from_numpy(array.copy()).requires_grad_() for key, array in arrays.items()}
    placed = torch.from_numpy(matrix.copy()).requires_grad_()
    result = operators.render_gaussians(
        quats=None, scales=None, **given, width=WIDTH, height=HEIGHT, client=client, transforms=[(5, 20, placed)],
        outputs=("color", "alpha", "depth", "expected_depth", "transmittance"),
    )  # fmt: skip
    weighted(result, torch.sum, torch.from_numpy).backward()
    for key, expected in [
        *((key, (found[key], tensor.grad)) for key, tensor in given.items()),
        ("", (of_matrix, placed.grad)),
    ]:
        size = float(expected[1].abs().max())
        np.testing.assert_allclose(expected[0] / size, expected[1].numpy() / size, atol=5e-5, err_msg=key)


@pytest.mark.parametrize("semantics", ["exact", "compat"])
def test_spheres_are_those_of_torch(client: Client, semantics: str):
    arrays = spheres()
    if semantics == "compat":
        del arrays["background"]
    outputs = ("color", "alpha", "depth", "info") if semantics == "exact" else ("color", "info")
    assert_same("render_spheres", arrays, {**SPHERES, "client": client, "semantics": semantics, "outputs": outputs})


def test_distances_are_those_of_torch(client: Client):
    arrays = {"spheres": rows(2, 5), "poses": world().poses.astype(np.float32)}
    assert_same("mesh_distance", arrays, {"world": client.put(world()), "client": client, **COSTS})
    turned = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], np.float32)
    arrays["poses"] = np.stack([np.column_stack([turned, pose[:3]]) for pose in world().poses]).astype(np.float32)
    assert_same("mesh_distance", arrays, {"world": client.put(world()), "client": client, **COSTS})
    assert_same(
        "mesh_distance",
        {"spheres": rows(4)},
        {"world": world(), "client": client, "semantics": "curobo", "outputs": ("cost",), "activation_distance": 0.1},
    )


def test_points_are_spheres_of_radius_0(client: Client):
    points = jnp.asarray(rows(3))[..., :3]
    padded = jnp.concatenate([points, jnp.zeros((*points.shape[:-1], 1))], axis=-1)
    handle = client.put(world())

    def loss(values: Any) -> Any:
        return functions.mesh_distance(values, handle, client=client, **COSTS).cost.sum()

    np.testing.assert_array_equal(jax.grad(loss)(points), jax.grad(loss)(padded)[..., :3])


def test_gradients_agree_with_finite_differences(client: Client):
    handle = client.put(world())
    start = jnp.asarray(rows(3))

    @jax.jit
    def loss(values: Any, weight: Any) -> Any:
        found = functions.mesh_distance(values, handle, activation_distance=0.5, weight=weight, client=client)
        return found.cost.sum() + (found.distance**2).sum()

    gradient, of_weight = jax.jit(jax.grad(loss, argnums=(0, 1)))(start, jnp.float32(2.0))
    random = np.random.default_rng(0)
    for _ in range(4):
        way = jnp.asarray(random.normal(size=start.shape), jnp.float32)
        step = 2e-3
        slope = (loss(start + step * way, 2.0) - loss(start - step * way, 2.0)) / (2 * step)
        assert float((gradient * way).sum()) == pytest.approx(float(slope), rel=2e-2)
    assert float(of_weight) == pytest.approx(float(loss(start, 3.0) - loss(start, 2.0)), rel=1e-3)


def test_gamma_may_be_an_array(client: Client):
    arrays = spheres()
    options = {**SPHERES, "client": client, "outputs": ()}

    def loss(gamma: Any) -> Any:
        return (functions.render_spheres(**arrays, **{**options, "gamma": gamma}).color ** 2).sum()

    gamma = torch.tensor(0.1, requires_grad=True)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    (operators.render_spheres(**tensors, **{**options, "gamma": gamma}).color ** 2).sum().backward()
    assert float(jax.grad(loss)(jnp.float32(0.1))) == pytest.approx(float(gamma.grad), rel=1e-4)


def test_several_are_mapped(client: Client):
    handle = client.put(world())
    batch = jnp.stack([jnp.asarray(rows(3)) + 0.1 * index for index in range(4)])

    def loss(values: Any) -> Any:
        return functions.mesh_distance(values, handle, client=client, **COSTS).cost.sum()

    each = jnp.stack([jax.grad(loss)(values) for values in batch])
    together = jax.jit(jax.vmap(jax.grad(loss)))(batch)
    np.testing.assert_array_equal(each, together)
    assert jax.vmap(jax.grad(loss))(batch[:0]).shape == batch[:0].shape
    means = gaussians()
    scenes = jnp.stack([means["means"], means["means"] + 0.1])
    pictures = jax.vmap(
        lambda m: functions.render_gaussians(**{**means, "means": m}, **GAUSSIANS, client=client).color
    )(scenes)
    assert pictures.shape == (2, CAMERAS, HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(pictures[0], functions.render_gaussians(**means, **GAUSSIANS, client=client).color)


def test_more_passes_than_are_kept_are_right_too(client: Client):
    """Forty forward passes before the first backward pass: most forward states are forgotten, and computed again."""
    handle = client.put(world())
    batch = jnp.stack([jnp.asarray(rows(2)) + 0.01 * index for index in range(40)])

    def loss(values: Any) -> Any:
        return functions.mesh_distance(values, handle, client=client, activation_distance=0.2).cost.sum()

    together = jax.jit(jax.vmap(jax.grad(loss)))(batch)
    for index in (0, 20, 39):
        np.testing.assert_array_equal(together[index], jax.grad(loss)(batch[index]))


def test_only_what_is_needed_is_asked_for(client: Client, differentiated: Callable[[type], Any]):
    asked = differentiated(Distances)
    poses = jnp.asarray(world().poses, jnp.float32)

    def loss(values: Any, placed: Any) -> Any:
        return functions.mesh_distance(values, world(), poses=placed, client=client, activation_distance=0.2).cost.sum()

    jax.grad(loss)(jnp.asarray(rows(2)), poses)
    jax.jit(jax.grad(loss, argnums=1))(jnp.asarray(rows(2)), poses)
    assert asked == [(("cost",), ("spheres",)), (("cost",), ("poses",))]


def test_what_has_no_gradient_passes_none(client: Client):
    arrays = spheres()

    def loss(positions: Any) -> Any:
        result = functions.render_spheres(
            **{**arrays, "positions": positions}, **SPHERES, semantics="compat", client=client
        )
        return result.alpha.sum() + result.depth.sum()

    np.testing.assert_array_equal(jax.grad(loss)(arrays["positions"]), 0)


@pytest.mark.parametrize("cast", [np.float64, np.float16])
def test_other_kinds_of_numbers_are_converted(client: Client, cast: Any):
    arrays = {name: array.astype(cast) for name, array in spheres().items()}
    found = functions.render_spheres(**arrays, **SPHERES, client=client)
    assert found.color.dtype == jnp.float32 and found.color.shape == (HEIGHT, WIDTH, 3)
    gradient = jax.grad(
        lambda p: functions.render_spheres(**{**arrays, "positions": p}, **SPHERES, client=client).color.sum()
    )
    assert gradient(jnp.asarray(arrays["positions"])).dtype == jnp.asarray(arrays["positions"]).dtype


@pytest.mark.parametrize("transform", [lambda function: function, jax.jit], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", ["render_gaussians", "render_spheres"])
def test_one_number_is_the_background_of_all_channels(client: Client, name: str, transform: Any):
    arrays, options = (gaussians(), GAUSSIANS) if name == "render_gaussians" else (spheres(), SPHERES)

    def loss(background: Any) -> Any:
        found = getattr(functions, name)(**{**arrays, "background": background}, **options, client=client)
        return (found.color**2).sum()

    of_channels = jnp.full(3, 0.25)
    expected, slopes = loss(of_channels), jax.grad(loss)(of_channels)
    for number in (0.25, np.float32(0.25), np.array(0.25), jnp.float32(0.25), [0.25, np.float32(0.25), 0.25]):
        np.testing.assert_array_equal(transform(lambda number=number: loss(number))(), expected)
    np.testing.assert_allclose(transform(jax.grad(loss))(0.25), slopes.sum(), rtol=1e-5)
    (first,) = transform(jax.grad(lambda numbers: loss([numbers[0], 0.25, 0.25])))((0.25,))
    np.testing.assert_allclose(first, slopes[0], rtol=1e-5)


@pytest.mark.parametrize("cores", [2, 1])
def test_hundreds_of_calls_in_compiled_loops_pass(worker_process: WorkerProcess, cores: int):
    """The loops run in their own process, since a deadlock of callbacks would never end."""
    environment = {**os.environ, "LUMIGRAD_TARGET": worker_process.target}
    done = subprocess.run(
        [sys.executable, LOOP, str(cores)], capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    before, looped, stepped, picture = map(float, done.stdout.split())
    assert looped < 0.9 * before and looped == pytest.approx(stepped, rel=1e-4)
    assert picture > 0


def test_the_code_of_the_guide_runs(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    names = run_code_of(ROOT / "docs" / "jax.md")
    assert all(float(np.abs(slope).max()) > 0 for slope in names["slopes"])
    assert 0 < names["after"] < 0.7 * names["before"]
    np.testing.assert_array_equal(names["picture"], names["frame"].color)
