"""`Client.query` and `Client.field` through a real worker: results by name, shapes, options, refusals, gradients."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from lumigrad.client import (
    Client,
    Cuboid,
    Distances,
    Gradients,
    InvalidArgument,
    Mesh,
    Obstacle,
    Spheres,
    VoxelGrid,
    World,
)
from support.meshes import shapes as mesh_shapes
from support.workers.worker import worker

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
MESH = Mesh(BOX.vertices, BOX.faces, "box")
ASIDE = (3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
WORLD = World([Obstacle(MESH), Obstacle(Cuboid((1, 1, 1)), ASIDE, "aside")])
EVERY = ("distance", "normal", "closest", "face", "obstacle", "beyond", "cost", "gradient", "exhausted")
# Outside the mesh, inside it, near the cuboid, and switched off by a negative radius.
SPHERES = np.array([[0.8, 0, 0, 0.1], [0.4, 0, 0, 0.1], [3.0, 0, 0.75, 0.1], [0.8, 0, 0, -1.0]], np.float32)


@pytest.fixture(params=["world", "handle"])
def world(request, client):
    return WORLD if request.param == "world" else client.put(WORLD)


def test_results_have_names_shapes_and_types(client, world):
    found = client.query(world, np.broadcast_to(SPHERES, (2, 3, 4, 4)), outputs=EVERY, activation_distance=0.5)
    assert isinstance(found, Distances) and tuple(found) == EVERY
    for name in EVERY:
        last = {"normal": (3,), "closest": (3,), "gradient": (4,)}.get(name, ())
        kind = {"face": np.int32, "obstacle": np.int32, "beyond": np.bool_, "exhausted": np.bool_}.get(name, np.float32)
        assert found[name].shape == (2, 3, 4, *last) and found[name].dtype == kind, name
    one = client.query(world, SPHERES, outputs=EVERY, activation_distance=0.5)
    for name in EVERY:
        np.testing.assert_array_equal(found[name], np.broadcast_to(one[name], found[name].shape), err_msg=name)
    assert client.query(world, SPHERES[None], outputs="distance").distance.shape == (1, 4)
    assert found.timings.kernel_ms > 0 and found.timings.round_trip_ms > 0
    with pytest.raises(
        AttributeError, match=r'no "cost" here, only distance; name what you need in query\(outputs=…\)'
    ):
        _ = client.query(world, SPHERES).cost


def test_values(client, world):
    found = client.query(world, SPHERES, outputs=EVERY, activation_distance=0.5)
    np.testing.assert_allclose(found.distance, (0.3, -0.1, 0.25, np.inf), atol=1e-6)
    np.testing.assert_allclose(found.normal, [(1, 0, 0), (1, 0, 0), (0, 0, 1), (0, 0, 0)], atol=1e-6)
    np.testing.assert_allclose(found.closest, [(0.5, 0, 0), (0.5, 0, 0), (3, 0, 0.5), (0.8, 0, 0)], atol=1e-6)
    assert found.obstacle.tolist() == [0, 0, 1, -1]
    assert set(found.face[:2].tolist()) <= {10, 11, 2, 3, *range(12)} and found.face[2:].tolist() == [-1, -1]
    assert not found.beyond.any()
    depths = 0.1 + 0.5 - np.array([0.3, -0.1, 0.25])
    costs = np.where(depths > 0.5, depths - 0.25, depths**2)
    np.testing.assert_allclose(found.cost, [*costs, 0], atol=1e-6)
    slopes = np.minimum(depths / 0.5, 1.0)
    np.testing.assert_allclose(found.gradient[:3, 3], slopes, atol=1e-5)
    np.testing.assert_allclose(found.gradient[:2, 0], -slopes[:2], atol=1e-5)


def test_far_away_is_beyond_and_inside_is_found_at_any_depth(client, world):
    found = client.query(world, SPHERES, outputs=("distance", "beyond", "obstacle"), max_distance=0.05)
    np.testing.assert_allclose(found.distance, (0.05, -0.1, 0.05, 0.05), atol=1e-6)
    assert found.beyond.tolist()[:3] == [True, False, True]
    assert found.obstacle.tolist() == [-1, 0, -1, -1]


def test_distances_may_be_positive_inside(client, world):
    outside = client.query(world, SPHERES, retain=True)
    inside = client.query(world, SPHERES, positive="inside", retain=True)
    np.testing.assert_array_equal(inside.distance, -outside.distance)
    upstream = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(
        inside.backward(distance=upstream).spheres, -outside.backward(distance=upstream).spheres
    )


def test_each_obstacle_by_itself(client, world):
    found = client.query(world, SPHERES, outputs=("distance", "closest"), per_obstacle=True, retain=True)
    assert found.distance.shape == (4, 2) and found.closest.shape == (4, 2, 3)
    np.testing.assert_allclose(found.distance[:2], [(0.3, 1.7), (-0.1, 2.1)], atol=1e-6)
    gradients = found.backward(distance=np.eye(4, 2), wanted=("spheres", "poses"))
    np.testing.assert_allclose(gradients.spheres[:, :3], [(1, 0, 0), (-1, 0, 0), (0, 0, 0), (0, 0, 0)], atol=1e-6)
    assert gradients.poses.shape == (2, 7)
    with pytest.raises(InvalidArgument, match="cost"):
        client.query(world, SPHERES, outputs=("cost",), per_obstacle=True)


def test_a_mesh_is_a_world_of_its_own(client):
    expected = client.query(World([Obstacle(MESH)]), SPHERES).distance
    for mesh in (MESH, client.put(MESH)):
        np.testing.assert_array_equal(client.query(mesh, SPHERES).distance, expected)


def test_points_are_spheres_of_radius_0(client, world):
    outputs = ("distance", "cost", "gradient")
    for shape in ((4,), (2, 4), (3, 2, 4)):
        points = np.broadcast_to(SPHERES[:, :3], (*shape, 3))
        spheres = np.concatenate([points, np.zeros((*shape, 1), np.float32)], axis=-1)
        found, expected = (
            client.query(world, rows, outputs=outputs, activation_distance=0.5) for rows in (points, spheres)
        )
        for name in outputs:
            np.testing.assert_array_equal(found[name], expected[name])
        assert found.backward(np.ones(shape)).spheres.shape == (*shape, 4)


def test_bare_shapes_and_poses_of_every_kind_are_asked_about(client):
    turned = np.array([[0, -1, 0, 3], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    table = Cuboid((1, 2, 1))
    points = np.array([[0, 0, 0], [3, 0, 0], [3.9, 0, 0]])
    for world in (table, [table]):
        np.testing.assert_allclose(client.query(World(world), points).distance, (-0.5, 2.5, 3.4), atol=1e-6)
    handle = client.put(World([Obstacle(table, (3, 0, 0), "table"), MESH]))
    np.testing.assert_allclose(client.query(handle, points).distance, (-0.5, -0.5, 0.4), atol=1e-6)
    handle = client.update(handle, poses={"table": turned})
    np.testing.assert_allclose(client.query(handle, points).distance, (-0.5, -0.5, -0.1), atol=1e-6)
    handle = client.update(handle, poses={"table": (0, 0, 9)})
    np.testing.assert_allclose(client.query(handle, points).distance, (-0.5, 2.5, 3.4), atol=1e-6)
    field = client.field(World(table), turned, size=(1, 1, 1), voxel_size=0.5)
    same = client.field(World(table), (3, 0, 0, 0.5**0.5, 0, 0, 0.5**0.5), size=(1, 1, 1), voxel_size=0.5)
    np.testing.assert_allclose(field.distances, same.distances, atol=1e-6)


def test_environments(client):
    world = World([Obstacle(MESH, environment=1), Obstacle(Cuboid((1, 1, 1)), ASIDE, environment=2)])
    rows = np.broadcast_to(SPHERES, (3, 1, 4, 4))
    found = client.query(world, rows, environments=[0, 1, 2]).distance[:, 0, 0]
    np.testing.assert_allclose(found, (np.inf, 0.3, 1.7), atol=1e-6)
    np.testing.assert_allclose(client.query(world, rows, environments=1).distance[:, 0, 0], 0.3, atol=1e-6)
    np.testing.assert_allclose(client.query(world, SPHERES, environments=2).distance[0], 1.7, atol=1e-6)
    with pytest.raises(InvalidArgument, match="environments"):
        client.query(world, rows, environments=[0, 1, 3])
    with pytest.raises(InvalidArgument, match=r"^environments: expected shape \[3\], got \[2\]"):
        client.query(world, rows, environments=[0, 1])


def test_sweeps_miss_nothing(client):
    wall = World([Obstacle(Cuboid((0.02, 2, 2)))])
    way = np.array([[[-1.0, 0, 0, 0.05]], [[1.0, 0, 0, 0.05]]])
    options = {"outputs": ("cost", "exhausted"), "samples": 64}
    assert not client.query(wall, way, outputs=("cost",)).cost.any()
    forward = client.query(wall, way, sweep=True, **options)
    backward = client.query(wall, way[::-1].copy(), sweep=True, **options)
    assert (forward.cost > 0).all()
    np.testing.assert_allclose(forward.cost, backward.cost[::-1], rtol=1e-5)
    largest = client.query(wall, way, sweep=True, reduction="max", **options).cost
    assert (largest <= forward.cost + 1e-6).all() and (largest > 0).all()


def test_gradients_of_costs_and_distances(client, world):
    options = {"outputs": ("cost", "distance"), "activation_distance": 0.5, "weight": 3.0}
    found = client.query(world, SPHERES, retain=True, **options)
    upstream = np.array([1.0, 2.0, 3.0, 4.0])
    gradients = found.backward(upstream, wanted=("spheres", "poses", "weight"))
    assert isinstance(gradients, Gradients)
    assert gradients.spheres.shape == (4, 4) and gradients.poses.shape == (2, 7) and gradients.weight.shape == ()
    assert gradients.weight == pytest.approx(float(upstream @ found.cost / 3), rel=1e-5)
    own = client.query(world, SPHERES, outputs=("gradient",), activation_distance=0.5, weight=3.0).gradient
    np.testing.assert_allclose(gradients.spheres, own * upstream[:, None], atol=1e-5)
    both = found.backward(upstream, distance=upstream).spheres
    alone = found.backward(distance=upstream).spheres
    np.testing.assert_allclose(both, gradients.spheres + alone, atol=1e-5)
    # Without a retained context the worker computes the same gradients from scratch.
    again = client.query(world, SPHERES, **options).backward(upstream, wanted=("spheres", "poses", "weight"))
    for name, array in gradients.items():
        np.testing.assert_array_equal(again[name], array)


def test_gradients_need_an_output_of_the_right_shape(client, world):
    found = client.query(world, SPHERES)
    with pytest.raises(InvalidArgument, match=r"^cost: expected at least one of cost and distance, got none"):
        found.backward()
    with pytest.raises(InvalidArgument, match=r"^distance: expected the shape of the output, \[4\], got \[3\]"):
        found.backward(distance=np.ones(3))
    with pytest.raises(InvalidArgument, match="wanted"):
        found.backward(distance=np.ones(4), wanted=("colors",))


@pytest.mark.parametrize("name", ["distance", "cost"])
@pytest.mark.parametrize("outputs", [*((name,) for name in EVERY), ("normal", "obstacle"), ("normal", "cost")])
def test_gradients_of_kept_queries_are_those_of_others_or_refused(client, world, outputs, name):
    upstream = {name: np.float32([1, 2, 3, 4])}
    query = {"outputs": outputs, "activation_distance": 0.5}
    expected = client.query(world, SPHERES, **query).backward(**upstream)
    for _ in range(2):
        with client.query(world, SPHERES, retain=True, **query) as kept:
            try:
                found = kept.backward(**upstream)
            except InvalidArgument as error:
                assert (
                    str(error).startswith("output_gradients: expected outputs that this query retained")
                    and name not in outputs
                )
            else:
                np.testing.assert_array_equal(found.spheres, expected.spheres)


def test_lost_released_and_dropped_contexts():
    with worker("--device", "cpu", "--context-seconds", "0.2") as process, Client(process.target) as client:
        found = client.query(client.put(WORLD), SPHERES, retain=True)
        expected = found.backward(distance=np.ones(4)).spheres
        until = time.monotonic() + 60
        while client.info().contexts and time.monotonic() < until:
            time.sleep(0.05)
        assert client.info().contexts == 0
        np.testing.assert_array_equal(found.backward(distance=np.ones(4)).spheres, expected)
    with worker("--device", "cpu") as process, Client(process.target) as client:
        results = [client.query(WORLD, SPHERES, retain=True) for _ in range(3)]
        assert client.info().contexts == 3
        np.testing.assert_array_equal(results[0].backward(distance=np.ones(4), release=True).spheres, expected)
        results[1].release()
        np.testing.assert_array_equal(results[1].backward(distance=np.ones(4)).spheres, expected)
        results.clear()
        gc.collect()
        client.query(WORLD, SPHERES)
        until = time.monotonic() + 60
        while client.info().contexts and time.monotonic() < until:
            time.sleep(0.02)
        assert client.info().contexts == 0


def test_fields(client):
    grid = client.field(WORLD, (3.0, 0.0, 0.1, 1, 0, 0, 0), size=(1.2, 0.8, 0.5), voxel_size=0.1)
    assert isinstance(grid, VoxelGrid) and grid.distances.shape == (12, 8, 5) and grid.voxel_size == 0.1
    out = np.abs(grid.centers + np.array([0, 0, 0.1])) - 0.5
    expected = np.linalg.norm(np.maximum(out, 0), axis=-1) + np.minimum(out.max(axis=-1), 0)
    np.testing.assert_allclose(grid.distances, expected, atol=1e-6)
    cut = client.field(
        client.put(WORLD), (3, 0, 0.1, 1, 0, 0, 0), size=(1.2, 0.8, 0.5), voxel_size=0.1, max_distance=0.05
    )
    np.testing.assert_allclose(cut.distances, np.minimum(expected, 0.05), atol=1e-6)
    # A field is an obstacle.
    world = World([Obstacle(grid, (0, 0, 0.1, 1, 0, 0, 0))])
    spheres = [[0.55, 0.12, 0.15, 0.0], [0.21, 0.12, 0.15, 0.0]]
    np.testing.assert_allclose(client.query(world, spheres).distance, (0.05, -0.29), atol=0.02)
    mesh = client.field(MESH, size=(0.2, 0.2, 0.2), voxel_size=0.1).distances
    np.testing.assert_allclose(mesh, -0.45, atol=1e-6)


def test_fields_of_nothing_need_a_largest_distance(client):
    with pytest.raises(InvalidArgument, match=r"^max_distance: expected a largest distance, since there is nothing in"):
        client.field(World([]), size=(1, 1, 1), voxel_size=0.5)
    assert (client.field(World([]), size=(1, 1, 1), voxel_size=0.5, max_distance=2.0).distances == 2.0).all()


def test_nothing_is_far_from_everything(client):
    found = client.query(World([]), SPHERES, outputs=("distance", "cost", "obstacle"))
    assert np.isinf(found.distance).all() and not found.cost.any() and (found.obstacle == -1).all()
    assert client.query(WORLD, np.zeros((2, 0, 3, 4))).distance.shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spheres": np.zeros((4, 2))}, r"^spheres: expected shape \[B, H, S, 4\], \[H, S, 4\] or \[S, 4\]"),
        ({"spheres": np.full((1, 4), np.nan)}, "spheres"),
        ({"world": "box"}, "^world: expected World, Mesh or SceneHandle, got 'box'; pass a World"),
        ({"positive": "up"}, '^positive: expected "outside" or "inside", got \'up\''),
        ({"sweep": "no"}, "^sweep: expected True or False, got 'no'"),
        ({"speed_metric": True}, "^time_step_s: expected seconds between time steps for speed_metric, got None"),
        ({"samples": 2.5}, "^samples: expected a whole number from 0 to 256, got 2.5"),
        ({"activation_distance": -1}, "activation_distance"),
        ({"outputs": ("color",)}, "outputs"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_refusals_name_the_argument(client, options, text):
    given = {"world": WORLD, "spheres": SPHERES, **options}
    with pytest.raises(InvalidArgument, match=text):
        client.query(given.pop("world"), given.pop("spheres"), **given)


def test_handles_of_other_scenes_are_refused(client):
    handle = client.put(Spheres([[0, 0, 0]], [[1, 1, 1]], [1]))
    with pytest.raises(InvalidArgument, match=r"^world: expected a handle of a world or a mesh, got one of spheres"):
        client.query(handle, SPHERES)


def test_stored_worlds_cost_no_upload(client, payload_lengths):
    grid = World([Obstacle(VoxelGrid(np.ones((20, 20, 20)), 0.1)), Obstacle(MESH)])
    for world in (client.put(grid), client.put(MESH), MESH, World([Obstacle(MESH)])):
        client.query(world, SPHERES)
    assert payload_lengths == [SPHERES.nbytes] * 4
