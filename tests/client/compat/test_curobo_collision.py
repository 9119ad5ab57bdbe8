"""`WorldMeshCollision`: worlds by name and environment, queries of spheres, and queries of boxes of voxels."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lumigrad.client import Mesh as ClientMesh
from lumigrad.client.compat.curobo import (
    CollisionQueryBuffer,
    Cuboid,
    CuroboArgumentError,
    Mesh,
    Pose,
    TensorDeviceType,
    VoxelGrid,
    WorldCollisionConfig,
    WorldConfig,
    WorldMeshCollision,
)
from support.meshes import shapes as mesh_shapes

CPU = TensorDeviceType(torch.device("cpu"))
BOX = mesh_shapes.box((1.0, 1.0, 1.0))
AT = (2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def part(name: str = "part", size: float = 1.0, pose=None) -> Mesh:
    return Mesh(name, pose, vertices=(BOX.vertices * size).tolist(), faces=BOX.faces.tolist())


def checker(model=None, **options) -> WorldMeshCollision:
    return WorldMeshCollision(
        WorldCollisionConfig(**{"tensor_args": CPU, "max_distance": 0.5, **options}, world_model=model)
    )


def costs(world: WorldMeshCollision, *rows: tuple[float, ...], **options) -> list[float]:
    spheres = torch.tensor([[list(rows)]])
    buffer = CollisionQueryBuffer.initialize_from_shape(spheres.shape, CPU, world.collision_types)
    weight, activation = torch.ones(1), torch.zeros(1)
    return world.get_sphere_distance(spheres, buffer, weight, activation, **options).flatten().tolist()


def test_costs_of_cuboids_and_meshes_are_added():
    model = WorldConfig(
        mesh=[part()], cuboid=[Cuboid("table", AT, dims=(1.0, 1.0, 1.0)), Cuboid("overlap", None, dims=(0.9,) * 3)]
    )
    world = checker(model)
    found = costs(world, (0.44, 0, 0, 0), (1.6, 0, 0, 0), (1.0, 0, 0, 0))
    np.testing.assert_allclose(found, [0.06 + 0.01, 0.1, 0.0], atol=1e-6)
    assert world.get_obstacle_names() == ["table", "overlap", "part"]
    assert world.check_obstacle_exists("part") and not world.check_obstacle_exists("chair")
    assert world.get_mesh_idx("part") == 0
    with pytest.raises(CuroboArgumentError, match=r"^name: expected one of part, got 'table'"):
        world.get_mesh_idx("table")


def test_obstacles_move_and_are_switched():
    world = checker(WorldConfig(mesh=[part()], cuboid=[Cuboid("table", AT, dims=(1.0, 1.0, 1.0))]))
    probes = (0.4, 0, 0, 0), (1.6, 0, 0, 0), (5.4, 0, 0, 0)
    np.testing.assert_allclose(costs(world, *probes), [0.1, 0.1, 0.0], atol=1e-6)
    world.update_obstacle_pose("part", Pose(torch.tensor([[5.0, 0, 0]]), torch.tensor([[1.0, 0, 0, 0]])))
    world.enable_obstacle("table", False)
    np.testing.assert_allclose(costs(world, *probes), [0.0, 0.0, 0.1], atol=1e-6)
    world.enable_obstacle("table")
    world.update_mesh_pose(obj_w_pose=Pose.from_list([0.0, 0, 0, 1, 0, 0, 0]), env_obj_idx=0)
    np.testing.assert_allclose(costs(world, *probes), [0.1, 0.1, 0.0], atol=1e-6)
    turn = math.sqrt(0.5)
    world.update_mesh_pose(obj_w_pose=Pose(torch.tensor([0.0, -5.0, 0.0]), [turn, 0, 0, turn]), name="part")
    np.testing.assert_allclose(costs(world, *probes), [0.0, 0.1, 0.1], atol=1e-6)
    for call, text in (
        (
            lambda: world.update_obstacle_pose("chair", Pose([0, 0, 0])),
            "^name: expected one of table, part, got 'chair'",
        ),
        (lambda: world.update_obstacle_pose("part", Pose([0, 0])), "^w_obj_pose: expected one pose: .* got 6 numbers"),
        (lambda: world.update_obstacle_pose("part", [0] * 7), "^pose: expected a quaternion of length 1"),
        (lambda: world.enable_obstacle("part", env_idx=1), "^env_idx: expected 0 to 0, got 1"),
        (lambda: world.update_mesh_pose(name="part"), "^w_obj_pose: expected either"),
        (lambda: world.update_mesh_pose(Pose([0, 0, 0]), env_obj_idx=1), "^env_obj_idx: .* one of 1 meshes, got 1"),
    ):
        with pytest.raises(CuroboArgumentError, match=text):
            call()


def test_costs_of_obstacles_that_are_not_summed_are_refused():
    world = checker(WorldConfig(mesh=[part()], cuboid=[Cuboid("table", AT, dims=(1.0, 1.0, 1.0))]))
    spheres = torch.zeros(1, 1, 1, 4)
    buffer = CollisionQueryBuffer.initialize_from_shape(spheres.shape, CPU, world.collision_types)
    swept = {"speed_dt": 0.1, "sweep_steps": 4}
    for call, options in (
        (world.get_sphere_distance, {}),
        (world.get_sphere_collision, {}),
        (world.get_swept_sphere_distance, swept),
        (world.get_swept_sphere_collision, swept),
    ):
        call(spheres, buffer, 1.0, 0.0, sum_collisions=True, **options)
        with pytest.raises(CuroboArgumentError, match=r"^sum_collisions: expected True, got False; .* reduction="):
            call(spheres, buffer, 1.0, 0.0, sum_collisions=False, **options)


def test_changed_geometry_under_an_old_name_is_taken():
    world = checker(WorldConfig(mesh=[part(size=1.0)]))
    assert costs(world, (0.4, 0, 0, 0))[0] == pytest.approx(0.1, abs=1e-6)
    world.add_mesh(part(size=0.9))
    assert costs(world, (0.4, 0, 0, 0))[0] == pytest.approx(0.05, abs=1e-6)
    assert world.get_obstacle_names() == ["part"]
    world.load_collision_model(WorldConfig(mesh=[part(size=0.5)]))
    assert costs(world, (0.4, 0, 0, 0)) == [0.0]
    world.add_mesh(part("another"))
    assert world.get_obstacle_names() == ["part", "another"]
    world.clear_cache()
    assert world.get_obstacle_names() == [] and costs(world, (0.4, 0, 0, 0)) == [0.0]


def test_batches_of_worlds():
    world = checker([WorldConfig(mesh=[part()]), WorldConfig(cuboid=[Cuboid("table", AT, dims=(1, 1, 1))]), None])
    assert world.n_envs == 3
    spheres = torch.tensor([[0.4, 0, 0, 0], [1.6, 0, 0, 0]]).expand(4, 1, 2, 4)
    buffer = CollisionQueryBuffer()
    rows = torch.tensor([1, 0, 2, 0], dtype=torch.int32)
    found = world.get_sphere_distance(spheres, buffer, torch.ones(1), torch.zeros(1), env_query_idx=rows)
    np.testing.assert_allclose(found[:, 0], [[0, 0.1], [0.1, 0], [0, 0], [0.1, 0]], atol=1e-6)
    world.enable_obstacle("table", False, env_idx=1)
    assert not world.get_sphere_distance(spheres, buffer, 1.0, 0.0, env_query_idx=rows)[0].any()
    world.load_batch_collision_model([WorldConfig(), WorldConfig(mesh=[part()])])
    assert world.n_envs == 3 and world.get_obstacle_names(1) == ["part"] and world.get_obstacle_names(0) == []
    world.create_collision_cache(n_envs=5)
    assert world.n_envs == 5


def test_gradients_and_buffers():
    world = checker(WorldConfig(mesh=[part()], cuboid=[Cuboid("overlap", None, dims=(0.9,) * 3)]))
    spheres = torch.tensor([[[[0.44, 0, 0, 0.1], [3, 0, 0, 0.1]]]]).requires_grad_()
    buffer = CollisionQueryBuffer()
    assert buffer.get_gradient_buffer() is None
    cost = world.get_sphere_distance(spheres, buffer, torch.tensor([2.0]), torch.tensor([0.02]), return_loss=True)
    (0.5 * cost).sum().backward()
    np.testing.assert_allclose(spheres.grad[0, 0], [[-2, 0, 0, 0], [0, 0, 0, 0]], atol=1e-5)
    np.testing.assert_allclose(buffer.get_gradient_buffer()[0, 0, 0], [-4, 0, 0, 0], atol=1e-5)
    assert cost.data_ptr() == buffer.mesh_collision_buffer.distance_buffer.data_ptr()
    # Spheres of another shape get a new buffer; the same shape keeps its own.
    kept = buffer.mesh_collision_buffer
    world.get_sphere_collision(spheres[:, :, :1], buffer, 1.0, 0.0)
    assert buffer.mesh_collision_buffer is not kept
    kept = buffer.mesh_collision_buffer
    world.get_sphere_collision(spheres[:, :, 1:], buffer, 1.0, 0.0)
    assert buffer.mesh_collision_buffer is kept


def test_costs_in_one_buffer_have_gradients_of_their_own():
    world, buffer = checker(WorldConfig(mesh=[part()])), CollisionQueryBuffer()
    first, second = (torch.tensor([[[[x, 0, 0, 0.1]]]]).requires_grad_() for x in (0.44, -0.44))
    ways = [world.get_sphere_distance(spheres, buffer, 1.0, 0.0) for spheres in (first, second)]
    assert not buffer.mesh_collision_buffer.distance_buffer.requires_grad
    ways[0].sum().backward()
    assert first.grad[0, 0, 0, 0] == -1 and second.grad is None


def test_swept_costs():
    world = checker(WorldConfig(cuboid=[Cuboid("wall", None, dims=(0.3, 1, 1))]))
    spheres = torch.tensor([[[[-0.45, 0, 0, 0.1]], [[0.45, 0, 0, 0.1]]]])
    buffer = CollisionQueryBuffer()
    assert not world.get_sphere_distance(spheres, buffer, 1.0, 0.0).any()
    arguments = spheres, buffer, torch.ones(1), torch.zeros(1), torch.tensor([0.1]), 4
    found = world.get_swept_sphere_distance(*arguments).clone()
    assert found.any()
    assert torch.equal(world.get_swept_sphere_collision(*arguments, enable_speed_metric=True), found)


def test_fields_of_a_box():
    world = checker(WorldConfig(mesh=[part(pose=AT)]), max_distance=0.3)
    box = Cuboid("box", (2.0, 0.1, 0.0, 1, 0, 0, 0), dims=(1.6, 0.8, 0.4))
    grid = world.get_esdf_in_bounding_box(box, voxel_size=0.1)
    assert isinstance(grid, VoxelGrid) and grid.shape == (16, 8, 4)
    assert grid.feature_tensor.shape == (16 * 8 * 4,)
    centres = grid.xyzr_tensor[:, :3].double() - torch.tensor([2.0, 0.0, 0.0])
    assert centres[0].tolist() == pytest.approx([-0.75, -0.25, -0.15])
    out = centres.abs() - 0.5
    outside, inside = out.clamp_min(0).norm(dim=1), out.max(dim=1).values.clamp_max(0)
    expected = -(outside + inside)
    # Points farther from the surface than the search radius read as free, even inside, as in the original.
    expected[expected.abs() >= 0.3] = -0.3
    np.testing.assert_allclose(grid.feature_tensor, expected, atol=1e-6)
    half = world.get_esdf_in_bounding_box(box, voxel_size=0.1, dtype=torch.float16)
    assert half.feature_tensor.dtype == torch.float16


def test_occupied_voxels_of_a_box():
    world = checker(WorldConfig(cuboid=[Cuboid("table", AT, dims=(0.4, 0.4, 0.4))]))
    box = Cuboid("box", AT, dims=(0.8, 0.8, 0.8))
    occupancy = world.get_occupancy_in_bounding_box(box, 0.1)
    assert occupancy.shape == (8, 8, 8) and int((occupancy.feature_tensor > 0).sum()) == 4**3
    voxels = world.get_voxels_in_bounding_box(box, 0.1)
    assert voxels.shape == (64, 4)
    low, high = voxels[:, :3].min(dim=0).values, voxels[:, :3].max(dim=0).values
    np.testing.assert_allclose([low, high], [[1.85, -0.15, -0.15], [2.15, 0.15, 0.15]], atol=1e-6)
    np.testing.assert_allclose([voxels[:, 3].min(), voxels[:, 3].max()], [0.05, 0.15], atol=1e-6)


def test_a_field_is_an_obstacle(client):
    source = checker(WorldConfig(cuboid=[Cuboid("table", None, dims=(0.6, 0.6, 0.6))]), max_distance=2.0)
    grid = source.get_esdf_in_bounding_box(Cuboid("box", None, dims=(1.6, 1.6, 1.6)), 0.05)
    options = {"dims": grid.dims, "voxel_size": grid.voxel_size, "feature_tensor": grid.feature_tensor}
    world = checker(WorldConfig(voxel=[VoxelGrid("grid", AT, **options)]))
    found = costs(world, (1.75, 0, 0, 0.1), (2.4, 0, 0, 0.05), (9.0, 0, 0, 0.1))
    np.testing.assert_allclose(found, [0.05 + 0.1, 0.0, 0.0], atol=0.06)
    assert found[0] > 0.05 and found[1:] == [0.0, 0.0]
    # A long field is stored on the worker; the field before the move is not kept there.
    stored = {handle.scene_id for handle in client.list()}
    world.update_obstacle_pose("grid", [9.0, *AT[1:]])
    assert costs(world, (1.75, 0, 0, 0.1), (9.0, 0, 0, 0.1))[0] == 0
    now = {handle.scene_id for handle in client.list()}
    assert len(now - stored) == len(stored - now) == 1


def ball(radius: float, *, inward: bool = True) -> torch.Tensor:
    """A ball's distances on a grid of 1.6 m with voxels of 0.1 m."""
    axis = 0.1 * (torch.arange(16) - 7.5)
    distances = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij")).norm(dim=0) - radius
    return -distances if inward else distances


