"""cuRobo's world API: shapes and their meshes, worlds and their files, and changes of a checker's obstacles by kind."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from lumigrad.client.compat import curobo

CPU = curobo.TensorDeviceType(torch.device("cpu"))
TURNED = [0.2, -0.1, 0.3, np.cos(0.4), 0.0, np.sin(0.4), 0.0]
FACES = [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]
TETRAHEDRON = {"vertices": [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], "faces": FACES}


def checker(model=None, **options) -> curobo.WorldMeshCollision:
    config = curobo.WorldCollisionConfig(**{"tensor_args": CPU, "max_distance": 2.0, **options}, world_model=model)
    return curobo.create_collision_checker(config)


def signed(world: curobo.WorldMeshCollision, points: np.ndarray) -> np.ndarray:
    """Signed distances of points, positive inside."""
    spheres = torch.zeros(1, 1, len(points), 4)
    spheres[0, 0, :, :3] = torch.from_numpy(points)
    buffer = curobo.CollisionQueryBuffer.initialize_from_shape(spheres.shape, CPU, world.collision_types)
    return world.get_sphere_distance(spheres, buffer, 1.0, 0.0, compute_esdf=True)[0, 0].numpy()


def capsule_distance(points: np.ndarray, base: np.ndarray, tip: np.ndarray, radius: float) -> np.ndarray:
    along = np.clip((points - base) @ (tip - base) / ((tip - base) @ (tip - base)), 0, 1)
    return np.linalg.norm(points - base - along[:, None] * (tip - base), axis=1) - radius


def box_distance(points: np.ndarray, half: np.ndarray) -> np.ndarray:
    away = np.abs(points) - half
    return np.linalg.norm(np.maximum(away, 0), axis=1) + np.minimum(away.max(axis=1), 0)


def cylinder_distance(points: np.ndarray, radius: float, height: float) -> np.ndarray:
    flat = np.stack([np.linalg.norm(points[:, :2], axis=1), points[:, 2]], 1)
    return box_distance(flat, np.array([radius, height / 2]))


BASE, TIP = np.array([0.1, 0.0, -0.2]), np.array([0.3, 0.2, 0.3])
SHAPES = {
    "sphere": (curobo.Sphere("it", TURNED, radius=0.4), lambda p: np.linalg.norm(p, axis=1) - 0.4),
    "capsule": (
        curobo.Capsule("it", TURNED, radius=0.2, base=BASE.tolist(), tip=TIP.tolist()),
        lambda p: capsule_distance(p, BASE, TIP, 0.2),
    ),
    "cylinder": (curobo.Cylinder("it", TURNED, radius=0.3, height=0.8), lambda p: cylinder_distance(p, 0.3, 0.8)),
    "cuboid": (curobo.Cuboid("it", TURNED, dims=[0.4, 0.6, 0.8]), lambda p: box_distance(p, np.array([0.2, 0.3, 0.4]))),
}


def to_world(points: np.ndarray) -> np.ndarray:
    angle = 0.8
    turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    return points @ turn.T + TURNED[:3]


@pytest.mark.parametrize("kind", SHAPES)
def test_meshes_of_shapes_have_their_distances(kind: str) -> None:
    shape, reference = SHAPES[kind]
    points = np.random.default_rng(2).uniform(-0.7, 0.7, (400, 3))
    world = checker(curobo.WorldConfig(**{kind: [shape]}).get_mesh_world())
    # Facets lie inside the round surfaces, by at most 0.3 % of a radius.
    np.testing.assert_allclose(signed(world, to_world(points)), -reference(points), atol=2e-3)
    support = curobo.WorldConfig.create_collision_support_world(curobo.WorldConfig(**{kind: [shape]}))
    assert (len(support.cuboid), len(support.mesh)) == ((1, 0) if kind == "cuboid" else (0, 1))
    np.testing.assert_allclose(signed(checker(support), to_world(points)), -reference(points), atol=2e-3)


def test_boxes_are_those_around_the_shapes() -> None:
    boxes = curobo.WorldConfig(**{kind: [shape] for kind, (shape, _) in SHAPES.items()}).get_obb_world().cuboid
    dims = [box.dims for box in boxes]
    np.testing.assert_allclose(dims, [[0.8] * 3, [0.4, 0.6, 0.8], [0.6, 0.6, 0.9], [0.6, 0.6, 0.8]], atol=2e-3)
    assert all(isinstance(box, curobo.Cuboid) for box in boxes)
    middle = to_world((BASE + TIP)[None] / 2)[0]
    np.testing.assert_allclose(boxes[2].pose[:3], middle, atol=1e-3)


def test_arguments_have_the_order_of_the_original() -> None:
    common = ["name", "pose", "scale", "color", "texture_id", "texture", "material", "tensor_args"]
    for kind, own in {
        curobo.Cuboid: ["dims"],
        curobo.Sphere: ["radius", "position"],
        curobo.Capsule: ["radius", "base", "tip"],
        curobo.Cylinder: ["radius", "height"],
        curobo.Mesh: ["file_path", "file_string", "urdf_path", "vertices", "faces"],
        curobo.VoxelGrid: ["dims", "voxel_size", "feature_tensor", "xyzr_tensor", "feature_dtype"],
    }.items():
        assert issubclass(kind, curobo.Obstacle)
        assert list(inspect.signature(kind).parameters)[: len(common) + len(own)] == [*common, *own]
    assert curobo.Sphere("ball", position=[1, 2, 3], radius=1.0).pose == [1, 2, 3, 1, 0, 0, 0]
    assert CPU.as_torch_dict() == {"device": torch.device("cpu"), "dtype": torch.float32}
    assert CPU.cpu() == CPU
    assert curobo.WorldPrimitiveCollision is curobo.WorldVoxelCollision is curobo.WorldMeshCollision


def test_dimensions_in_the_place_of_scale_are_not_taken_for_such() -> None:
    with pytest.raises(curobo.CuroboArgumentError, match=r"^dims: expected three lengths > 0, got \[0.0, 0.0, 0.0\]"):
        checker(curobo.WorldConfig(cuboid=[curobo.Cuboid("table", None, (1.0, 1.0, 1.0))]))


def test_configurations_come_from_dictionaries() -> None:
    data = {
        "cuboid": {"table": {"dims": [1.0, 1.0, 0.2], "pose": [0, 0, -0.1, 1, 0, 0, 0], "color": [1, 0, 0, 1]}},
        "sphere": {"ball": {"radius": 0.1, "pose": [0, 0, 1, 1, 0, 0, 0]}},
        "capsule": {"arm": {"radius": 0.1, "base": [0, 0, 0], "tip": [0, 0, 1]}},
        "cylinder": {"can": {"radius": 0.1, "height": 0.2}},
    }
    options = {"checker_type": "MESH", "max_distance": 0.3, "n_envs": 2, "cache": {"obb": 5}, "unknown": 1}
    world = curobo.WorldConfig.from_dict(data)
    assert [each.name for each in world.objects] == ["ball", "table", "arm", "can"]
    support = curobo.WorldConfig.create_collision_support_world(world)
    config = curobo.WorldCollisionConfig.load_from_dict(options, support, CPU)
    assert (config.checker_type, config.max_distance, config.n_envs) == (curobo.CollisionCheckerType.MESH, 0.3, 2)
    made = curobo.WorldMeshCollision(config)
    assert made.world_model is support and made.get_obstacle_names() == ["table", "ball", "arm", "can"]
    again = curobo.WorldCollisionConfig.load_from_dict(options, [{"cuboid": data["cuboid"]}, {}], CPU)
    assert [len(model.cuboid) for model in again.world_model] == [1, 0]
    with pytest.raises(curobo.CuroboArgumentError, match=r"world_model.sphere: .*create_collision_support_world"):
        checker(world)


def test_worlds_are_changed_and_copied() -> None:
    world = curobo.WorldConfig(cuboid=[curobo.Cuboid("table", dims=[1.0] * 3)])
    copy = world.clone()
    copy.add_obstacle(curobo.Mesh("wedge", **TETRAHEDRON))
    copy.get_obstacle("table").dims[0] = 2.0
    assert (world.get_cache_dict(), copy.get_cache_dict()) == ({"obb": 1, "mesh": 0}, {"obb": 1, "mesh": 1})
    assert world.get_obstacle("table").dims == [1.0] * 3 and world.get_obstacle("wedge") is None
    merged = copy.get_mesh_world(merge_meshes=True).mesh
    assert len(merged) == 1 and merged[0].arrays()[1].shape == (12 + 4, 3)
    copy.remove_obstacle("table")
    assert [each.name for each in copy.objects] == ["wedge"]
    with pytest.raises(curobo.CuroboArgumentError, match=r"^obstacle: expected Sphere, Cuboid, .* got str"):
        copy.add_obstacle("table")


def test_cuboids_and_meshes_change_by_name_and_number() -> None:
    world = checker(curobo.WorldConfig(mesh=[curobo.Mesh("wedge", [0, 0, 5, 1, 0, 0, 0], **TETRAHEDRON)]))
    world.add_obb(curobo.Cuboid("table", [0.0, 0, 0, 1, 0, 0, 0], dims=[1.0, 1.0, 1.0]))
    world.add_obb_from_raw("box", torch.tensor([0.5, 0.5, 0.5]), 0, obj_w_pose=curobo.Pose([-3.0, 0, 0]))
    probes = np.array([[0.0, 0, 0], [3.0, 0, 0], [0.1, 0.1, 5.1]], np.float32)
    np.testing.assert_allclose(signed(world, probes), [0.5, 0.25, 0.1], atol=1e-6)
    assert (world.get_obb_idx("box"), world.get_mesh_idx("wedge")) == (1, 0)
    world.update_obb_dims(torch.tensor([[0.2, 0.8, 0.8]]), env_obj_idx=1)
    world.update_obb_pose(curobo.Pose([0.0, 0.3, 0.0]), name="table")
    np.testing.assert_allclose(signed(world, probes), [0.2, 0.1, 0.1], atol=1e-6)
    world.enable_obb(False, "box")
    world.enable_mesh(False, env_mesh_idx=0)
    assert (signed(world, probes)[1:] < -0.5).all()
    world.enable_obb(True, env_obj_idx=1)
    np.testing.assert_allclose(signed(world, probes)[1], 0.1, atol=1e-6)
    for call, text in (
        (lambda: world.get_obb_idx("wedge"), "^name: expected one of table, box, got 'wedge'"),
        (lambda: world.update_obb_pose(name="box"), "^w_obj_pose: expected either"),
        (lambda: world.enable_mesh(True, "box"), "^name: expected one of wedge, got 'box'"),
        (lambda: world.enable_obb(True, env_obj_idx=2), "^env_obj_idx: expected a name, or .* one of 2 cuboids, got 2"),
    ):
        with pytest.raises(curobo.CuroboArgumentError, match=text):
            call()


def test_voxel_grids_are_filled_later_and_copied() -> None:
    empty = curobo.VoxelGrid("grid", [1.0, 0, 0, 1, 0, 0, 0], dims=[0.8, 0.8, 0.8], voxel_size=0.1)
    world = checker(curobo.WorldConfig(voxel=[empty]))
    # Centres of voxels.
    probes = np.array([[1.05, 0.05, 0.05], [1.15, -0.05, 0.05]], np.float32)
    assert (signed(world, probes) < -1).all()
    centres = empty.create_xyzr_tensor(tensor_args=CPU)
    np.testing.assert_allclose(centres[[0, -1]], [[-0.35] * 3 + [0.05], [0.35] * 3 + [0.05]], atol=1e-6)
    placed = empty.create_xyzr_tensor(True, CPU)
    np.testing.assert_allclose(placed[:, :3], centres[:, :3] + torch.tensor([1.0, 0, 0]), atol=1e-6)
    filled = empty.clone()
    filled.feature_tensor = 0.2 - centres[:, :3].norm(dim=1)
    world.update_voxel_data(filled)
    found = signed(world, probes)
    np.testing.assert_allclose(found, 0.2 - np.linalg.norm(probes - [1, 0, 0], axis=1), atol=1e-5)
    held = world.get_voxel_grid("grid")
    assert held.feature_tensor is filled.feature_tensor and held.pose == empty.pose and held.dims == [0.8] * 3
    copy = held.clone()
    copy.feature_tensor += 1.0
    np.testing.assert_array_equal(signed(world, probes), found)
    world.clear_voxelization_cache()
    with pytest.raises(curobo.CuroboArgumentError, match=r"^name: expected one of grid, got 'other'"):
        world.update_voxel_data(curobo.VoxelGrid("other"))


def test_point_clouds_become_the_surface_of_their_voxels() -> None:
    points = np.random.default_rng(0).uniform(0.0, 0.4, (4000, 3))
    mesh = curobo.Mesh.from_pointcloud(points, pitch=0.1, pose=[1.0, 0, 0, 1, 0, 0, 0])
    inside = np.random.default_rng(1).uniform(-0.2, 0.6, (200, 3))
    expected = box_distance(inside - 0.2, np.full(3, 0.2))
    np.testing.assert_allclose(
        signed(checker(curobo.WorldConfig(mesh=[mesh])), inside + np.array([1.0, 0, 0])), -expected, atol=1e-5
    )
    far = curobo.Mesh.from_pointcloud(points, pitch=0.1, filter_close_points=0.3).arrays()[0]
    assert len(far) < len(mesh.arrays()[0]) * 2 and np.linalg.norm(far, axis=1).min() > 0.1
    for cloud, text in ((np.zeros((3, 2)), "^pointcloud: expected finite points"), (np.zeros((0, 3)), "at least one")):
        with pytest.raises(curobo.CuroboArgumentError, match=text):
            curobo.Mesh.from_pointcloud(cloud)


def test_buffers_are_copied() -> None:
    buffer = curobo.CollisionQueryBuffer.initialize_from_shape((1, 1, 2, 4), CPU)
    copy = buffer.clone()
    copy.mesh_collision_buffer.distance_buffer += 1.0
    assert not buffer.mesh_collision_buffer.distance_buffer.any()
    assert curobo.CollisionQueryBuffer().clone().get_gradient_buffer() is None
