"""Vertices on a CUDA device: it refits a solid by itself, and leaves to the host what only the host can do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes import Instance, Mesh, World
from lumigrad.kernels.meshes.engine import CudaEngine
from support.backends.cuda_devices import Device
from support.backends.mesh_engines import cpu
from support.closeness import assert_image, assert_same_bits
from support.meshes import shapes
from support.meshes.case import MeshCase, MeshShape, Placed
from support.meshes.cases import TURNED, case_of
from support.meshes.runs import OUTPUTS, mesh_of, run
from support.meshes.spheres import Crowd
from support.threads import run_at_once

TORUS = shapes.shuffled(shapes.torus(97, 47))
SOLIDS = {
    "torus": TORUS,
    "box": shapes.box(),
    "split": shapes.split(shapes.torus(20, 10)),
    "inside out": shapes.turned_inside_out(shapes.torus(20, 10)),
    "far away": shapes.moved(shapes.torus(20, 10), (1000.0, -700.0, 400.0)),
    "unused vertices": shapes.torus(20, 10),
}
SOLIDS["unused vertices"] = MeshShape(
    np.concatenate([SOLIDS["unused vertices"].vertices, [[50.0, 0.0, 0.0]]]), SOLIDS["unused vertices"].faces
)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The refits in host memory so far."""
    made: list[Any] = []

    def counted(refit: Any) -> Any:
        def counting(tree: Any, vertices: np.ndarray) -> Any:
            made.append(vertices)
            return refit(tree, vertices)

        return counting

    for name in ("moved", "refitted"):
        monkeypatch.setattr(_native.MeshTree, name, counted(getattr(_native.MeshTree, name)))
    yield made


def near(shape: MeshShape) -> MeshCase:
    return case_of("near", Placed(shape, TURNED), crowd=Crowd(1, 2, 40), sweep=True, activation_distance=0.05)


def searched(device: Device, mesh: Mesh, shape: MeshShape, sign: str = "auto") -> dict[str, np.ndarray]:
    return run(device.engine, near(shape), outputs=OUTPUTS, world=World([Instance(mesh, TURNED, sign=sign)])).outputs


def ready(device: Device, shape: MeshShape) -> Mesh:
    """A mesh with its hierarchy on the device."""
    mesh = mesh_of(device.engine, shape)
    searched(device, mesh, shape)
    return mesh


def bent(shape: MeshShape, by: float) -> MeshShape:
    middle = shape.vertices.mean(0)
    x, y, z = (shape.vertices - middle).T
    there = np.stack([x + by * y, y - by * z, (1 + by) * z + 0.2 * by * np.sin(5 * x + 2 * y)], axis=1)
    return shape.moved(there + middle)


def moved(device: Device, mesh: Mesh, shape: MeshShape) -> Mesh:
    return device.engine.moved(mesh, torch.from_numpy(shape.vertices))


def assert_same_reports(found: Mesh, expected: Mesh) -> None:
    for name, value in vars(expected.report).items():
        assert getattr(found.report, name) == pytest.approx(value, rel=1e-12, abs=1e-12), name
    assert found.rebuilt == expected.rebuilt
    assert found.growth == pytest.approx(expected.growth, rel=1e-12)


@pytest.mark.parametrize("name", SOLIDS)
def test_a_refit_on_the_device_is_that_of_the_host(name: str, device: Device, on_host: list[Any]) -> None:
    shape = SOLIDS[name]
    mesh, kept = ready(device, shape), mesh_of(cpu(), shape)
    for by in (0.05, 0.1, 0.0):
        there = bent(shape, by)
        by_host = kept.moved(torch.from_numpy(there.vertices))
        copied = device.engine.mesh(torch.from_numpy(shape.vertices), torch.from_numpy(shape.faces))
        with_copies = copied.moved(torch.from_numpy(there.vertices))
        on_host.clear()
        mesh = moved(device, mesh, there)
        assert_same_reports(mesh, by_host)
        found = searched(device, mesh, there)
        assert on_host == []
        # The same bits as when the device copies what the host has fitted.
        assert_same_bits(found, searched(device, with_copies, there))
        assert_image(found["cost"], run(cpu(), near(there)).outputs["cost"], 1e-5)