def test_changes_of_a_grid_are_noticed(client):
    tensor = ball(0.3).flatten()
    grid = VoxelGrid("grid", dims=(1.6,) * 3, voxel_size=0.1, feature_tensor=tensor)
    world = checker(WorldConfig(voxel=[grid]))
    assert costs(world, (0.45, 0.0, 0.0, 0.05)) == [0.0]
    stored = {handle.scene_id for handle in client.list()}
    assert costs(world, (0.45, 0.0, 0.0, 0.05)) == [0.0]
    assert {handle.scene_id for handle in client.list()} == stored, "nothing was sent again"
    tensor += 0.2
    assert costs(world, (0.45, 0.0, 0.0, 0.05))[0] == pytest.approx(0.1, abs=0.05)
    assert len({handle.scene_id for handle in client.list()} ^ stored) == 2, "the former grid is not kept"
    world.update_obstacle_pose("grid", AT)
    tensor -= 0.2
    assert costs(world, (0.45, 0.0, 0.0, 0.05), (2.45, 0.0, 0.0, 0.05)) == [0.0, 0.0]
    grid.feature_tensor = ball(0.5)
    assert costs(world, (0.45, 0.0, 0.0, 0.05))[0] == 0.0, "it stays where it was moved"
    assert costs(world, (2.45, 0.0, 0.0, 0.05))[0] == pytest.approx(0.1, abs=0.05)
    world.enable_obstacle("grid", False)
    grid.feature_tensor.add_(1.0)
    assert costs(world, (2.45, 0.0, 0.0, 0.05)) == [0.0]


