"""Registration: reports about meshes, and moved meshes that answer as if they were built anew."""

from __future__ import annotations

import functools
import itertools
import threading
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lumigrad.kernels.meshes import Instance, Mesh, World
from lumigrad.kernels.meshes.engine import CpuEngine
from support.backends import mesh_engines
from support.backends.mesh_engines import Engine
from support.closeness import assert_image
from support.meshes import files as mesh_files
from support.meshes import shapes
from support.meshes.case import Doubles, MeshCase, MeshShape, Placed
from support.meshes.cases import TURNED, case_of
from support.meshes.obstacles import Obstacle, Sight
from support.meshes.parts import facts_of
from support.meshes.runs import mesh_of, run
from support.meshes.spheres import Crowd, random_of

OUTPUTS = ("cost", "distance", "normal", "closest")
SHAPES = {
    "box": shapes.box(),
    "squares": shapes.grid_box(),
    "torus": shapes.torus(),
    "shuffled": shapes.shuffled(shapes.torus()),
    "split": shapes.split(shapes.torus()),
    "duplicates": shapes.with_duplicates(shapes.torus()),
    "inside out": shapes.turned_inside_out(shapes.ell()),
    "open box": shapes.open_box(),
    "bowl": shapes.bowl(),
    "caps": shapes.capped(),
    "flat caps": shapes.capped(height=0.0),
    "sliver box": shapes.box((1, 0.3, 0.002)),
    "touching": shapes.touching(),
    "crossing": shapes.crossing(),
    "hollow": shapes.hollow(),
    "far away": shapes.moved(shapes.torus(), (1000.0, -700.0, 400.0)),
    "tiny": shapes.scaled(shapes.torus(), 1e-4),
    "huge": shapes.scaled(shapes.torus(), 1e4),
    "book": MeshShape(shapes.box().vertices, np.array([[0, 1, 2], [0, 1, 4], [1, 0, 6]], np.int32)),
    "triangle twice": MeshShape(shapes.box().vertices[:3], np.array([[0, 1, 2], [1, 2, 0]], np.int32)),
    "triangle and its back": MeshShape(shapes.box().vertices[:3], np.array([[0, 1, 2], [1, 0, 2]], np.int32)),
    "flipped": MeshShape(shapes.box().vertices, np.concatenate([shapes.box().faces[:1, ::-1], shapes.box().faces[1:]])),
    "doubled sheet": shapes.join(shapes.open_box(), shapes.turned_inside_out(shapes.open_box())),
}
FILES = mesh_files.files()
needs_files = pytest.mark.skipif(not FILES, reason=mesh_files.ABSENT)