def test_a_move_to_the_same_place_changes_no_bit_on_the_device(device: Device, on_host: list[Any]) -> None:
    mesh = ready(device, TORUS)
    again = moved(device, mesh, TORUS)
    assert on_host == []
    assert again.growth == pytest.approx(1.0, rel=1e-12)
    assert_same_bits(searched(device, again, TORUS), searched(device, mesh, TORUS))
    assert_same_bits(searched(device, moved(device, again, TORUS), TORUS), searched(device, mesh, TORUS))


def test_the_host_follows_when_winding_numbers_need_it(device: Device, on_host: list[Any]) -> None:
    there, further = bent(TORUS, 0.1), bent(TORUS, 0.15)
    mesh = moved(device, ready(device, TORUS), there)
    for sign in ("auto", "rays", "unsigned", "normals"):
        searched(device, mesh, there, sign)
    assert on_host == []
    fresh = ready(device, there)
    found = searched(device, mesh, there, "winding")
    assert len(on_host) == 1
    assert_image(found["distance"], searched(device, fresh, there, "winding")["distance"], 1e-6)
    # The next move needs what queries have needed, and finds it.
    again = moved(device, mesh, further)
    assert len(on_host) == 2
    found = searched(device, again, further, "winding")
    assert len(on_host) == 2
    assert_image(found["distance"], searched(device, ready(device, further), further, "winding")["distance"], 1e-6)


def test_the_host_follows_with_the_vertices_of_the_call(device: Device) -> None:
    there = bent(TORUS, 0.1)
    given = torch.from_numpy(there.vertices.copy()).to(device.engine.device)
    mesh = device.engine.moved(ready(device, TORUS), given)
    given += 7.0
    found = searched(device, mesh, there, "winding")
    assert_image(found["distance"], searched(device, ready(device, there), there, "winding")["distance"], 1e-6)


def test_vertices_of_any_layout_and_precision_are_taken(device: Device, on_host: list[Any]) -> None:
    there = bent(TORUS, 0.1)
    mesh, single = ready(device, TORUS), torch.from_numpy(there.vertices).float()
    found = device.engine.moved(mesh, single)
    spread = device.engine.moved(mesh, single.repeat(1, 2)[:, :3])
    leaf = device.engine.moved(mesh, single.double().requires_grad_())
    assert on_host == []
    for one in (spread, leaf):
        assert_same_bits(searched(device, one, there), searched(device, found, there))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e20])
@pytest.mark.parametrize("where", [(0, 0), (40, 1), (-1, 2)])
def test_values_that_are_no_places_are_refused(bad: float, where: tuple[int, int], device: Device) -> None:
    mesh = ready(device, TORUS)
    vertices = TORUS.vertices.copy()
    vertices[where] = bad
    with pytest.raises(ArgumentError, match=r"vertices: expected (finite values|coordinates within)"):
        device.engine.moved(mesh, torch.from_numpy(vertices))
    with pytest.raises(ArgumentError, match="at least one face of area above 0"):
        device.engine.moved(mesh, torch.zeros(len(vertices), 3))
    again = moved(device, mesh, TORUS)
    assert_same_bits(searched(device, again, TORUS), searched(device, mesh, TORUS))


def scrambled() -> tuple[MeshShape, MeshShape]:
    return TORUS, TORUS.moved(np.random.default_rng(3).permutation(TORUS.vertices))


def with_a_turned_face() -> tuple[MeshShape, MeshShape]:
    """The longest edge of a face is another one than before."""
    pulled = TORUS.vertices.copy()
    pulled[TORUS.faces[5, 0]] += [0.0, 0.0, 0.9]
    return TORUS, TORUS.moved(pulled)


def with_waves() -> tuple[MeshShape, MeshShape]:
    """The boxes of a plate's leaves become high, but the longest edges of its faces remain so."""
    plate = shapes.grid_box((1.0, 1.0, 0.02), 16)
    x, y, z = plate.vertices.T
    return plate, plate.moved(np.stack([x, y, z + 0.2 * np.sin(8 * np.pi * x + 0.4)], axis=1))


