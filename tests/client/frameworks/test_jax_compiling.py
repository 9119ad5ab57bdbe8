"""Calls to a worker from JAX: what is compiled and kept, and how often the worker computes."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Cuboid, Gaussians, Obstacle, World
from support.calls.jax_cases import GAUSSIANS, HEIGHT, SPHERES, WIDTH, gaussians, rows, spheres, world
from support.workers.balance import wait_until_released
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402 - after the helpful skip

from lumigrad.client.jax import mesh_distance, render_gaussians, render_spheres  # noqa: E402
from support.calls.jax_losses import SECOND, inputs, loss_of  # noqa: E402

VIEWS = {key: gaussians()[key] for key in ("viewmats", "Ks")}
PICTURE = {"width": WIDTH, "height": HEIGHT}


@pytest.fixture
def compiled() -> Any:
    """The events of compilations from now on."""
    events: list[str] = []

    def note(event: str, _: float, **__: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros(7)))
    assert events, "the test does not see what is compiled"
    return events


def camera(turn: float) -> Camera:
    return Camera.look_at((turn, 0, -3), (0, 0, 20), **PICTURE)


def picture(client: Client, **changes: Any) -> Any:
    arrays = {key: jnp.asarray(array) for key, array in spheres().items() if key not in ("cam_params", "background")}
    given = {**arrays, **SPHERES, "cam_params": camera(0.0), "outputs": (), "client": client, **changes}
    return render_spheres(**given).color


def splats(client: Client, **changes: Any) -> Any:
    arrays = {key: jnp.asarray(array) for key, array in gaussians().items()}
    return render_gaussians(**{**arrays, **GAUSSIANS, "client": client, **changes}).color


def costs(client: Client, **changes: Any) -> Any:
    given = {"world": World(Cuboid((1, 1, 1))), "activation_distance": 0.3, "outputs": "cost", **changes}
    return mesh_distance(jnp.asarray(rows(2)), client=client, **given).cost


def rendered(client: Client, scene: Any) -> Any:
    return render_gaussians(scene=scene, **VIEWS, **PICTURE, client=client).color


def another(client: Client, k: int) -> Any:
    """The handle of another scene for each `k`."""
    values = gaussians()
    scene = Gaussians(
        values["means"] + 0.01 * k, values["quats"], values["scales"], values["opacities"], sh=values["colors"]
    )
    return client.put(scene)


VALUES: dict[str, Callable[[Client, int], Any]] = {
    "cameras": lambda client, k: picture(client, cam_params=camera(0.01 * k)),
    "gammas": lambda client, k: picture(client, gamma=0.1 * 0.9**k),
    "depths": lambda client, k: picture(client, max_depth=40.0 + k, min_depth=0.1 + 0.01 * k),
    "near and far": lambda client, k: splats(client, near=0.1 + 0.01 * k, far=100.0 + k, eps2d=0.3 + 0.01 * k),
    "background": lambda client, k: splats(client, background=[0.1 * k, 0.2, 0.3]),
    "lenses": lambda client, k: splats(client, distortion=[0.01 * k, 0.0, 0.0, 0.0]),
    "activation distances": lambda client, k: costs(client, activation_distance=0.3 + 0.01 * k, weight=1.0 + k),
    "worlds": lambda client, k: costs(client, world=[Obstacle(Cuboid((1, 1, 1 + 0.1 * k)), (0.01 * k, 0, 0))]),
    "scenes": lambda client, k: rendered(client, another(client, k)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_one_kind_are_compiled_once(client: Client, compiled: list[str], name: str):
    call = VALUES[name]
    first, second = (np.asarray(call(client, k)) for k in (0, 1))
    assert not np.array_equal(first, second), "these values change nothing"
    slope = lambda k: jax.grad(lambda one: (one * call(client, k)).sum())(jnp.float32(1))  # noqa: E731
    slope(0)
    compiled.clear()
    for k in range(2, 6):
        jax.block_until_ready((call(client, k), slope(k)))
    assert not compiled
    np.testing.assert_array_equal(call(client, 1), second)


def test_versions_of_a_stored_scene_are_compiled_once(client: Client, compiled: list[str]):
    handle = another(client, 0)
    rendered(client, handle)
    compiled.clear()
    for k in range(3):
        handle = client.update(handle, opacities=np.full(len(gaussians()["means"]), 0.1 + 0.2 * k, np.float32))
        jax.block_until_ready(rendered(client, handle))
    assert not compiled


@pytest.mark.parametrize("has_list", [False, True])
def test_a_world_is_compiled_once_however_it_is_given(client: Client, compiled: list[str], has_list: bool) -> None:
    """A list makes a new world each time, though with the same shapes in the same places."""
    spheres, fixed = jnp.asarray(rows(2, 5)), world()
    size, place = np.ones(3), np.full(3, 0.2)

    def asked() -> Any:
        given = [*fixed.obstacles, Obstacle(Cuboid(size), place)] if has_list else fixed
        return mesh_distance(spheres, given, client=client).distance

    first = asked()
    compiled.clear()
    for _ in range(3):
        np.testing.assert_array_equal(asked(), first)
    assert not compiled
    # Values share memory with the arrays they were made from.
    for array in (size, place) if has_list else ():
        array += 5.0
        moved = World([*fixed.obstacles, Obstacle(Cuboid(size), place)])
        expected = client.query(moved, np.asarray(spheres)).distance
        np.testing.assert_array_equal(asked(), expected)


@pytest.mark.parametrize("name", SECOND)
def test_outside_of_compiled_functions_nothing_is_compiled_twice(client: Client, compiled: list[str], name: str):
    loss, (first, second) = loss_of(name, client), inputs(name)
    for call in (loss, jax.value_and_grad(loss)):
        jax.block_until_ready(call(first, second))
        compiled.clear()
        before = resident_bytes()
        for _ in range(20):
            jax.block_until_ready(call(first, second))
        assert not compiled
        # Each compilation would take 1.5 MB.
        assert resident_bytes() - before < 20e6


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


WAYS: dict[str, Callable[[Any], Any]] = {
    "called": lambda loss: loss,
    "differentiated": jax.grad,
    "compiled": lambda loss: jax.jit(jax.value_and_grad(loss)),
    "mapped": lambda loss: lambda x: jax.vmap(jax.grad(loss))(jnp.stack([x, x])),
    "checkpointed": lambda loss: jax.grad(jax.checkpoint(loss)),
    "pullback": lambda loss: lambda x: jax.vjp(loss, x)[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outlives_its_use(worker_process: WorkerProcess, way: str):
    """Scenes with their copies, clients and cameras are collected once the caller has dropped them."""

    def use() -> list[weakref.ref]:
        own = Client(worker_process.target)
        handle = another(own, 9)
        seen = camera(0.2)

        def loss(views: Any) -> Any:
            of_spheres = picture(own, cam_params=seen, opacities=views[0, 0, :1].repeat(30) * 0.5)
            shown = render_gaussians(scene=handle, viewmats=views, Ks=VIEWS["Ks"], **PICTURE, client=own)
            return shown.color.sum() + of_spheres.sum()

        jax.block_until_ready(WAYS[way](loss)(jnp.asarray(VIEWS["viewmats"])))
        found = [weakref.ref(own), weakref.ref(handle.scene), weakref.ref(seen)]
        own.delete(handle)
        own.close()
        return found

    references = use()

    def left() -> list[object]:
        # A thread that gives back what was kept may be about to end.
        gc.collect()
        return [found for reference in references if (found := reference()) is not None]

    wait_until(lambda: not left())


class Counts:
    """Counts a worker's calls since the object was made."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        services = {
            "Render": ["RenderService"],
            "Query": ["DistanceService"],
            "Backward": ["RenderService", "DistanceService"],
        }
        return {
            name: sum(self._process.metric("lumigrad_calls_total", method=f"{service}.{name}") for service in of_it)
            for name, of_it in services.items()
        }

    def of(self, name: str) -> float:
        return self._now()[name] - self._before[name]


