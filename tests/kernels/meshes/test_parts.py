"""Meshes of several parts that overlap, are nested or inside out: "auto" knows and reports what they enclose."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lumigrad.kernels.meshes import Instance, Mesh, World
from support.backends.mesh_engines import Engine
from support.closeness import assert_image
from support.meshes import shapes
from support.meshes.case import Doubles, MeshCase, MeshShape, Options
from support.meshes.parts import facts_of
from support.meshes.runs import mesh_of, run
from support.meshes.signs import winding_of
from support.meshes.triangles import closest

Corner = float | tuple[float, float, float]
Inside = Callable[[Doubles], NDArray[np.bool_]]
back = shapes.turned_inside_out


def block(low: Corner, high: Corner) -> MeshShape:
    """An axis-aligned box between two corners."""
    a, b = np.broadcast_to(low, 3), np.broadcast_to(high, 3)
    unit = shapes.box((1, 1, 1))
    return MeshShape((unit.vertices + 0.5) * (b - a) + a, unit.faces)


def within(low: Corner, high: Corner) -> Inside:
    """Returns the inside of a box between two corners."""
    return lambda points: ((points > np.asarray(low)) & (points < np.asarray(high))).all(-1)


def any_of(*insides: Inside) -> Inside:
    """A union."""
    return lambda points: np.any([inside(points) for inside in insides], axis=0)


def less(inside: Inside, hole: Inside) -> Inside:
    """A difference."""
    return lambda points: inside(points) & ~hole(points)


def ball(centre: Doubles, radius: float) -> tuple[MeshShape, Inside]:
    """A round body of 256 faces, and its inside by the winding number in float64."""
    shape = shapes.tetrahedron()
    for _ in range(3):
        corners = shape.corners
        middles = (corners + np.roll(corners, -1, 1)) / 2
        a, b, c = corners.transpose(1, 0, 2)
        ab, bc, ca = middles.transpose(1, 0, 2)
        parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        soup = np.concatenate([np.stack(part, 1) for part in parts]).reshape(-1, 3)
        vertices, faces = np.unique(soup.round(12), axis=0, return_inverse=True)
        vertices /= np.linalg.norm(vertices, axis=1)[:, None]
        shape = MeshShape(vertices, faces.reshape(-1, 3).astype(np.int32))
    made = MeshShape(shape.vertices * radius + centre, shape.faces)
    triangles = torch.from_numpy(made.corners)
    return made, lambda points: winding_of(triangles, torch.from_numpy(points)).numpy() > 0.5


@dataclass(frozen=True)
class Union:
    """A mesh, its inside, and its report: numbers of components, of overlapping and of turned ones."""

    shape: MeshShape
    inside: Inside
    components: int
    overlapping: int = 0
    turned: int = 0
    policy: str = "winding"


def two_sided(shape: MeshShape) -> MeshShape:
    """Adds to each face the same face seen from behind."""
    return MeshShape(shape.vertices, np.concatenate([shape.faces, shape.faces[:, ::-1]]))


def level(height: float) -> MeshShape:
    """A square sheet around the unit cube, which faces up."""
    corners = [[-2.0, -2, height], [3, -2, height], [3, 3, height], [-2, 3, height]]
    return MeshShape(np.array(corners), np.array([[0, 1, 2], [0, 2, 3]], np.int32))


def without_side(shape: MeshShape) -> MeshShape:
    """A box without its upper side."""
    lacking = shape.vertices[shape.faces][:, :, 2].min(1) >= shape.vertices[:, 2].max()
    return MeshShape(shape.vertices, shape.faces[~lacking])


ROOM = without_side(back(block((-1, -1, -1), (2, 2, 2))))
# Rays from inside this room meet all of its walls.
BOTTOMLESS = MeshShape(ROOM.vertices * (1, 1, -1) + (0, 0, 1), ROOM.faces[:, ::-1])
A, B = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), ((0.5, 0.5, 0.5), (2.0, 2.0, 2.0))
OUTER, HOLE, CORE = (-1.0, 2.0), (-0.5, 1.5), (0.0, 1.0)
LEGS = [((0.0, 0.0, 0.0), (0.3, 1.0, 2.0)), ((2.0, 0.0, 0.0), (2.3, 1.0, 2.0))]
RAIL = (0.1, 0.4, 1.0), (2.2, 0.6, 1.3)
SIDE = (1.0, 0.3, 0.2), (2.0, 1.2, 1.4)
NEXT = (1.0, 0.0, 0.0), (2.0, 1.0, 1.0)
ROUND, IN_ROUND = ball(np.zeros(3), 0.8)
ROUND_TOO, IN_ROUND_TOO = ball(np.array([0.9, 0.2, 0.1]), 0.7)
PLATE = (0.0, 0.0, 0.0), (1.0, 1.0, 0.02)
FAR, DIAGONAL, ASIDE = ((2, 0, 0), (3, 1, 1)), ((1, 1, 0), (2, 2, 1)), ((1.2, 0, 0), (1.8, 1, 1))
BODY = (-0.8, -0.8, -0.8), (1.8, 1.8, 1.8)
WIDE, LONG = ((-1, -1, -1), (1, 1, 1)), ((0, -0.9, -0.9), (2, 0.9, 0.9))
both = any_of(within(*A), within(*B))
hollow = less(within(*OUTER), within(*HOLE))
with_core = any_of(hollow, within(*CORE))
framed = any_of(*(within(*leg) for leg in LEGS), within(*RAIL))
beside = any_of(within(*A), within(*SIDE))
UNIONS = {
    "one": Union(block(*A), within(*A), 1, policy="normals"),
    "inside out": Union(back(block(*A)), within(*A), 1, turned=1, policy="normals"),
    "overlapping": Union(shapes.join(block(*A), block(*B)), both, 2, 2),
    "overlapping, one inside out": Union(shapes.join(block(*A), back(block(*B))), both, 2, 2, 1),
    "balls, one inside out": Union(shapes.join(back(ROUND), ROUND_TOO), any_of(IN_ROUND, IN_ROUND_TOO), 2, 2, 1),
    "nested": Union(shapes.join(block(*OUTER), block(*HOLE)), within(*OUTER), 2, 2),
    "hollow": Union(shapes.join(block(*OUTER), back(block(*HOLE))), hollow, 2, 2),
    "hollow inside out": Union(shapes.join(back(block(*OUTER)), block(*HOLE)), hollow, 2, 2, 2),
    "hollow, its core inside out": Union(
        shapes.join(block(*OUTER), back(block(*HOLE)), back(block(*CORE))), with_core, 3, 3, 1
    ),
    "apart, one inside out": Union(
        shapes.join(block(*A), back(block(*FAR))), any_of(within(*A), within(*FAR)), 2, turned=1, policy="normals"
    ),
    # All corners of the rail are in the legs.
    "frame, its rail inside out": Union(
        shapes.join(*(block(*leg) for leg in LEGS), back(block(*RAIL))), framed, 3, 3, 1
    ),
    # The part that is inside out is within neither of the others alone.
    "inside out, covered by two": Union(
        shapes.join(block(*WIDE), block(*LONG), back(block((-0.5, -0.5, -0.5), (1.5, 0.5, 0.5)))),
        any_of(within(*WIDE), within(*LONG)),
        3,
        3,
        1,
    ),
    "touching, one inside out": Union(shapes.join(block(*A), back(block(*SIDE))), beside, 2, 2, 1),
    "sharing a face, one inside out": Union(
        shapes.join(block(*A), back(block(*NEXT))), any_of(within(*A), within(*NEXT)), 2, 2, 1
    ),
    "sharing an edge, one inside out": Union(
        shapes.join(block(*A), back(block(*DIAGONAL))), any_of(within(*A), within(*DIAGONAL)), 2, 2, 1
    ),
    "sharing a face on the same side": Union(shapes.join(block(*A), block(*PLATE)), within(*A), 2, 2),
    "a gap": Union(shapes.join(block(*A), block((1 + 2e-7, 0.3, 0.2), SIDE[1])), beside, 2, 2),
    "the same twice": Union(shapes.join(block(*A), block(*A)), within(*A), 1, policy="normals"),
    "the same and its mirror image": Union(shapes.join(block(*A), back(block(*A))), within(*A), 1, policy="normals"),
    # Faces that are drawn from both sides share their vertices.
    "from both sides": Union(two_sided(block(*A)), within(*A), 1, policy="normals"),
    "from both sides, the back first": Union(two_sided(back(block(*A))), within(*A), 1, turned=1, policy="normals"),
    "nearly the same twice": Union(shapes.join(block(*A), block(1e-7, 1 + 1e-7)), within(*A), 2, 2),
    "beside an open sheet, inside out": Union(shapes.join(level(-1.0), back(block(*A))), within(*A), 2, turned=1),
    "from both sides, beside others": Union(
        shapes.join(two_sided(block(*A)), block(*FAR), two_sided(level(-1.0))), any_of(within(*A), within(*FAR)), 3
    ),
    # Rooms wind opposite to what stands in them.
    "between a floor and a ceiling": Union(shapes.join(level(-0.2), block(*A), back(level(1.5))), within(*A), 3),
    "in a room": Union(shapes.join(block(*A), ROOM), within(*A), 2),
    "in a room, inside out": Union(shapes.join(back(block(*A)), ROOM), within(*A), 2, turned=1),
    "in a room, one of two inside out": Union(
        shapes.join(block(*A), back(block(*ASIDE)), BOTTOMLESS), any_of(within(*A), within(*ASIDE)), 3, turned=1
    ),
    "in a room without a floor, hollow": Union(
        shapes.join(block(*BODY), back(block(*HOLE)), BOTTOMLESS), less(within(*BODY), within(*HOLE)), 3, 2
    ),
    "a cavity that is not closed": Union(
        shapes.join(block(*OUTER), without_side(back(block(*A)))), less(within(*OUTER), within(*A)), 2
    ),
}


def points_of(union: Union, count: int = 300) -> Doubles:
    """Returns points in and around a union, without those that round to the surface."""
    low, high = union.shape.vertices.min(0), union.shape.vertices.max(0)
    room = 0.2 * (high - low)
    points = np.random.default_rng(5).uniform(low - room, high + room, (count, 3)).astype(np.float32)
    points = points.astype(np.float64)
    away = closest(torch.from_numpy(points), torch.from_numpy(union.shape.corners)).distance
    return points[np.asarray(away) > 1e-5]


def seen(engine: Engine, mesh: Mesh, points: Doubles, sign: str = "auto", **options: object) -> dict[str, np.ndarray]:
    """Returns the outputs for spheres of 1 cm, and the gradient of the sum of their costs."""
    rows = np.column_stack([points, np.full(len(points), 0.01)]).astype(np.float32).reshape(1, 1, -1, 4)
    case = MeshCase("parts", (), rows, options=Options(activation_distance=0.02, **options))  # type: ignore[arg-type]
    world = World([Instance(mesh, sign=sign)])
    outputs = ("distance", "normal", "closest", "cost", "gradient")
    found = run(engine, case, outputs=outputs, world=world, upstream={"cost": np.ones((1, 1, len(points)))})
    return {name: value[0, 0] for name, value in found.outputs.items()} | {
        f"d_{name}": value for name, value in found.gradients.items()
    }


@pytest.mark.parametrize("name", UNIONS)
def test_auto_knows_what_unions_enclose(name: str, mesh_engine: Engine) -> None:
    union = UNIONS[name]
    mesh = mesh_of(mesh_engine, union.shape)
    report = mesh.report
    counts = (report.components, report.overlapping_components, report.turned_components)
    assert counts == (union.components, union.overlapping, union.turned)
    assert not report.self_intersecting and mesh.policy("auto")[0] == union.policy
    points = points_of(union)
    inside, feet = union.inside(points), closest(torch.from_numpy(points), torch.from_numpy(union.shape.corners))
    expected = np.where(inside, -1, 1) * np.asarray(feet.distance)
    assert inside.any() and not inside.all()
    found = seen(mesh_engine, mesh, points)
    assert_image(found["distance"], expected, 2e-6)
    # Spheres 3 cm away cost nothing, spheres inside cost their depth, and the way out of a part lowers the cost.
    assert_image(found["cost"] > 0, 0.03 - found["distance"] > 0, 0)
    assert_image(found["d_spheres"][0, 0], found["gradient"], 1e-6)
    away = np.abs(expected) > 1e-3
    direction = (points - np.asarray(feet.point)) / expected[:, None]
    assert_image(found["normal"][away], direction[away], 1e-3)
    assert_image(found["gradient"][away & inside, :3], -direction[away & inside], 1e-3)


@pytest.mark.parametrize("corner", [*itertools.product((-1, 1), repeat=3)])
def test_parts_that_reach_out_by_one_corner_are_no_cavities(corner: tuple[int, int, int], mesh_engine: Engine) -> None:
    low, high = np.minimum(corner, -0.385) * 0.52, np.maximum(corner, 0.385) * 0.52
    mesh = mesh_of(mesh_engine, shapes.join(ROUND, back(block(tuple(low), tuple(high)))))
    assert mesh.report.turned_components == 1
    points = np.random.default_rng(7).uniform(low, high, (50, 3)).astype(np.float32).astype(np.float64)
    assert (seen(mesh_engine, mesh, points)["distance"] < 0).all()


def test_faces_of_parts_in_a_room_have_the_numbers_of_the_caller(mesh_engine: Engine) -> None:
    union = UNIONS["in a room, inside out"]
    points = points_of(union, 200)
    rows = np.column_stack([points, np.zeros(len(points))]).astype(np.float32).reshape(1, 1, -1, 4)
    world = World([Instance(mesh_of(mesh_engine, union.shape))])
    found = run(mesh_engine, MeshCase("faces", (), rows), outputs=("face", "closest"), world=world).outputs
    corners = union.shape.corners[found["face"].ravel()]
    assert len({*found["face"].ravel().tolist()}) > 12
    # The closest point lies in the plane of its face.
    above = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    offset = ((found["closest"].reshape(-1, 3) - corners[:, 0]) * above).sum(-1)
    assert_image(offset, np.zeros(len(points)), 1e-5)


def test_parts_that_move_in_a_room_stay_solid(mesh_engine: Engine) -> None:
    union = UNIONS["in a room"]
    mesh = mesh_of(mesh_engine, union.shape)
    # The block moves out of the room, where nothing winds against it, and back into it.
    for by in (0.5, -0.8, 30.0, 0.2):
        vertices = union.shape.vertices.copy()
        vertices[:8, 0] += by
        mesh = mesh_engine.moved(mesh, torch.from_numpy(vertices))
        points = np.random.default_rng(6).uniform(-0.9, 1.9, (200, 3)).astype(np.float32).astype(np.float64)
        points[::2] += [by, 0, 0]
        inside = within((by, 0, 0), (1 + by, 1, 1))(points)
        distances = seen(mesh_engine, mesh, points)["distance"]
        sure = np.abs(distances) > 1e-5
        assert inside.any()
        assert_image((distances < 0)[sure], inside[sure], 0)


def grid_of(count: int, edge: float) -> tuple[MeshShape, Doubles]:
    """Returns count^3 boxes, 1 m apart from middle to middle, and their middles."""
    steps = np.arange(count, dtype=np.float64)
    middles = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)
    unit = shapes.box((edge, edge, edge))
    vertices = (middles[:, None] + unit.vertices).reshape(-1, 3)
    faces = (8 * np.arange(len(middles))[:, None, None] + unit.faces).reshape(-1, 3)
    return MeshShape(vertices, faces.astype(np.int32)), middles


def test_a_thousand_parts_are_told_apart(mesh_engine: Engine) -> None:
    shape, middles = grid_of(10, 0.5)
    faces = shape.faces.copy().reshape(-1, 12, 3)
    turned = np.random.default_rng(1).uniform(size=len(middles)) < 0.1
    faces[turned] = faces[turned][..., ::-1]
    mesh = mesh_of(mesh_engine, MeshShape(shape.vertices, faces.reshape(-1, 3)))
    report = mesh.report
    assert (report.components, report.overlapping_components, report.turned_components) == (1000, 0, turned.sum())
    found = seen(mesh_engine, mesh, middles + 0.1)
    assert_image(found["distance"], np.full(1000, -0.15), 1e-5)
    # One box grows into its 26 neighbours.
    vertices = shape.vertices.copy().reshape(-1, 8, 3)
    vertices[555] = middles[555] + 4 * (vertices[555] - middles[555])
    crowded = mesh_of(mesh_engine, MeshShape(vertices.reshape(-1, 3), faces.reshape(-1, 3)))
    assert crowded.report.overlapping_components == 27 and crowded.report.turned_components == turned.sum()
    assert (seen(mesh_engine, crowded, middles + 0.1)["distance"] < 0).all()


@pytest.mark.parametrize("count", [4, 20])
def test_rooms_of_many_faces_wind_against_what_stands_in_them(mesh_engine: Engine, count: int) -> None:
    """A room within another room adds to the winding."""
    boxes, middles = grid_of(2, 0.5)
    rooms = [without_side(back(shapes.grid_box((size, size, size), count))) for size in (3.0, 3.2)]
    rooms = [shapes.moved(room, (0.5, 0.5, 0.5)) for room in rooms]
    for some in (rooms[:1], rooms):
        mesh = mesh_of(mesh_engine, shapes.join(boxes, *some))
        assert (seen(mesh_engine, mesh, middles + 0.1)["distance"] < 0).all()
        outside = np.array([[0.5, 0.5, 0.5], [1.7, 0.5, 0.5], [0.5, 0.5, 1.9], [5.0, 5.0, 5.0]])
        assert (seen(mesh_engine, mesh, outside)["distance"] > 0).all()


def test_parts_above_a_floor_of_many_faces_cost_little_more_than_both() -> None:
    """Comparing places with each face, not with groups of faces, takes twenty times as long as both builds."""
    boxes, _ = grid_of(8, 0.5)
    steps = np.linspace(-1.0, 9, 23)
    rows, columns = (axis.ravel() for axis in np.meshgrid(np.arange(22), np.arange(22)))
    first = 23 * rows + columns
    corners = np.stack([first, first + 1, first + 24, first, first + 24, first + 23], axis=1).reshape(-1, 3)
    points = np.stack(np.meshgrid(steps, steps, [-1.0]), -1).reshape(-1, 3)
    floor = MeshShape(points, corners.astype(np.int32))

    def seconds(*parts: MeshShape) -> float:
        """Returns the least processor time of a few builds."""
        mesh, found = shapes.join(*parts), []
        for _ in range(5):
            before = time.process_time()
            Mesh.build(torch.from_numpy(mesh.vertices), torch.from_numpy(mesh.faces))
            found.append(time.process_time() - before)
        return min(found)

    assert seconds(boxes, floor) < 8 * (seconds(boxes) + seconds(floor))


def test_many_parts_in_a_heap_are_a_union(mesh_engine: Engine) -> None:
    random = np.random.default_rng(2)
    lows = random.uniform(0, 3, (300, 3))
    highs = lows + random.uniform(0.1, 0.9, (300, 3))
    # A box that is inside out and wholly in another one would be a cavity of it.
    alone = np.array([((lows < low) & (highs > high)).all(1).sum() == 0 for low, high in zip(lows, highs, strict=True)])
    lows, highs = lows[alone], highs[alone]
    turned = random.uniform(size=len(lows)) < 0.3
    parts = [block(tuple(low), tuple(high)) for low, high in zip(lows, highs, strict=True)]
    heap = shapes.join(*(back(part) if flip else part for part, flip in zip(parts, turned, strict=True)))
    mesh = mesh_of(mesh_engine, heap)
    inside = any_of(*(within(tuple(low), tuple(high)) for low, high in zip(lows, highs, strict=True)))
    points = random.uniform(-0.2, 4.2, (400, 3)).astype(np.float32).astype(np.float64)
    distances = seen(mesh_engine, mesh, points)["distance"]
    sure = np.abs(distances) > 1e-5
    assert mesh.report.turned_components == turned.sum()
    assert_image((distances < 0)[sure], inside(points)[sure], 0)


@pytest.mark.parametrize("sweep", [False, True])
def test_costs_of_paths_miss_no_part(sweep: bool, mesh_engine: Engine) -> None:
    union = UNIONS["frame, its rail inside out"]
    mesh = mesh_of(mesh_engine, union.shape)
    random = np.random.default_rng(3)
    ends = random.uniform(-0.5, 2.8, (120, 2, 3)).astype(np.float32)
    rows = np.concatenate([ends, np.full((120, 2, 1), 0.02, np.float32)], -1).transpose(1, 0, 2)[None]
    case = MeshCase("paths", (), np.ascontiguousarray(rows), options=Options(sweep=sweep, samples=256))
    world = World([Instance(mesh)])
    found = run(mesh_engine, case, outputs=("cost", "exhausted"), world=world).outputs
    free = (found["cost"] == 0).all((0, 1)) & ~found["exhausted"].any((0, 1))
    steps = np.linspace(0, 1, 400 if sweep else 2)[:, None, None]
    path = ends[:, 0] + steps * (ends[:, 1] - ends[:, 0])
    touched = union.inside(path.astype(np.float64)).any(0)
    assert touched.any() and free.any() and not (free & touched).any()


def test_parts_that_move_into_each_other_are_noticed(mesh_engine: Engine) -> None:
    union = UNIONS["apart, one inside out"]
    mesh = mesh_of(mesh_engine, union.shape)
    for by, overlapping in ((-0.3, 0), (-1.4, 2), (-1.2, 2), (-0.2, 0)):
        vertices = union.shape.vertices.copy()
        vertices[8:, 0] += by
        mesh = mesh_engine.moved(mesh, torch.from_numpy(vertices))
        there = MeshShape(vertices, union.shape.faces)
        found, expected = vars(mesh.report), vars(facts_of(there))
        assert all(found[key] == expected[key] for key in expected if "components" in key)
        assert mesh.report.overlapping_components == overlapping
        inside = any_of(within(*A), within((2 + by, 0, 0), (3 + by, 1, 1)))
        points = points_of(Union(there, inside, 2))
        assert_image(seen(mesh_engine, mesh, points)["distance"] < 0, inside(points), 0)


def test_parts_that_are_mirrored_by_a_move_are_turned(mesh_engine: Engine) -> None:
    union = UNIONS["overlapping"]
    mesh = mesh_of(mesh_engine, union.shape)
    points = points_of(union)
    for flip in (True, False, True):
        vertices = union.shape.vertices.copy()
        if flip:
            vertices[8:, 0] = 2.5 - vertices[8:, 0]
        mesh = mesh_engine.moved(mesh, torch.from_numpy(vertices))
        assert mesh.report.turned_components == flip
        assert_image(seen(mesh_engine, mesh, points)["distance"] < 0, union.inside(points), 0)


def test_surfaces_that_intersect_themselves_are_noticed(mesh_engine: Engine) -> None:
    # A bar is bent until its ends intersect, and a vertex is pulled through the face on the other side.
    bar = shapes.grid_box((1.0, 1.0, 1.0), 12)
    x, y, z = (bar.vertices + 0.5).T
    angle, away = 1.1 * 2 * np.pi * x, 2 + 0.4 * y

    def bent(turn: float) -> MeshShape:
        return bar.moved(np.stack([away * np.cos(turn * angle), away * np.sin(turn * angle), 0.4 * z], -1))

    box = shapes.grid_box((1.0, 1.0, 1.0), 4)
    pulled = box.vertices.copy()
    pulled[(pulled == np.array([0.0, 0.0, 0.5])).all(1)] = (0.1, 0.05, -0.9)
    open_ring, ring = mesh_of(mesh_engine, bent(0.85)), mesh_of(mesh_engine, bent(1.0))
    spiked = mesh_of(mesh_engine, box.moved(pulled))
    assert not open_ring.report.self_intersecting and open_ring.policy("auto")[0] == "normals"
    for mesh in (ring, spiked, mesh_engine.moved(open_ring, torch.from_numpy(bent(1.0).vertices))):
        assert mesh.report.self_intersecting and mesh.report.components == 1
        assert mesh.policy("auto")[0] == "winding"
    middle = 2.2 * np.array([[np.cos(a), np.sin(a), 0] for a in np.linspace(0.02, 6.2, 40)]) + [0, 0, 0.2]
    assert (seen(mesh_engine, ring, middle)["distance"] < 0).all()


def test_solids_are_not_taken_for_anything_else(mesh_engine: Engine) -> None:
    ell, flat = shapes.split(shapes.ell()), shapes.box((1, 1, 1e-4))
    for shape in (shapes.torus(), ell, shapes.grid_box(), shapes.capped(), flat):
        for made in (shape, back(shape), shapes.moved(shape, (1000, 0, 0)), shapes.scaled(shape, 1e-3)):
            mesh = mesh_of(mesh_engine, made)
            assert not mesh.report.self_intersecting and not mesh.report.overlapping_components
            assert mesh.policy("auto") == ("normals", mesh.report.volume < 0)