@pytest.mark.parametrize("make", [scrambled, with_a_turned_face, with_waves])
def test_meshes_that_would_be_searched_slowly_are_built_anew(make: Any, device: Device) -> None:
    shape, there = make()
    by_host = mesh_of(cpu(), shape).moved(torch.from_numpy(there.vertices))
    assert by_host.rebuilt
    mesh = moved(device, ready(device, shape), there)
    assert_same_reports(mesh, by_host)
    searched(device, mesh, there)
    # The rebuilt mesh is refitted from then on.
    assert not moved(device, mesh, there.moved(1.01 * there.vertices)).rebuilt


def with_a_flat_face(height: float) -> MeshShape:
    """A vertex above the middle of an edge, and the face between the three."""
    shape = shapes.torus(20, 10)
    one, other = shape.faces[7, :2]
    middle = 0.5 * (shape.vertices[one] + shape.vertices[other]) + [0.0, 0.0, height]
    face = [one, len(shape.vertices), other]
    return MeshShape(np.concatenate([shape.vertices, [middle]]), np.concatenate([shape.faces, [face]]).astype(np.int32))


def test_faces_without_an_area_may_move_until_they_get_one(device: Device, on_host: list[Any]) -> None:
    flat, bumpy = with_a_flat_face(0.0), with_a_flat_face(0.1)
    mesh = ready(device, flat)
    assert mesh.report.degenerate_faces == 1 and mesh.report.simple
    still = moved(device, mesh, flat.moved(2.0 * flat.vertices))
    assert on_host == []
    assert still.report.degenerate_faces == 1 and not still.rebuilt
    by_host = mesh_of(cpu(), flat).moved(torch.from_numpy(bumpy.vertices))
    assert by_host.rebuilt and by_host.report.degenerate_faces == 0
    assert_same_reports(moved(device, mesh, bumpy), by_host)


def test_vertices_that_part_are_seen(device: Device) -> None:
    shape = shapes.split(shapes.torus(20, 10))
    opened = shape.vertices.copy()
    opened[0] += [0.0, 0.0, 1e-6]
    mesh = moved(device, ready(device, shape), shape.moved(opened))
    assert mesh.rebuilt and not mesh.report.closed


def ring(turns: float) -> MeshShape:
    """A bar bent to a ring, whose ends pass through each other after more than one turn."""
    bar = shapes.grid_box((4.0, 0.4, 0.4), 16)
    x, y, z = bar.vertices.T
    angle = 0.5 * np.pi * turns * x
    return bar.moved(np.stack([(0.7 + y) * np.cos(angle), (0.7 + y) * np.sin(angle), z], axis=1))


def test_a_mesh_that_comes_to_enclose_points_twice_gets_winding_numbers(device: Device, on_host: list[Any]) -> None:
    apart, closer, crossing = ring(0.9), ring(0.95), ring(1.05)
    mesh = moved(device, ready(device, apart), closer)
    assert on_host == []
    by_host = mesh_of(cpu(), apart).moved(torch.from_numpy(crossing.vertices))
    assert by_host.report.self_intersecting and not by_host.rebuilt
    there = moved(device, mesh, crossing)
    assert_same_reports(there, by_host)
    assert there.policy("auto") == ("winding", False)
    found, expected = (searched(device, one, crossing) for one in (there, ready(device, crossing)))
    assert_image(found["distance"], expected["distance"], 1e-6)
    back = moved(device, there, closer)
    assert_same_reports(back, mesh)
    assert_image(searched(device, back, closer)["distance"], searched(device, mesh, closer)["distance"], 1e-6)


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        (shapes.box(), 5e-7, "an extent of at least 1e-06 m"),
        (shapes.torus(200, 100), 1.5e-6, "triangles of a mean size of at least 5e-08 m"),
    ],
)
def test_vertices_too_close_together_are_refused(shape: MeshShape, size: float, expected: str, device: Device) -> None:
    mesh = ready(device, shape)
    size /= float(np.ptp(shape.vertices, axis=0).max())
    with pytest.raises(ArgumentError, match=f"^vertices: expected {expected}"):
        moved(device, mesh, shape.moved(size * shape.vertices))
    assert moved(device, mesh, shape.moved(100 * size * shape.vertices)).report.closed