def assert_report(mesh: Mesh, shape: MeshShape) -> None:
    """Checks the report against one that is found with sets and dictionaries."""
    found, expected = asdict(mesh.report), asdict(facts_of(shape))
    lengths = {name: (found.pop(name), expected.pop(name)) for name in ("low", "high", "area", "volume")}
    assert found == expected
    if not found["closed"]:
        lengths.pop("volume")
    for name, (actual, value) in lengths.items():
        np.testing.assert_allclose(actual, value, rtol=1e-6, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", SHAPES)
def test_reports_are_those_of_definitions(name: str, mesh_engine: Engine) -> None:
    mesh = mesh_of(mesh_engine, SHAPES[name])
    assert_report(mesh, SHAPES[name])
    assert not mesh.rebuilt and mesh.growth == 1
    assert mesh.vertices == len(SHAPES[name].vertices) and mesh.faces == len(SHAPES[name].faces)
    assert mesh.bytes > 36 * (mesh.faces - mesh.report.degenerate_faces - mesh.report.duplicate_faces)


class BusyKey(str):
    """The key of an engine; while it is compared with another one, a thread builds the tree of the CPU's engine."""

    mesh: Mesh

    def __ne__(self, other: object) -> bool:
        thread = threading.Thread(target=self.mesh.solid, args=(CpuEngine(), "normals"))
        thread.start()
        thread.join()
        return str.__ne__(self, other)

    __hash__ = str.__hash__


def test_memory_is_counted_while_another_thread_builds_a_tree() -> None:
    shape = shapes.box()
    mesh = Mesh.build(*map(torch.from_numpy, (shape.vertices, shape.faces)))
    without = mesh.bytes
    elsewhere = CpuEngine()
    elsewhere.key = BusyKey("elsewhere")
    elsewhere.key.mesh = mesh
    mesh.solid(elsewhere, "normals")
    assert mesh.bytes > without


@functools.cache
def around(path: Path) -> tuple[MeshCase, Sight]:
    """Returns a real mesh with spheres around it, and what the reference sees at the spheres' centres."""
    shape = mesh_files.load(path)
    size = float(np.ptp(shape.vertices, axis=0).max())
    case = case_of(path.name, Placed(shape), crowd=Crowd(1, 1, 60, near=0.05), size=size)
    return case, seen_by(case)


def seen_by(case: MeshCase, sign: str = "auto") -> Sight:
    """Returns what the reference sees of the only obstacle from the centres of the spheres."""
    centres = torch.from_numpy(case.spheres[..., :3].reshape(-1, 3).astype(np.float64))
    return Obstacle(replace(case.placed[0], sign=sign)).look(centres)


# Each file is tested with one of the engines, in turns.
MACHINES = [name for name in mesh_engines.ENGINES if name != "gpu"]
BY_TURNS = [
    pytest.param(path, machine, id=f"{path.parent.name}/{path.name}-{machine}")
    for path, machine in zip(FILES, itertools.cycle(MACHINES), strict=False)
]


@needs_files
@pytest.mark.parametrize(("path", "mesh_engine"), BY_TURNS, indirect=["mesh_engine"])
def test_real_meshes_are_seen_as_they_are(path: Path, mesh_engine: Engine) -> None:
    case, seen = around(path)
    shape, sure = case.placed[0].shape, seen.sure.numpy()
    assert_report(mesh_of(mesh_engine, shape), shape)
    outputs = run(mesh_engine, case, outputs=OUTPUTS).outputs
    tolerance = 1e-6 * max(1.0, float(np.abs(case.spheres).max()))
    assert_image(outputs["distance"][0, 0][sure], seen.distance.numpy()[sure], tolerance)


def bent(vertices: Doubles, by: float) -> Doubles:
    """Twists the space and adds a small wave."""
    x, y, z = vertices.T
    angle = by * z
    cosine, sine = np.cos(angle), np.sin(angle)
    wave = 0.2 * by * np.sin(5 * x + 2 * y)
    return np.stack([cosine * x - sine * y, sine * x + cosine * y, z + wave], -1)


def answers(engine: Engine, mesh: Mesh, sign: str, case: MeshCase) -> dict[str, np.ndarray]:
    return run(engine, case, outputs=OUTPUTS, world=World([Instance(mesh, TURNED, sign=sign)])).outputs


def assert_same(engine: Engine, moved: Mesh, shape: MeshShape, sign: str = "auto") -> None:
    """Checks that a mesh that was moved to a shape answers as one that is built of that shape."""
    fresh = mesh_of(engine, shape)
    assert_report(moved, shape)
    case = case_of("moved", Placed(shape, TURNED), crowd=Crowd(1, 2, 60), sweep=True, activation_distance=0.02)
    found, expected = (answers(engine, mesh, sign, case) for mesh in (moved, fresh))
    assert_image(found["distance"], expected["distance"], 1e-6)
    assert_image(found["cost"], expected["cost"], 1e-5)
    seen = seen_by(case, sign)
    sure = seen.sure.numpy()
    assert_image(found["distance"].reshape(-1)[sure], seen.distance.numpy()[sure], 1e-6)


@pytest.mark.parametrize("name", ["torus", "split", "duplicates", "squares", "bowl", "open box", "inside out"])
def test_moved_meshes_are_as_if_built_anew(name: str, mesh_engine: Engine) -> None:
    shape = SHAPES[name]
    mesh = first = mesh_of(mesh_engine, shape)
    before = answers(mesh_engine, first, "auto", case_of("still", Placed(shape, TURNED), crowd=Crowd(1, 1, 40)))
    for by, sign in ((0.02, "auto"), (0.1, "winding"), (0.3, "auto"), (0.3, "winding")):
        there = shape.moved(bent(shape.vertices, by))
        mesh = mesh_engine.moved(mesh, torch.from_numpy(there.vertices))
        assert not mesh.rebuilt
        assert mesh.growth > 0
        assert_same(mesh_engine, mesh, there, sign)
    # The original mesh stays where it was.
    after = answers(mesh_engine, first, "auto", case_of("still", Placed(shape, TURNED), crowd=Crowd(1, 1, 40)))
    for key, values in before.items():
        np.testing.assert_array_equal(after[key], values)
    back = mesh_engine.moved(mesh, torch.from_numpy(shape.vertices))
    assert_same(mesh_engine, back, shape)


def test_a_move_to_the_same_place_changes_no_bit(mesh_engine: Engine) -> None:
    shape = SHAPES["torus"]
    mesh = mesh_of(mesh_engine, shape)
    again = mesh_engine.moved(mesh, torch.from_numpy(shape.vertices))
    assert not again.rebuilt and again.growth == pytest.approx(1.0)
    case = case_of("same place", Placed(shape, TURNED), crowd=Crowd(1, 2, 60), activation_distance=0.02)
    first, second = (answers(mesh_engine, one, "auto", case) for one in (mesh, again))
    for name, values in first.items():
        np.testing.assert_array_equal(second[name], values, err_msg=name)


def test_moves_that_scramble_are_built_anew(mesh_engine: Engine) -> None:
    shape = SHAPES["torus"]
    scrambled = shape.moved(random_of("scrambled").permutation(shape.vertices))
    mesh = mesh_engine.moved(mesh_of(mesh_engine, shape), torch.from_numpy(scrambled.vertices))
    assert mesh.rebuilt and mesh.growth == 1
    assert_same(mesh_engine, mesh, scrambled, "unsigned")


def test_growing_and_shrinking_as_a_whole_needs_no_building(mesh_engine: Engine) -> None:
    shape = SHAPES["torus"]
    mesh = mesh_of(mesh_engine, shape)
    for factor in (3.0, 0.1):
        larger = shapes.scaled(shape, factor)
        moved = mesh_engine.moved(mesh, torch.from_numpy(larger.vertices))
        assert not moved.rebuilt
        assert_report(moved, larger)
        case = case_of("scaled", Placed(larger), crowd=Crowd(1, 1, 60), size=factor)
        seen = seen_by(case)
        found = run(mesh_engine, case, outputs=("distance",), world=World([Instance(moved)])).outputs["distance"]
        assert_image(found.reshape(-1), seen.distance, 1e-6 * max(1.0, factor))


def test_vertices_that_part_or_meet_are_seen(mesh_engine: Engine) -> None:
    # Vertices that were at the same place part: the mesh opens.
    shape = shapes.split(shapes.box())
    opened = shape.vertices.copy()
    opened[:3] += [0.0, 0.0, 0.3]
    mesh = mesh_engine.moved(mesh_of(mesh_engine, shape), torch.from_numpy(opened))
    assert mesh.rebuilt and not mesh.report.closed
    assert_report(mesh, shape.moved(opened))
    # Faces without an area get one.
    flat = shapes.capped(4, height=0.0)
    bumpy = shapes.capped(4, height=0.4)
    mesh = mesh_engine.moved(mesh_of(mesh_engine, flat), torch.from_numpy(bumpy.vertices))
    assert mesh.rebuilt
    assert_same(mesh_engine, mesh, bumpy)
    # Faces with an area lose it; queries still work.
    back = mesh_engine.moved(mesh_of(mesh_engine, bumpy), torch.from_numpy(flat.vertices))
    case = case_of("flattened", Placed(flat), crowd=Crowd(1, 1, 60))
    seen = seen_by(case, "unsigned")
    world = World([Instance(back, sign="unsigned")])
    found = run(mesh_engine, case, outputs=("distance",), world=world).outputs["distance"]
    assert_image(found.reshape(-1), seen.distance, 1e-6)


@functools.cache
def large(*sides: int) -> tuple[MeshCase, Sight]:
    case = case_of("large", Placed(shapes.torus(*sides), TURNED), crowd=Crowd(1, 1, 100, near=0.05))
    return case, seen_by(case)


def test_large_meshes_answer_as_small_ones(mesh_engine: Engine) -> None:
    case, seen = large(*((100, 50) if "cpu" in mesh_engine.name else (60, 40)))
    mesh = mesh_of(mesh_engine, case.placed[0].shape)
    found = answers(mesh_engine, mesh, "auto", case)
    assert_image(found["distance"].reshape(-1), seen.distance, 1e-6)
    assert_image(answers(mesh_engine, mesh, "rays", case)["distance"], found["distance"], 1e-6)
    assert_image(answers(mesh_engine, mesh, "winding", case)["distance"], found["distance"], 1e-6)