class NewerGrid:
    """A voxel grid like cuRobo 0.8's."""

    __module__ = "curobo._src.geom.types"

    def __init__(self) -> None:
        self.name, self.pose, self.dims, self.voxel_size = "grid", None, (1.6,) * 3, 0.1
        self.feature_tensor = ball(0.3, inward=False)


def test_grids_of_a_newer_release_have_to_say_their_sign():
    grid = NewerGrid()
    with pytest.raises(CuroboArgumentError, match=r"^positive_inside: expected True or False for the grid"):
        checker(WorldConfig(voxel=[grid]))
    grid.positive_inside = False
    newer = costs(checker(WorldConfig(voxel=[grid])), (0.2, 0.0, 0.0, 0.05), (0.5, 0.0, 0.0, 0.05))
    older = checker(WorldConfig(voxel=[VoxelGrid("grid", dims=(1.6,) * 3, voxel_size=0.1, feature_tensor=ball(0.3))]))
    assert newer == costs(older, (0.2, 0.0, 0.0, 0.05), (0.5, 0.0, 0.0, 0.05))
    assert newer[0] > 0.1 and newer[1] == 0.0


def test_faces_may_be_flat():
    flat = checker(WorldConfig(mesh=[Mesh("part", vertices=BOX.vertices, faces=BOX.faces.ravel().tolist())]))
    assert costs(flat, (0.6, 0.0, 0.0, 0.2)) == costs(checker(WorldConfig(mesh=[part()])), (0.6, 0.0, 0.0, 0.2))


