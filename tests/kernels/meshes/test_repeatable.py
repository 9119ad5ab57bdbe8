"""Repeated queries have the same bits on any threads, agree on all instruction sets, and take no new memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from lumigrad.kernels import _native
from lumigrad.kernels.meshes import Settings, World
from support.backends.mesh_engines import Engine, cpu, instruction_set
from support.backends.steady import assert_steady_on_host
from support.closeness import assert_image, assert_relative, assert_same_bits
from support.meshes import shapes
from support.meshes.case import CuboidShape, MeshCase, Placed
from support.meshes.cases import ASIDE, LONG, TURNED, case_of
from support.meshes.runs import OUTPUTS, Run, run, settings_of, world_of
from support.meshes.spheres import Crowd, random_of, tensor

PATH = Crowd(batches=8, horizon=8, count=40, step=0.2)
# Boxes with squares for faces: dozens of closest points are equally far.
SOLIDS = (
    Placed(shapes.torus(40, 20), TURNED),
    Placed(shapes.grid_box(), ASIDE),
    Placed(shapes.bowl(), LONG),
    Placed(CuboidShape((0.4, 0.3, 0.2)), TURNED),
)
CUROBO = {
    "semantics": "curobo",
    "sweep": True,
    "samples": 4,
    "max_distance": 0.2,
    "speed_metric": True,
    "time_step_s": 0.05,
}
CASES = {
    case.name: case
    for case in (
        case_of("static", *SOLIDS, crowd=PATH, activation_distance=0.03),
        case_of("swept", *SOLIDS, crowd=PATH, activation_distance=0.03, sweep=True),
        case_of("most", *SOLIDS, crowd=PATH, activation_distance=0.03, sweep=True, reduction="max"),
        case_of("limited", *SOLIDS, crowd=PATH, activation_distance=0.03, max_distance=0.1),
        case_of("as cuRobo", *SOLIDS, crowd=PATH, activation_distance=0.03, **CUROBO),
    )
}
every_case = pytest.mark.parametrize("name", CASES)


def everything(engine: Engine, case: MeshCase, world: World | None = None) -> Run:
    random = random_of(f"upstream of {case.name}")
    upstream = {name: random.standard_normal(case.shape) for name in ("cost", "distance")}
    return run(engine, case, outputs=OUTPUTS, upstream=upstream, world=world)


def assert_same(first: Run, second: Run) -> None:
    assert_same_bits(second.outputs, first.outputs)
    assert_same_bits(second.gradients, first.gradients)


@every_case
def test_same_query_twice_gives_the_same_bits(name: str, mesh_engine: Engine) -> None:
    case = CASES[name]
    if mesh_engine.name == "emulation":
        # The emulation's threads take much longer.
        case = replace(case, spheres=np.ascontiguousarray(case.spheres[:2]))
    first, second = everything(mesh_engine, case), everything(mesh_engine, case)
    assert_same_bits(second.outputs, first.outputs)
    for key, value in first.gradients.items():
        if mesh_engine.repeatable:
            np.testing.assert_array_equal(second.gradients[key], value, err_msg=key)
        assert_relative(key, second.gradients[key], value, 1e-5)


@every_case
def test_the_number_of_threads_changes_no_bit(name: str, keep_threads: None) -> None:
    runs = []
    for threads in (1, 2, 7):
        _native.set_thread_count(threads)
        runs.append(everything(cpu(), CASES[name]))
    for other in runs[1:]:
        assert_same(runs[0], other)


@every_case
@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_instruction_set_gives_the_same_answer(isa: str, name: str) -> None:
    reference = everything(cpu(), CASES[name])
    with instruction_set(isa):
        result = everything(cpu(), CASES[name])
    assert_image(result.outputs["distance"], reference.outputs["distance"], 1e-6)
    # The places that a sweep samples may depend on rounding.
    largest = float(reference.outputs["cost"].max())
    assert (np.abs(result.outputs["cost"] - reference.outputs["cost"]) > 1e-5 * max(1.0, largest)).mean() < 0.005
    assert (result.outputs["instance"] != reference.outputs["instance"]).mean() < 0.005


def test_a_steady_loop_allocates_nothing() -> None:
    engine, worlds = cpu(), {name: world_of(cpu(), case) for name, case in CASES.items()}

    def loop() -> None:
        for name, case in CASES.items():
            result = run(engine, case, upstream={"cost": np.ones(case.shape)}, world=worlds[name])
            assert result.gradients["spheres"].any()

    assert_steady_on_host(loop)


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    """Several threads also share a world."""
    worlds = {name: world_of(cpu(), case) for name, case in CASES.items()}
    alone = {name: everything(cpu(), case) for name, case in CASES.items()}
    with ThreadPoolExecutor(len(CASES)) as pool:
        pairs = [(name, pool.submit(everything, cpu(), CASES[name], worlds[name])) for name in [*CASES] * 2]
        for name, future in pairs:
            assert_same(alone[name], future.result())


def test_states_live_as_long_as_they_are_held(mesh_engine: Engine) -> None:
    first, other = (replace(CASES[name], spheres=CASES[name].spheres[:2]) for name in ("swept", "as cuRobo"))
    upstream = {"cost": tensor(random_of("held").standard_normal(first.shape))}

    def held(case: MeshCase) -> object:
        settings = settings_of(case)
        return mesh_engine.evaluate(tensor(case.spheres), world_of(mesh_engine, case), settings, retain=True)[1]

    state = held(first)
    expected = mesh_engine.backward(state, upstream, ("spheres", "poses", "weight"))  # type: ignore[arg-type]
    for _ in range(3):
        mesh_engine.backward(held(other), upstream, ("spheres", "poses"))  # type: ignore[arg-type]
    again = mesh_engine.backward(state, upstream, ("spheres", "poses", "weight"))  # type: ignore[arg-type]
    for name, gradient in expected.items():
        assert_relative(name, again[name], gradient, 0 if mesh_engine.repeatable else 1e-5)


def test_a_state_counts_what_it_keeps(mesh_engine: Engine) -> None:
    case = CASES["static"]
    rows = case.spheres.size // 4
    world = world_of(mesh_engine, case)
    _, state = mesh_engine.evaluate(tensor(case.spheres), world, Settings(), outputs=("cost", "distance"), retain=True)
    # Spheres, cost, jacobian, normal, instance.
    assert state.bytes == rows * 4 * (4 + 1 + 10 + 3 + 1)
    assert world.bytes > sum(one.shape.bytes for one in world.instances) / 2
