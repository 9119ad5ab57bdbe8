"""Poses: their algebra, and gradients of costs and distances with respect to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lumigrad.kernels.meshes import Cuboid, Grid, Instance, Mesh, Settings, Shape, World, backward, evaluate
from lumigrad.kernels.meshes.pose import placements, pose_gradient, rotations
from support.gaussians.rotation import turned
from support.meshes import shapes as mesh_shapes
from support.meshes.case import MeshShape

Array = np.ndarray


def random_poses(count: int, seed: int = 0) -> Array:
    """Returns random poses [I, 7], with quaternions of any length."""
    return np.random.default_rng(seed).normal(size=(count, 7))


def quaternion(x: float, y: float, z: float) -> tuple[float, ...]:
    """The quaternion of rotations about the three axes, one after the other."""
    result = np.array([1.0, 0.0, 0.0, 0.0])
    for axis, angle in enumerate((x, y, z)):
        w, v = np.cos(angle / 2), np.zeros(3)
        v[axis] = np.sin(angle / 2)
        a, b = result[0], result[1:]
        result = np.concatenate([[w * a - v @ b], w * b + a * v + np.cross(v, b)])
    return tuple(result.tolist())


def test_a_quaternion_stands_for_the_rotation_about_its_axis() -> None:
    for angles in ((0.3, 0.0, 0.0), (0.0, -1.2, 0.0), (0.0, 0.0, 2.9), (0.7, -0.4, 1.9)):
        pose = np.array([[0.0, 0.0, 0.0, *quaternion(*angles)]])
        np.testing.assert_allclose(rotations(pose)[0], turned(*angles), atol=1e-14)


def test_rotations_are_orthonormal_whatever_the_length_of_the_quaternion() -> None:
    poses = random_poses(20)
    found = rotations(poses)
    np.testing.assert_allclose(found @ found.swapaxes(1, 2), np.broadcast_to(np.eye(3), (20, 3, 3)), atol=1e-14)
    np.testing.assert_allclose(np.linalg.det(found), 1.0)
    poses[:, 3:] *= -7.0
    np.testing.assert_allclose(rotations(poses), found, atol=1e-14)


def test_a_placement_undoes_the_pose() -> None:
    poses, points = random_poses(20), np.random.default_rng(1).normal(size=(20, 3))
    world = np.einsum("iab,ib->ia", rotations(poses), points) + poses[:, :3]
    placed = placements(poses)
    back = np.einsum("iab,ib->ia", placed[:, :9].reshape(-1, 3, 3), world) + placed[:, 9:]
    np.testing.assert_allclose(back, points, atol=1e-13)


def test_gradient_of_a_pose_agrees_with_differences() -> None:
    poses, random = random_poses(6), np.random.default_rng(2)
    d_translation, d_rotation = random.normal(size=(6, 3)), random.normal(size=(6, 3, 3))

    def value(at: Array) -> Array:
        turn = np.sum(d_rotation * rotations(at), axis=(1, 2))
        return turn + np.sum(d_translation * at[:, :3], axis=1)

    found = pose_gradient(poses, d_translation, d_rotation)
    for i in range(7):
        step = np.zeros(7)
        step[i] = 1e-6
        np.testing.assert_allclose(found[:, i], (value(poses + step) - value(poses - step)) / 2e-6, atol=1e-7)
    # Scaling a quaternion changes nothing.
    np.testing.assert_allclose(np.sum(found[:, 3:] * poses[:, 3:], axis=1), 0.0, atol=1e-12)


def mesh(shape: MeshShape) -> Mesh:
    return Mesh.build(torch.from_numpy(shape.vertices), torch.from_numpy(shape.faces))


def ball_grid() -> Grid:
    """The grid of a ball of 0.25 m."""
    at = torch.stack(torch.meshgrid(*[torch.linspace(-0.4, 0.4, 17)] * 3, indexing="ij"))
    return Grid(at.norm(dim=0) - 0.25, 0.05)


def far_from_its_origin() -> Mesh:
    shape = mesh_shapes.moved(mesh_shapes.torus(12, 8), (0.2, -0.15, 0.1))
    return mesh(mesh_shapes.scaled(shape, 0.8))


SHAPES: dict[str, Callable[[], Shape]] = {
    "mesh": far_from_its_origin,
    "cuboid": lambda: Cuboid((0.5, 0.3, 0.4)),
    "grid": ball_grid,
}


def scene(*shapes: Shape, **options: Any) -> World:
    """The shapes beside each other, turned, with quaternions that are not normalised; and one that is switched off."""
    poses = random_poses(len(shapes), seed=5)
    poses[:, :3] *= 0.1
    poses[:, 0] += 0.6 * np.arange(len(shapes))
    on = [Instance(shape, pose, **options) for shape, pose in zip(shapes, poses.tolist(), strict=True)]
    return World([on[0], Instance(Cuboid((1.0, 1.0, 1.0)), enabled=False), *on[1:]])


def trajectories(world: World, count: int = 12, seed: int = 7) -> Tensor:
    """Returns spheres [2, 4, S, 4] that pass by the shapes, some of them switched off at one time step."""
    random = np.random.default_rng(seed)
    start, way = random.normal(size=(2, 1, count, 3)) * 0.35, random.normal(size=(2, 1, count, 3)) * 0.12
    centres = start + way * np.arange(4)[None, :, None, None] + random.normal(size=(2, 4, count, 3)) * 0.01
    centres[..., 0] += world.poses[:, 0].mean()
    radii = random.uniform(0.05, 0.2, size=(2, 4, count, 1))
    radii[0, 1, 3] = radii[1, 3, 5] = -1.0
    return torch.from_numpy(np.concatenate([centres, radii], axis=-1).astype(np.float32))


def test_gradients_of_distances_where_nothing_was_found_do_not_matter() -> None:
    world = scene(*(make() for make in SHAPES.values()))
    spheres = trajectories(world, 20)
    first = evaluate(spheres, world, Settings(), outputs=("distance",), retain=True)
    nothing = first.outputs["distance"].isinf()
    assert nothing.any() and first.state is not None
    given, zero = (torch.where(nothing, value, 1.0) for value in (float("nan"), 0.0))
    found, expected = (backward(first.state, {"distance": each}, ("spheres", "poses")) for each in (given, zero))
    for name, gradient in expected.gradients.items():
        assert torch.equal(found.gradients[name], gradient), name


def test_moving_all_of_the_world_is_moving_the_spheres_back() -> None:
    world, settings = scene(*(make() for make in SHAPES.values())), Settings(activation_distance=0.1, sweep=True)
    spheres = trajectories(world)
    state = evaluate(spheres, world, settings, retain=True).state
    assert state is not None
    found = backward(state, {"cost": torch.ones(spheres.shape[:3])}).gradients
    all_poses, all_spheres = found["poses"][:, :3].sum(0), found["spheres"][..., :3].sum((0, 1, 2))
    torch.testing.assert_close(all_poses, -all_spheres, atol=1e-4, rtol=1e-4)


def test_a_world_keeps_what_was_asked_of_the_one_it_comes_from() -> None:
    world = scene(far_from_its_origin(), Cuboid((0.5, 0.3, 0.4)))
    spheres = trajectories(world)
    before = evaluate(spheres, world, Settings(), outputs=("distance",)).outputs["distance"]
    elsewhere = world.with_poses({0: [5.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 2: [9.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]})
    after = evaluate(spheres, elsewhere, Settings(), outputs=("distance",)).outputs["distance"]
    assert (after[after.isfinite()] > before[before.isfinite()]).all()
    again = evaluate(spheres, world, Settings(), outputs=("distance",)).outputs["distance"]
    assert torch.equal(again, before)
    off = elsewhere.with_enabled({0: False, 2: False})
    assert evaluate(spheres, off, Settings(), outputs=("distance",)).outputs["distance"].isinf().all()
    assert off.instances[0].shape is world.instances[0].shape
