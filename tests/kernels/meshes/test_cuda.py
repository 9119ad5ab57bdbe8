"""Meshes of the CUDA engine: hierarchies on a device, rows in any order, memory that is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lumigrad.kernels.meshes import Instance, Mesh, Settings, World
from lumigrad.kernels.meshes.engine import CudaEngine
from support.backends import cuda_devices
from support.backends.cuda_devices import Device
from support.backends.mesh_engines import Engine, cpu, on_cuda
from support.backends.steady import assert_steady_on_device
from support.closeness import assert_image, assert_relative, assert_same_bits
from support.meshes import shapes
from support.meshes.case import MeshCase, Placed
from support.meshes.cases import TURNED, as_curobo, case_of, kinds, three, worlds
from support.meshes.runs import DISTANCES, OUTPUTS, Run, mesh_of, run, world_of
from support.meshes.spheres import Crowd, random_of, tensor

PATH = Crowd(batches=2, horizon=5, count=9, step=0.25)
# Three levels of nodes, none of them full.
DEEP = shapes.shuffled(shapes.torus(97, 47))
EXACT = [
    case_of("deep", Placed(DEEP, TURNED), activation_distance=0.03),
    case_of("deep winding", Placed(DEEP, TURNED, sign="winding"), activation_distance=0.03),
    case_of("deep rays", Placed(DEEP, TURNED, sign="rays"), crowd=Crowd(count=10), activation_distance=0.03),
    case_of("open", Placed(shapes.open_box(), TURNED), activation_distance=0.03),
    case_of("kinds", *kinds(), activation_distance=0.05),
    case_of("worlds", *worlds(), crowd=Crowd(batches=5, count=7), environments=4, rows=[1, 0, 2, 3, 1]),
    case_of("swept", *three(), crowd=PATH, sweep=True, activation_distance=0.02),
    case_of("swept kinds", *kinds(), crowd=PATH, sweep=True, reduction="max", activation_distance=0.02),
    case_of("swept speed", *kinds(), crowd=PATH, sweep=True, speed_metric=True, time_step_s=0.1),
    case_of("limited", *three(), crowd=PATH, sweep=True, max_distance=0.05, activation_distance=0.02),
]
CUROBO = [
    as_curobo(case_of("cuRobo", *three(), crowd=PATH, sweep=True, activation_distance=0.02)),
    as_curobo(case_of("cuRobo kinds", *kinds(), crowd=PATH, sweep=True, speed_metric=True, time_step_s=0.1)),
    as_curobo(case_of("cuRobo deep", Placed(DEEP, TURNED, sign="rays"), activation_distance=0.02), 0.1),
    as_curobo(case_of("field", *three()), semantics="curobo_field"),
]
CASES = {case.name: case for case in [*EXACT, *CUROBO]}
BY_NAME = {case.name: case for case in EXACT}
every_case = pytest.mark.parametrize("name", CASES)
every_exact_case = pytest.mark.parametrize("name", BY_NAME)


def everything(engine: Engine, case: MeshCase, world: World | None = None) -> Run:
    """Computes all outputs, and with exact semantics all gradients."""
    if case.options.semantics != "exact":
        return run(engine, case, outputs=OUTPUTS, world=world)
    random = random_of(f"upstream of {case.name}")
    upstream = {name: random.standard_normal(case.shape) for name in ("cost", "distance")}
    return run(engine, case, outputs=OUTPUTS, upstream=upstream, world=world)


@every_case
def test_the_cpu_sees_the_same(name: str, device: Device) -> None:
    actual, expected = everything(device.engine, CASES[name]), everything(cpu(), CASES[name])
    for output in ("cost", "distance"):
        there = np.isfinite(expected.outputs[output])
        np.testing.assert_array_equal(np.isfinite(actual.outputs[output]), there)
        assert_image(actual.outputs[output][there], expected.outputs[output][there], 1e-6)
    for output in ("exhausted", "beyond", "instance"):
        np.testing.assert_array_equal(actual.outputs[output], expected.outputs[output], err_msg=output)
    for output in ("normal", "closest", "gradient"):
        # Either of two equally close points may be found.
        same = np.abs(actual.outputs[output] - expected.outputs[output]).max(-1) < 1e-4
        assert same.mean() > 0.98, output
    for gradient, value in expected.gradients.items():
        assert_relative(gradient, actual.gradients[gradient], value, 1e-4)


@every_exact_case
def test_order_of_threads_does_not_matter(name: str, thread_seed: int, emulation_device: Device) -> None:
    device, case = emulation_device, BY_NAME[name]
    world = world_of(device.engine, case)
    expected = everything(device.engine, case, world)
    device.native.set_seed(thread_seed)
    actual = everything(device.engine, case, world)
    assert_same_bits(actual.outputs, expected.outputs)
    np.testing.assert_array_equal(actual.gradients["spheres"], expected.gradients["spheres"])
    assert_relative("poses", actual.gradients["poses"], expected.gradients["poses"], 1e-6)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9])
def test_rows_that_fill_no_block_are_seen(count: int, device: Device) -> None:
    case = EXACT[4]
    whole = everything(device.engine, case)
    part = everything(device.engine, replace(case, spheres=case.spheres[:1, :1, :count]))
    for output in ("cost", *DISTANCES):
        np.testing.assert_array_equal(part.outputs[output], whole.outputs[output][:1, :1, :count], err_msg=output)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20])
def test_spheres_that_are_nowhere_are_off(bad: float, device: Device) -> None:
    case = EXACT[6]
    spheres = case.spheres.copy()
    spheres[0, 1, 2, 0] = spheres[1, 3, 4, 3] = bad
    off = spheres.copy()
    off[0, 1, 2, 3] = off[1, 3, 4, 3] = -1.0
    off[0, 1, 2, 0] = off[1, 3, 4, 0] = 0.0
    world = world_of(device.engine, case)
    found = []
    for rows in (spheres, off):
        settings = Settings(sweep=True, activation_distance=0.02)
        names = ("cost", "distance", "face", "exhausted")
        found.append(device.engine.evaluate(tensor(rows), world, settings, outputs=names, checked=True)[0])
    assert_same_bits(*found)


def test_a_steady_loop_allocates_nothing(device: Device) -> None:
    swept, deep = BY_NAME["swept"], BY_NAME["deep winding"]
    placed = {case.name: world_of(device.engine, case) for case in (swept, deep)}
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        for case in (swept, deep):
            pose = (0.01 * turn, *TURNED[1:])
            everything(device.engine, case, placed[case.name].with_poses({0: pose}))

    assert_steady_on_device(step, device.native)


def test_memory_is_that_of_the_triangles_and_given_back(device: Device) -> None:
    device.native.device_trim(0)
    before = device.native.device_bytes(0)
    mesh = mesh_of(device.engine, DEEP)
    world = World([Instance(mesh)])
    run(device.engine, BY_NAME["deep"], outputs=("distance",), world=world)
    held = device.native.device_bytes(0) - before
    faces, vertices = len(DEEP.faces), len(DEEP.vertices)
    # A face takes nine floats, a number, a normal, three neighbours and corners, and a sixteenth of that in boxes.
    assert faces * 76 < held < 1.2 * (faces * 76 + vertices * 24) + 200_000
    del mesh, world
    device.native.device_trim(0)
    assert device.native.device_bytes(0) <= before


def test_a_full_device_says_how_much_was_wanted(emulation_device: Device) -> None:
    device, case = emulation_device, BY_NAME["kinds"]
    world = world_of(device.engine, case)
    device.native.device_trim(0)
    device.native.fail_allocations(2)
    with pytest.raises(MemoryError, match=r"allocating \d+ bytes on the device: out of memory"):
        everything(device.engine, case, world)
    everything(device.engine, case, world)


def test_stages_are_timed(device: Device) -> None:
    case = BY_NAME["kinds"]
    world = world_of(device.engine, case)
    times = device.engine.stages(tensor(case.spheres), world, Settings())
    assert list(times) == ["query"]
    assert times["query"] > 0


@pytest.mark.parametrize("searches_on", [1, 3])
def test_a_mesh_can_be_searched_on_other_streams_until_it_is_gone(searches_on: int) -> None:
    """Searches run on stream 1 or 3; the emulation runs 1 before stream 2, on which meshes are built, and 3 after it.

    The fixture's stream would not do, since every function of torch waits for it.
    """
    # Stream 4 computes the expected distances, because memory that stream 2 uses again would hold the right contents.
    emulated, stream = cuda_devices.emulated(), 4
    native = emulated.native
    cuda = CudaEngine(native, 0, lambda: stream)
    engine = on_cuda("emulation", emulated.device, cuda)
    case = BY_NAME["deep"]
    rows, settings = tensor(case.spheres), Settings()
    other = DEEP.moved(DEEP.vertices + 0.3)

    def built(mesh: Mesh) -> Mesh:
        mesh.solid(cuda, "auto")  # Mesh.build does this for a GPU.
        return mesh

    def moved(mesh: Mesh) -> Mesh:
        return built(engine.moved(mesh, torch.from_numpy(DEEP.vertices)))

    def distances(mesh: Mesh) -> torch.Tensor:
        return engine.evaluate(rows, World([Instance(mesh, TURNED)]), settings, outputs=("distance",))[0]["distance"]

    expected = distances(mesh_of(engine, DEEP)).clone()
    native.set_deferred(True)
    try:
        stream = 2
        mesh = built(mesh_of(engine, DEEP))
        another = moved(mesh)
        stream = searches_on
        found = [distances(mesh), distances(another), distances(moved(mesh))]
        del mesh, another
        stream = 2
        # These take the memory of the deleted meshes.
        later = [built(mesh_of(engine, other)) for _ in range(3)]
        native.synchronize()
    finally:
        native.set_deferred(False)
    del later
    for values in found:
        np.testing.assert_array_equal(values.numpy(), expected.numpy())
