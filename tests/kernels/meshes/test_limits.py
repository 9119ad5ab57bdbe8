"""Edge cases: one triangle or forty, no spheres, no obstacles, one row, sizes of chunks, odd values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes import Instance, Mesh, Settings, World
from support.backends.mesh_engines import Engine
from support.closeness import assert_image, assert_relative
from support.meshes import shapes
from support.meshes.case import IDENTITY, CuboidShape, MeshCase, MeshShape, Options, Placed
from support.meshes.cases import ASIDE, TURNED, ball_grid, case_of, kinds
from support.meshes.obstacles import Obstacle
from support.meshes.reference import ExactScene
from support.meshes.runs import DISTANCES, OUTPUTS, run, world_of
from support.meshes.spheres import Crowd, random_of, tensor
from support.meshes.triangles import closest

SWEPT = {"activation_distance": 0.05, "sweep": True}
EVERY = ("cost", "distance")
FEW = Crowd(batches=1, horizon=2, count=9)


def soup(count: int) -> MeshShape:
    """Returns a number of random triangles, some of which share corners."""
    random = random_of(f"soup {count}")
    vertices = random.uniform(-0.5, 0.5, (count + 3, 3))
    faces = np.stack([random.permutation(count + 3)[:3] for _ in range(count)])
    return MeshShape(vertices, faces.astype(np.int32))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16, 17, 31, 32, 33, 257])
def test_any_number_of_triangles(count: int, mesh_engine: Engine) -> None:
    signs = ("unsigned", "winding", "rays") if count < 34 else ("unsigned",)
    for sign in signs:
        case = case_of(f"soup {count}", Placed(soup(count), TURNED, sign=sign), crowd=FEW, **SWEPT)
        scene = ExactScene(case)
        expected, cost = scene.shaped(scene.nearest["distance"]), scene.shaped(scene.cost)
        stable = scene.shaped(scene.sure & scene.smooth)
        upstream = {name: np.where(stable, 1.0, 0.0) for name in EVERY}
        result = run(mesh_engine, case, outputs=EVERY, upstream=upstream)
        sure = scene.shaped(scene.sure)
        assert_image(result.outputs["distance"][sure], expected[sure], 1e-6)
        assert_image(result.outputs["cost"][sure], cost[sure], 1e-5)
        for name, gradient in scene.gradients(upstream).items():
            assert_relative(f"{sign} {name}", result.gradients[name], gradient, 1e-3, 1e-5)


def assert_shapes(case: MeshCase, engine: Engine) -> None:
    """Checks that everything has the requested shape."""
    upstream = dict.fromkeys(EVERY, np.ones(case.shape))
    result = run(engine, case, outputs=OUTPUTS, upstream=upstream)
    for name, values in result.outputs.items():
        last = {"normal": (3,), "closest": (3,), "gradient": (4,)}.get(name, ())
        assert values.shape == (*case.shape, *last), name
        kind = {"face": "int32", "instance": "int32", "beyond": "bool", "exhausted": "bool"}.get(name, "float32")
        assert values.dtype == kind, name
    shapes_of = {name: value.shape for name, value in result.gradients.items()}
    assert shapes_of == {"spheres": case.spheres.shape, "poses": (len(case.placed), 7), "weight": ()}
    each = run(engine, case, outputs=DISTANCES, per_instance=True).outputs
    for name, values in each.items():
        last = (3,) if name in ("normal", "closest") else ()
        assert values.shape == (*case.shape, len(case.placed), *last), name


@pytest.mark.parametrize(
    "shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0), (1, 1, 1), (1, 2, 1), (3, 1, 1)], ids=str
)
def test_batches_of_any_shape(shape: tuple[int, int, int], mesh_engine: Engine) -> None:
    case = case_of("shapes", *kinds(), crowd=Crowd(3, 3, 3), **SWEPT)
    batches, horizon, count = shape
    rows = np.arange(batches, dtype=np.int32) * 0
    small = replace(case, spheres=np.ascontiguousarray(case.spheres[:batches, :horizon, :count]), rows=rows)
    assert_shapes(small, mesh_engine)


def test_no_obstacles_are_no_cost(mesh_engine: Engine) -> None:
    case = case_of("nothing", *kinds(), crowd=FEW, **SWEPT)
    off = tuple(replace(one, enabled=False) for one in case.placed)
    for empty in (replace(case, placed=()), replace(case, placed=off)):
        assert_shapes(empty, mesh_engine)
        for limit in (None, 0.3):
            upstream = dict.fromkeys(EVERY, np.ones(case.shape))
            result = run(mesh_engine, empty, outputs=OUTPUTS, upstream=upstream, max_distance=limit)
            assert (result.outputs["distance"] == np.float32(np.inf if limit is None else limit)).all()
            assert (result.outputs["instance"] == -1).all() and (result.outputs["face"] == -1).all()
            np.testing.assert_array_equal(result.outputs["closest"], case.spheres[..., :3])
            for name in ("cost", "gradient", "normal", "exhausted"):
                assert not result.outputs[name].any(), name
            for name, gradient in result.gradients.items():
                assert not gradient.any(), name


@pytest.mark.parametrize("count", [511, 512, 513, 1025])
def test_rows_do_not_depend_on_each_other(count: int, mesh_engine: Engine) -> None:
    mesh = shapes.torus(12, 8)
    case = case_of("rows", Placed(mesh, TURNED), crowd=Crowd(1, 1, count, near=0.2), activation_distance=0.05)
    names = ("cost", "distance", "gradient", "instance")
    together = run(mesh_engine, case, outputs=names).outputs
    some = np.linspace(0, count - 1, 7).astype(int)
    alone = run(mesh_engine, replace(case, spheres=np.ascontiguousarray(case.spheres[:, :, some])), outputs=names)
    for name, values in alone.outputs.items():
        assert_image(values, together[name][:, :, some], 1e-6 if name != "gradient" else 1e-3)


def test_spheres_that_are_off_are_not_there(mesh_engine: Engine) -> None:
    case = case_of("off", *kinds(), crowd=Crowd(2, 3, 40), **SWEPT)
    spheres = case.spheres.copy()
    spheres[:, :, ::2, 3] = -1
    half = replace(case, spheres=spheres)
    kept = replace(case, spheres=np.ascontiguousarray(case.spheres[:, :, 1::2]))
    names = ("cost", "distance", "closest", "normal")
    mixed = run(mesh_engine, half, outputs=OUTPUTS, upstream={"cost": np.ones(case.shape)})
    alone = run(mesh_engine, kept, outputs=names, upstream={"cost": np.ones(kept.shape)})
    for name in names:
        assert_image(
            mixed.outputs[name][:, :, 1::2], alone.outputs[name], 1e-3 if name in ("normal", "closest") else 1e-6
        )
    assert not mixed.gradients["spheres"][:, :, ::2].any()
    assert_relative("spheres", mixed.gradients["spheres"][:, :, 1::2], alone.gradients["spheres"], 1e-4)
    assert_relative("poses", mixed.gradients["poses"], alone.gradients["poses"], 1e-4)
    assert (mixed.outputs["distance"][:, :, ::2] == np.inf).all() and not mixed.outputs["beyond"].any()
    nobody = replace(case, spheres=np.where(np.arange(4) == 3, -1, case.spheres).astype(np.float32))
    assert_shapes(nobody, mesh_engine)
    assert not run(mesh_engine, nobody).outputs["cost"].any()


@pytest.mark.parametrize("name", ["box", "ell", "torus", "bowl"])
def test_centres_on_the_surface_have_its_normal(name: str, mesh_engine: Engine) -> None:
    shape = {"box": shapes.box(), "ell": shapes.ell(), "torus": shapes.torus(12, 8), "bowl": shapes.bowl()}[name]
    # The middles of faces in float32 are on the surface, or a rounding beside it.
    corners = shape.corners
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    count = len(corners)
    spheres = np.concatenate([corners.mean(1), np.full((count, 1), 0.05)], 1).astype(np.float32).reshape(1, 1, count, 4)
    placed = Placed(shape, sign="normals")
    case = MeshCase(name, (placed,), spheres, options=Options(activation_distance=0.02))
    outputs = run(mesh_engine, case, outputs=OUTPUTS).outputs
    assert_image(outputs["distance"], np.zeros((1, 1, count)), 1e-6)
    assert_image(outputs["cost"], np.full((1, 1, count), 0.06), 2e-6)
    assert_image(outputs["normal"][0, 0], normals, 1e-4)
    assert_image(outputs["gradient"][0, 0, :, :3], -normals, 1e-4)
    assert_image(outputs["gradient"][0, 0, :, 3], np.ones(count), 1e-6)
    # The normals on corners and edges have some direction, and length 1.
    points = np.concatenate([shape.vertices, (corners + np.roll(corners, 1, 1)).reshape(-1, 3) / 2])
    spheres = np.pad(points, ((0, 0), (0, 1))).astype(np.float32)[None, None]
    outputs = run(mesh_engine, replace(case, spheres=spheres), outputs=("distance", "normal", "gradient")).outputs
    assert_image(outputs["distance"], np.zeros(outputs["distance"].shape), 1e-6)
    assert_image(np.linalg.norm(outputs["normal"].astype(np.float64), axis=-1), np.ones((1, 1, len(points))), 1e-4)
    # cuRobo has no gradient on the surface.
    plain = replace(case, options=replace(case.options, semantics="curobo", max_distance=0.5))
    exact = replace(
        plain, spheres=np.pad(shapes.box((1, 1, 1)).vertices, ((0, 0), (0, 1))).astype(np.float32)[None, None]
    )
    cubes = replace(exact, placed=(Placed(shapes.box((1, 1, 1))),))
    assert not run(mesh_engine, cubes, outputs=("gradient",)).outputs["gradient"].any()


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0, 10_000.0])
def test_points_that_share_a_corner_are_found(size: float, mesh_engine: Engine) -> None:
    # The closest points of neighbours bound the search, which rounding must not make too short.
    random = random_of(f"corner {size}")
    shape = shapes.scaled(shapes.tetrahedron(), size)
    away = random.normal(size=(600, 3))
    away *= (size * 10 ** random.uniform(-6, -1, 600) / np.linalg.norm(away, axis=1))[:, None]
    points = shape.vertices[random.integers(0, 4, 600)] + away
    # A link that stands still has the same spheres in all time steps.
    points = np.concatenate([points, *(np.repeat(points[[row]], 64, 0) for row in range(4))])
    spheres = np.pad(points, ((0, 0), (0, 1))).astype(np.float32)
    feet = closest(torch.from_numpy(spheres[:, :3].astype(np.float64)), torch.from_numpy(shape.corners), 1e-6 * size)
    for rows in (slice(None), slice(40), slice(-64, None)):
        case = MeshCase("corner", (Placed(shape),), spheres[None, None, rows])
        found = run(mesh_engine, case, outputs=("distance", "face")).outputs
        assert (found["face"] >= 0).all()
        assert_image(np.abs(found["distance"][0, 0]), feet.distance.numpy()[rows], 1e-6 * size)


def test_the_deepest_inside_is_found(mesh_engine: Engine) -> None:
    for size in (1.0, 30.0, 1000.0):
        solid = Placed(shapes.scaled(shapes.grid_box((1.0, 0.8, 0.6)), size), ASIDE)
        middle = np.array([[[[*ASIDE[:3], 0.1]]]], np.float32)
        case = MeshCase("deep", (solid,), middle, options=Options(activation_distance=0.02, max_distance=0.05))
        outputs = run(mesh_engine, case, outputs=OUTPUTS).outputs
        assert outputs["distance"].item() == pytest.approx(-0.3 * size, rel=1e-5)
        assert outputs["cost"].item() == pytest.approx(0.3 * size + 0.1 + 0.01, rel=1e-5)
        assert not outputs["beyond"].any()
        # cuRobo's search ends before that depth.
        limited = replace(case, options=replace(case.options, semantics="curobo"))
        assert not run(mesh_engine, limited).outputs["cost"].any()


@pytest.mark.parametrize("steps", [0, 1, 255])
def test_any_number_of_steps_as_curobo(steps: int, mesh_engine: Engine) -> None:
    case = case_of("steps", *kinds()[:2], crowd=Crowd(1, 3, 12, step=0.6), **SWEPT)
    options = replace(case.options, semantics="curobo", max_distance=0.3, samples=steps)
    swept = run(mesh_engine, replace(case, options=options)).outputs["cost"]
    static = run(mesh_engine, replace(case, options=replace(options, sweep=False))).outputs["cost"]
    assert (swept >= static).all()
    assert (swept == static).all() == (steps == 0)


def test_the_largest_coordinates_are_finite(mesh_engine: Engine) -> None:
    wall = Placed(shapes.scaled(shapes.box(), 1e9), IDENTITY)
    spheres = np.array([[[[1e9, -1e9, 1e9, 1e9], [0, 0, 0, 0], [-1e9, 1e9, 3.0, 1e-3]]]], np.float32)
    for case in (
        MeshCase("large", (wall, Placed(CuboidShape((1e9, 1e-3, 1.0)), TURNED)), spheres),
        MeshCase("far", (Placed(shapes.tetrahedron(), (1e9, 0, -1e9, 1, 0, 0, 0)), Placed(ball_grid())), spheres),
    ):
        upstream = dict.fromkeys(EVERY, np.ones(case.shape))
        result = run(mesh_engine, case, outputs=OUTPUTS, upstream=upstream, sweep=True, activation_distance=1.0)
        for name, values in {**result.outputs, **result.gradients}.items():
            assert np.isfinite(values).all(), name


def test_vertices_and_faces_of_any_type(mesh_engine: Engine) -> None:
    case = case_of("types", Placed(shapes.torus(12, 8)), crowd=FEW, activation_distance=0.05)
    shape = case.placed[0].shape
    expected = run(mesh_engine, case, outputs=("distance",)).outputs["distance"]
    for vertices in (torch.float32, torch.float64):
        for faces in (torch.int32, torch.int64):
            mesh = mesh_engine.mesh(
                torch.from_numpy(shape.vertices).to(vertices), torch.from_numpy(shape.faces).to(faces)
            )
            found = run(mesh_engine, case, outputs=("distance",), world=World([Instance(mesh)])).outputs["distance"]
            assert_image(found, expected, 2e-7)


def test_inputs_need_not_be_contiguous(mesh_engine: Engine) -> None:
    case = case_of("strided", *kinds(), crowd=FEW, environments=1, rows=[0], **SWEPT)
    world = world_of(mesh_engine, case)
    plain, state = mesh_engine.evaluate(tensor(case.spheres), world, Settings(), outputs=EVERY, retain=True)
    padded = torch.full([2 * size for size in case.spheres.shape], 7.0)
    spread = padded[tuple(slice(0, None, 2) for _ in case.spheres.shape)]
    spread.copy_(tensor(case.spheres))
    assert not spread.is_contiguous()
    strided, other = mesh_engine.evaluate(spread, world, Settings(), outputs=EVERY, retain=True)
    upstream = torch.arange(1.0, 10.0).expand(case.shape)
    assert not upstream.is_contiguous()
    for name, values in plain.items():
        assert_image(strided[name], values, 0)
    given = dict.fromkeys(EVERY, upstream)
    expected = mesh_engine.backward(state, dict.fromkeys(EVERY, upstream.contiguous()), ("spheres", "poses"))
    for name, gradient in mesh_engine.backward(other, given, ("spheres", "poses")).items():
        assert_relative(name, gradient, expected[name], 1e-6)


@pytest.mark.parametrize("count", [4, 200])
def test_fine_triangles_are_refused_like_small_meshes(count: int) -> None:
    """A sheet of 2 micrometres, whose triangles may be lost in float32 although the sheet is not."""
    places = np.arange(count * count).reshape(count, count)
    corners = [places[:-1, :-1], places[:-1, 1:], places[1:, :-1], places[1:, 1:]]
    faces = np.concatenate([np.stack([corners[k] for k in of], -1).reshape(-1, 3) for of in ((0, 1, 2), (2, 1, 3))])
    across = np.linspace(0.0, 2e-6, count)
    sheet = torch.from_numpy(np.stack([*np.meshgrid(across, across), np.zeros((count, count))], -1).reshape(-1, 3))
    if count == 4:
        assert Mesh.build(sheet, torch.from_numpy(faces)).report.area == pytest.approx(4e-12)
        return
    expected = r"^vertices: expected triangles of a mean size of at least 5e-08 m, got 7.1e-09 m; use larger units"
    with pytest.raises(ArgumentError, match=expected):
        Mesh.build(sheet, torch.from_numpy(faces))
    large = Mesh.build(1e3 * sheet, torch.from_numpy(faces))
    with pytest.raises(ArgumentError, match=expected):
        large.moved(sheet)


def test_many_instances_of_one_mesh(mesh_engine: Engine) -> None:
    mesh = shapes.tetrahedron(0.2)
    random = random_of("many")
    poses = np.concatenate([random.uniform(-1, 1, (90, 3)), random.standard_normal((90, 4))], 1)
    placed = tuple(Placed(mesh, tuple(pose.tolist())) for pose in poses)
    case = case_of("many", *placed, crowd=Crowd(1, 2, 30), activation_distance=0.05)
    distance = np.min(
        [
            Obstacle(one).look(torch.from_numpy(case.spheres[..., :3].reshape(-1, 3)).double()).distance
            for one in placed
        ],
        0,
    )
    outputs = run(mesh_engine, case, outputs=("distance", "instance")).outputs
    assert_image(outputs["distance"].ravel(), distance, 1e-6)
    assert len(np.unique(outputs["instance"])) > 20