@pytest.mark.parametrize("shape", [shapes.open_box(), shapes.join(shapes.box(), shapes.moved(shapes.box(), (5, 0, 0)))])
def test_other_meshes_are_refitted_by_the_host(shape: MeshShape, device: Device, on_host: list[Any]) -> None:
    there = bent(shape, 0.05)
    mesh = moved(device, ready(device, shape), there)
    assert len(on_host) == 1
    assert_image(
        searched(device, mesh, there)["distance"], searched(device, ready(device, there), there)["distance"], 1e-6
    )


def test_memory_is_counted_before_and_after_the_host_follows(device: Device) -> None:
    there = bent(TORUS, 0.1)
    mesh = ready(device, TORUS)
    still = mesh.bytes
    after = moved(device, mesh, there)
    vertices = 24 * len(TORUS.vertices)
    # Lists of the corners at each vertex come with the first move, for all meshes of these faces.
    lists = mesh.bytes - still
    assert 12 * len(TORUS.faces) < lists < 12 * len(TORUS.faces) + 12 * len(TORUS.vertices) + 4096 + 4
    assert after.bytes == mesh.bytes + vertices
    again = moved(device, after, there)
    assert again.bytes == after.bytes
    del again
    searched(device, after, there, "winding")
    fresh = ready(device, there)
    searched(device, fresh, there, "winding")
    assert after.bytes == fresh.bytes + lists


def test_the_host_follows_once_for_all_threads(device: Device, on_host: list[Any]) -> None:
    there = bent(TORUS, 0.1)
    mesh = moved(device, ready(device, TORUS), there)
    start = threading.Barrier(4)

    def prepare() -> None:
        start.wait()
        mesh.prepare("winding")
        assert mesh.bytes > 0

    # "auto" needs no winding numbers.
    mesh.prepare("auto")
    assert on_host == []
    run_at_once(*[prepare] * 4)
    assert len(on_host) == 1
    found = searched(device, mesh, there, "winding")
    assert len(on_host) == 1
    assert_image(found["distance"], searched(device, ready(device, there), there, "winding")["distance"], 1e-6)


def test_threads_may_move_one_mesh(
    emulation_device: Device, on_host: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, mesh = emulation_device, mesh_of(emulation_device.engine, TORUS)
    there = [bent(TORUS, by) for by in (0.02, 0.05, 0.1)]
    other = ready(device, TORUS)
    expected = [searched(device, moved(device, other, one), one) for one in there]
    searched(device, mesh, TORUS)
    start = threading.Barrier(len(there))
    # Each thread has an engine of its own.
    monkeypatch.setattr(
        "lumigrad.kernels.meshes.mesh.engine_for", lambda _: CudaEngine(device.native, 0, device.cuda._current_stream)
    )

    def move(shape: MeshShape) -> Mesh:
        start.wait()
        return mesh.moved(torch.from_numpy(shape.vertices))

    with ThreadPoolExecutor(len(there)) as pool:
        found = list(pool.map(move, there))
    assert on_host == []
    for one, shape, values in zip(found, there, expected, strict=True):
        assert_same_bits(searched(device, one, shape), values)


@pytest.mark.parametrize("shape", [shapes.box(), shapes.torus(20, 10), TORUS])
def test_order_of_threads_does_not_matter(shape: MeshShape, thread_seed: int, emulation_device: Device) -> None:
    device, there = emulation_device, bent(shape, 0.1)
    mesh = ready(device, shape)
    first = moved(device, mesh, there)
    expected = searched(device, first, there)
    device.native.set_seed(thread_seed)
    again = moved(device, mesh, there)
    assert again.report == first.report and again.growth == first.growth
    assert_same_bits(searched(device, again, there), expected)