def test_models_come_from_dictionaries_files_and_any_objects(tmp_path: Path):
    ClientMesh(BOX.vertices * 1000, BOX.faces).save(tmp_path / "part.stl")
    data = {
        "cuboid": {"table": {"dims": [1, 1, 1], "pose": list(AT), "color": [1, 0, 0, 1]}},
        "mesh": {
            "part": {"file_path": str(tmp_path / "part.stl"), "scale": [0.001] * 3, "pose": [0, 0, 0, 1, 0, 0, 0]}
        },
    }
    world = checker(WorldConfig.from_dict(data))
    np.testing.assert_allclose(costs(world, (0.4, 0, 0, 0), (1.6, 0, 0, 0)), [0.1, 0.1], atol=1e-6)
    loose = SimpleNamespace(
        mesh=[SimpleNamespace(name="part", vertices=BOX.vertices, faces=BOX.faces, pose=[*AT])], cuboid=None
    )
    assert costs(checker(loose), (1.6, 0, 0, 0))[0] == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: checker(WorldConfig(sphere=[1])), r"^world_model.sphere: expected cuboids, meshes and voxel"),
        (lambda: checker(WorldConfig(mesh=[Mesh("part")])), "^vertices: expected vertices and faces, or file_path, of"),
        (
            lambda: checker(
                WorldConfig(voxel=[VoxelGrid("grid", dims=(1, 1, 1), voxel_size=0.5, feature_tensor=torch.zeros(9))])
            ),
            r"^feature_tensor: expected 2 x 2 x 2 values, got shape \[9\]",
        ),
        (lambda: WorldConfig.from_dict({"cone": {}}), "^data: expected some of sphere, cuboid, capsule, .* got cone"),
        (lambda: WorldConfig.from_dict({"cuboid": {"a": {"size": 1}}}), r"^data\['a'\]: expected some of color, dims"),
        (lambda: checker(max_distance="far"), "^max_distance: expected a number"),
    ],
)  # fmt: skip
def test_bad_models_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()