def views_in_a_row(loss: Any, arrays: Any, count: int) -> Any:
    return sum(loss({key: value + 1e-3 * k for key, value in arrays.items()}) for k in range(count))


def mapped_views(loss: Any, arrays: Any, count: int) -> Any:
    several = {key: jnp.stack([value + 1e-3 * k for k in range(count)]) for key, value in arrays.items()}
    return jax.vmap(loss)(several).sum()


def scanned_views(loss: Any, arrays: Any, count: int) -> Any:
    several = {key: jnp.stack([value + 1e-3 * k for k in range(count)]) for key, value in arrays.items()}
    return jax.lax.scan(lambda total, each: (total + loss(each), None), 0.0, several)[0]


@pytest.mark.parametrize("transform", [lambda function: function, jax.jit], ids=["eager", "compiled"])
@pytest.mark.parametrize("views", [views_in_a_row, mapped_views, scanned_views])
@pytest.mark.parametrize("name", ["render_spheres", "mesh_distance"])
def test_a_loss_of_many_views_computes_each_once(
    client: Client, worker_process: WorkerProcess, name: str, views: Any, transform: Any
):
    first, second = inputs(name)
    key = "colors" if name == "render_spheres" else "poses"
    loss = loss_of(name, client)
    run = transform(jax.grad(lambda moved: views(lambda given: loss(first, {**second, **given}), moved, 40)))
    counts = Counts(worker_process)
    jax.block_until_ready(run({key: second[key]}))
    assert counts.of("Render" if name == "render_spheres" else "Query") == 40
    assert counts.of("Backward") == 40


PASSES: dict[str, Callable[[Any], Any]] = {
    "checkpointed": lambda loss: jax.value_and_grad(jax.checkpoint(loss)),
    "compiled": lambda loss: jax.jit(jax.value_and_grad(jax.checkpoint(loss))),
    "dropped": lambda loss: lambda x: jax.vjp(loss, x)[0],
    "mapped": lambda loss: lambda x: jax.vmap(jax.grad(loss))(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), x)),
}


@pytest.mark.parametrize("way", PASSES)
def test_no_forward_state_stays_on_the_worker(client: Client, worker_process: WorkerProcess, way: str):
    """This includes the states of passes that are computed again and of those that never go backward."""
    loss, (first, second) = loss_of("render_spheres", client), inputs("render_spheres")
    run = PASSES[way](lambda given: loss(first, given))
    for _ in range(5):
        jax.block_until_ready(run(second))
    wait_until_released([worker_process])
