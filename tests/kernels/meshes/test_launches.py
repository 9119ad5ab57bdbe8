"""Long trajectories are split into launches of about a second, with the same results bit for bit."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.meshes import Cuboid, Instance, Mesh, Settings, World, backward, evaluate
from support.meshes import shapes
from support.meshes.runs import OUTPUTS

DISTANCES = ("distance", "normal", "closest", "face", "instance", "beyond")
SHAPES = {"one step": (1, 1, 900), "one sphere": (1, 900, 1), "several": (3, 15, 40)}
SETTINGS: dict[str, dict[str, Any]] = {
    "still": {},
    "swept": {"sweep": True},
    "speeds": {"speed_metric": True, "time_step_s": 0.1},
    "field": {"semantics": "curobo_field"},
    "curobo": {"semantics": "curobo", "sweep": True},
}


def world() -> World:
    torus = shapes.torus(20, 10)
    mesh = Mesh.build(torch.from_numpy(torus.vertices), torch.from_numpy(torus.faces))
    boxes = [Instance(Cuboid((0.3, 0.2, 0.1)), (0.5 * i, 0.1, 0.0, 1.0, 0.0, 0.0, 0.0)) for i in range(-2, 3)]
    return World([Instance(mesh), *boxes])


def spheres(shape: tuple[int, int, int]) -> torch.Tensor:
    random = np.random.default_rng(sum(shape))
    rows = random.uniform(-1.5, 1.5, (*shape, 4)).astype(np.float32)
    rows[..., 3] = random.uniform(-0.02, 0.1, shape)
    return torch.from_numpy(rows)


@pytest.fixture
def small_launches(monkeypatch: pytest.MonkeyPatch, keep_threads: None) -> None:
    """Launches have 16 rows or a few more."""
    # Each thread has at least one, whatever the number of processors.
    _native.set_thread_count(min(_native.thread_count(), 16))
    # The package's attribute of this name is the function.
    module = importlib.import_module("lumigrad.kernels.meshes.evaluate")
    monkeypatch.setattr(module, "_WORK_AT_ONCE", 64)
    monkeypatch.setattr(module, "_CHUNK_ROWS", -(-16 // _native.thread_count()))


def results(shape: str, settings: str, *, launches: list[int], per_instance: bool = False) -> dict[str, torch.Tensor]:
    launches.clear()
    rows, given = spheres(SHAPES[shape]), Settings(activation_distance=0.2, **SETTINGS[settings])
    names = DISTANCES if per_instance else OUTPUTS
    if given.semantics == "curobo_field":
        names = tuple(name for name in names if name not in ("gradient", "exhausted"))
    found = evaluate(
        rows, world(), given, outputs=names, per_instance=per_instance, retain=True,
        before_launch=lambda: launches.append(1),
    )  # fmt: skip
    upstream = {name: torch.ones_like(found.outputs[name]) for name in ("cost", "distance") if name in found.outputs}
    gradients = backward(found.state, upstream, ("spheres", "poses")).gradients
    return {**found.outputs, **{f"gradient of {name}": value for name, value in gradients.items()}}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_parts_of_trajectories_are_what_they_are_together(
    shape: str, settings: str, request: pytest.FixtureRequest
) -> None:
    launches: list[int] = []
    whole = results(shape, settings, launches=launches)
    assert len(launches) == 1
    request.getfixturevalue("small_launches")
    parts = results(shape, settings, launches=launches)
    assert len(launches) >= 20
    for name, value in whole.items():
        if name == "gradient of poses":
            # Sums over all rows are in another order.
            torch.testing.assert_close(parts[name], value, rtol=1e-5, atol=1e-5 * float(value.abs().max()))
        else:
            assert torch.equal(parts[name], value), name


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_for_each_instance_too(shape: str, request: pytest.FixtureRequest) -> None:
    launches: list[int] = []
    whole = results(shape, "still", launches=launches, per_instance=True)
    assert len(launches) == 6
    request.getfixturevalue("small_launches")
    parts = results(shape, "still", launches=launches, per_instance=True)
    assert len(launches) > 60
    for name, value in whole.items():
        assert torch.equal(parts[name], value), name


@pytest.mark.usefixtures("small_launches")
def test_an_exception_before_any_part_ends_the_query() -> None:
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        evaluate(spheres((1, 1, 900)), world(), Settings(), before_launch=stop)
    assert calls == 5
