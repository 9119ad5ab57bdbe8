"""Meshes, boxes, grids, obstacles and worlds as values: what they take, and how they refuse the rest."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from lumigrad.client import Cuboid, InvalidArgument, Mesh, Obstacle, SceneHandle, VoxelGrid, World
from lumigrad.client.values.rotations import inverse_pose, rotated
from support.meshes import shapes as mesh_shapes

SHAPE = mesh_shapes.tetrahedron()
HALF_TURN = (1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 2.0)


def tetrahedron(name: str | None = None) -> Mesh:
    return Mesh(SHAPE.vertices, SHAPE.faces, name)


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor])
def test_meshes_take_what_holds_numbers(kind):
    mesh = Mesh(kind(SHAPE.vertices.tolist()), kind(SHAPE.faces.tolist()), "part")
    assert mesh.vertices.dtype == np.float32 and mesh.faces.dtype == np.int32
    np.testing.assert_array_equal(mesh.vertices, SHAPE.vertices.astype(np.float32))
    np.testing.assert_array_equal(mesh.faces, SHAPE.faces)
    assert len(mesh) == 4 and mesh.nbytes == 4 * 12 + 4 * 12
    assert repr(mesh) == "Mesh(4 vertices, 4 triangles, 'part')"
    low, high = mesh.bounds
    np.testing.assert_allclose([low, high], [[-0.3] * 3, [0.3] * 3], rtol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        mesh.vertices[0, 0] = 1.0
    with pytest.raises(FrozenInstanceError):
        mesh.name = "another"


def test_vertices_that_no_face_uses_are_not_in_the_bounds():
    mesh = Mesh([*SHAPE.vertices, [9, 9, 9]], SHAPE.faces)
    np.testing.assert_allclose(mesh.bounds[1], 0.3, rtol=1e-6)


@pytest.mark.parametrize(
    ("vertices", "faces", "text"),
    [
        (np.zeros((4, 2)), SHAPE.faces, r"^vertices: expected shape \[V, 3\], got \[4, 2\]"),
        ([[0, 0, 0], [1, 0, np.nan], [np.inf, 1, 0]], [[0, 1, 2]], r"^vertices: expected finite .* in row 1 and 1 oth"),
        (SHAPE.vertices, SHAPE.faces[:0], "^faces: expected at least one triangle, got none"),
        (SHAPE.vertices, [[0, 1, 2, 3]], r"^faces: expected shape \[F, 3\], got \[1, 4\]"),
        (SHAPE.vertices, [[0, 1, 2], [1, 2, 4]], r"^faces: expected .*, 0 to 3, got \[1, 2, 4\] in row 1"),
        (SHAPE.vertices, [[-1, 1, 2]], r"^faces: expected indices .* got \[-1, 1, 2\] in row 0"),
        (SHAPE.vertices, [[0.0, 1.0, 2.0]], "^faces: expected whole numbers .* got dtype float64; pass integers"),
        (SHAPE.vertices, np.array([[0, 1, 2**40]]), "^faces: expected numbers that int32 holds, got 0 to 1099"),
        ("here", SHAPE.faces, "^vertices: expected numbers"),
    ],
)  # fmt: skip
def test_bad_meshes_are_refused(vertices, faces, text):
    with pytest.raises(InvalidArgument, match=text):
        Mesh(vertices, faces)


def test_boxes_and_grids():
    assert repr(Cuboid((0.5, 1, 2))) == "Cuboid(0.5 x 1 x 2 m)"
    grid = VoxelGrid(np.ones((2, 3, 4)), 0.5)
    np.testing.assert_allclose(grid.size, (1.0, 1.5, 2.0))
    np.testing.assert_allclose(grid.centers[0, 0, 0], (-0.25, -0.5, -0.75))
    np.testing.assert_allclose(grid.centers[1, 2, 3], (0.25, 0.5, 0.75))
    assert grid.centers.shape == (2, 3, 4, 3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Cuboid((1, 0, 1)), "^size: expected three lengths > 0"),
        (lambda: Cuboid((1, 1)), r"^size: expected finite numbers of shape \[3\]"),
        (lambda: VoxelGrid(np.ones((2, 2)), 0.1), r"^distances: expected shape \[X, Y, Z\], got \[2, 2\]"),
        (lambda: VoxelGrid(np.full((2, 2, 2), np.inf), 0.1), "^distances: expected finite values"),
        (lambda: VoxelGrid(np.ones((2, 2, 2)), 0.0), "^voxel_size: expected metres > 0, got 0.0"),
        (lambda: VoxelGrid(np.ones((2, 0, 2)), 1.0), "^distances: expected at least one voxel"),
        (lambda: Obstacle(VoxelGrid(np.ones((2, 1, 2)), 1.0)), "^shape: expected 2 voxels or more each way"),
        (lambda: Obstacle("box"), "^shape: expected Mesh, SceneHandle, Cuboid or VoxelGrid, got 'box'; make one"),
        (lambda: Obstacle(SceneHandle("id", 1, "", "world", 1, 1)), "^shape: expected a handle of a mesh, got one of"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), pose=(0, 0)), r"^pose: expected \[7\] x y z qw qx qy qz, \[3\] x y z, or"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), pose=(0, 0, np.nan)), r"^pose: expected finite numbers of shape \[3\]"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), pose=np.eye(4)[::-1]), "^pose: expected the last row 0 0 0 1, got"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), pose=np.diag((2, 2, 2, 1))), "^pose: expected a rotation in the first"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), pose=[0] * 7), r"^pose: expected a quaternion of length 1 after x y z"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), name=""), "^name: expected a name or None, got ''"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), enabled="no"), "^enabled: expected True or False, got 'no'"),
        (lambda: Obstacle(Cuboid((1, 1, 1)), environment=-1), "^environment: expected a whole number from 0"),
        (lambda: Obstacle(tetrahedron(), sign="parity"), '^sign: expected one of "auto", "normals", "rays", "winding"'),
        (lambda: World(3), "^obstacles: expected Iterable, got 3; pass Obstacle"),
        (lambda: World(["box"]), r"^obstacles\[0\]: expected Obstacle, Mesh, .* or VoxelGrid, got 'box'"),
        (lambda: World([Obstacle(tetrahedron(), environment=2)], 2), "^environments: expected at least 3"),
    ],
)  # fmt: skip
def test_bad_obstacles_are_refused(make, text):
    with pytest.raises(InvalidArgument, match=text):
        make()


def test_worlds_name_their_obstacles():
    part = tetrahedron("part")
    world = World([Obstacle(part), Obstacle(part), Obstacle(Cuboid((1, 1, 1)), name="table"), Obstacle(tetrahedron())])
    assert world.names == ("part", "1", "table", "3")
    assert world.environments == 1 and len(world) == 4
    assert world.index("table") == 2
    with pytest.raises(InvalidArgument, match=r"^name: expected one of part, 1, table, 3, got 'chair'"):
        world.index("chair")
    with pytest.raises(
        InvalidArgument, match=r"^obstacles\[1\].name: expected a name that no other obstacle has, got 'a'"
    ):
        World([Obstacle(part, name="a"), Obstacle(part, name="a")])
    # A generated name changes if a given one is the same.
    assert World([Obstacle(part), Obstacle(part, name="part"), Obstacle(part, name="0")]).names == ("0_", "part", "0")


def test_worlds_show_what_they_hold():
    part, box = tetrahedron("part"), Cuboid((1, 1, 1))
    grid = VoxelGrid(np.ones((2, 2, 2)), 0.1)
    assert repr(World([])) == "World(no obstacles)"
    assert repr(World(box)) == "World(1 cuboid)"
    assert repr(World([box, tetrahedron(), tetrahedron()])) == "World(2 meshes, 1 cuboid)"
    assert repr(World([part, grid, Obstacle(box, name="table")])) == (
        "World(1 mesh, 1 cuboid, 1 voxel grid: 'part', '1', 'table')"
    )
    handle = SceneHandle("a" * 32, 1, "", "mesh", 4, 96)
    world = World([Obstacle(handle, enabled=False), Obstacle(box, name="b", environment=2)])
    assert repr(world) == "World(1 mesh, 1 cuboid in 3 environments, 1 disabled: '0', 'b')"
    many = World([part, *[box] * 6])
    assert repr(many) == "World(1 mesh, 6 cuboids: 'part', '1', '2', '3', '4', '5', …)"


def test_worlds_change_by_making_others():
    world = World([Obstacle(tetrahedron("a")), Obstacle(Cuboid((1, 1, 1)), environment=2)])
    assert world.environments == 3
    moved = world.with_poses({"a": HALF_TURN})
    np.testing.assert_array_equal(moved.poses, [HALF_TURN, (0, 0, 0, 1, 0, 0, 0)])
    np.testing.assert_array_equal(world.poses[0], (0, 0, 0, 1, 0, 0, 0))
    assert moved.obstacles[0].shape is world.obstacles[0].shape and moved.environments == 3
    every = world.with_poses(torch.tensor([HALF_TURN, HALF_TURN]))
    np.testing.assert_array_equal(every.poses, [HALF_TURN, HALF_TURN])
    off = world.with_enabled({"1": False})
    assert [obstacle.enabled for obstacle in off.obstacles] == [True, False]
    with pytest.raises(
        InvalidArgument, match=r"^poses: expected shape \[2, 7\], .* one pose for each obstacle, got \[1, 7\]"
    ):
        world.with_poses([HALF_TURN])
    with pytest.raises(InvalidArgument, match=r"^name: expected one of a, 1, got 'b'"):
        world.with_enabled({"b": True})


@pytest.mark.parametrize("shape", [tetrahedron(), Cuboid((1, 2, 3)), VoxelGrid(np.ones((2, 2, 2)), 0.1)], ids=repr)
def test_worlds_take_shapes_that_are_not_moved(shape):
    for world in (World(shape), World([shape]), World(Obstacle(shape))):
        assert world.obstacles[0].shape is shape and len(world) == 1
        np.testing.assert_array_equal(world.poses, [(0, 0, 0, 1, 0, 0, 0)])
    both = World([shape, Obstacle(shape, (1, 2, 3), "moved")])
    assert both.names[1] == "moved" and both.obstacles[0].shape is shape


def test_poses_are_seven_numbers_a_place_or_a_matrix():
    generator = np.random.default_rng(4)
    seven = generator.normal(size=(200, 7))
    seven[:, 3:] /= np.linalg.norm(seven[:, 3:], axis=1, keepdims=True)
    # Half turns, whose quaternions have w = 0.
    seven[:3, 3:] = np.eye(4)[1:]
    points = generator.normal(size=(5, 3))
    matrices = np.tile(np.eye(4), (200, 1, 1))
    for pose, matrix in zip(seven, matrices, strict=True):
        matrix[:3, :3] = rotated(pose[3:], np.eye(3)).T
        matrix[:3, 3] = pose[:3]
        found = Obstacle(Cuboid((1, 1, 1)), matrix.astype(np.float32)).pose
        np.testing.assert_allclose(
            rotated(found[3:], points) + found[:3], points @ matrix[:3, :3].T + pose[:3], atol=1e-5
        )
    world = World([Cuboid((1, 1, 1))] * 200)
    np.testing.assert_allclose(world.with_poses(torch.tensor(matrices)).poses[:, :3], seven[:, :3])
    np.testing.assert_array_equal(world.with_poses(seven[:, :3]).poses[:, 3:], [(1, 0, 0, 0)] * 200)
    np.testing.assert_array_equal(Obstacle(Cuboid((1, 1, 1)), (1, 2, 3)).pose, (1, 2, 3, 1, 0, 0, 0))


def test_an_empty_world_is_one():
    assert len(World([])) == 0 and World([], 4).environments == 4
    assert World([]).poses.shape == (0, 7)


def test_inverse_poses_undo_poses():
    generator = np.random.default_rng(2)
    pose = generator.normal(size=(20, 7))
    back = inverse_pose(pose)
    points = generator.normal(size=(20, 3))
    unit = pose[:, 3:] / np.linalg.norm(pose[:, 3:], axis=1, keepdims=True)
    there = rotated(unit, points) + pose[:, :3]
    np.testing.assert_allclose(rotated(back[:, 3:], there) + back[:, :3], points, atol=1e-12)
