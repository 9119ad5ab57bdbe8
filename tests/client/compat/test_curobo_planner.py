"""A planner written for cuRobo, in which only the imports were changed."""

from __future__ import annotations

import torch

from lumigrad.client.compat.curobo import (
    CollisionCheckerType,
    CollisionQueryBuffer,
    Cuboid,
    Mesh,
    Pose,
    TensorDeviceType,
    WorldCollisionConfig,
    WorldConfig,
    WorldMeshCollision,
)
from support.meshes import shapes as mesh_shapes


class SweptCollisionCost:
    """A cost term with buffers that are kept between calls."""

    def __init__(self, world: WorldMeshCollision, tensor_args: TensorDeviceType, weight: float) -> None:
        self.world = world
        self.tensor_args = tensor_args
        self.weight = tensor_args.to_device([weight])
        self.activation_distance = tensor_args.to_device([0.025])
        self.speed_dt = tensor_args.to_device([0.1])
        self.buffer = CollisionQueryBuffer()

    def forward(self, spheres: torch.Tensor) -> torch.Tensor:
        self.buffer.update_buffer_shape(spheres.shape, self.tensor_args, self.world.collision_types)
        settings = (self.weight, self.activation_distance, self.speed_dt)
        distance = self.world.get_swept_sphere_distance(
            spheres, self.buffer, *settings, sweep_steps=4, enable_speed_metric=True
        )
        return distance.sum(dim=-1)


def world_of(tensor_args: TensorDeviceType) -> WorldMeshCollision:
    bumpy = mesh_shapes.torus(24, 12)
    table = Cuboid(name="table", pose=[0.0, 0.0, -0.5, 1, 0, 0, 0], dims=[3.0, 3.0, 0.2])
    torus = Mesh(name="torus", pose=[0.0, 0.0, 0.0, 1, 0, 0, 0], vertices=bumpy.vertices, faces=bumpy.faces)
    model, cache = WorldConfig(cuboid=[table], mesh=[torus]), {"mesh": 4, "obb": 4}
    kind = CollisionCheckerType.MESH
    config = WorldCollisionConfig(tensor_args, world_model=model, cache=cache, checker_type=kind, max_distance=0.3)
    return WorldMeshCollision(config)


def trajectories(tensor_args: TensorDeviceType) -> torch.Tensor:
    """(2, 12, 3): two paths whose straight lines run into the torus."""
    share = torch.linspace(0, 1, 12)[:, None]
    ends = torch.tensor([[[-0.9, 0.05, 0.15], [0.9, -0.05, 0.1]], [[-0.05, -0.9, 0.1], [0.05, 0.9, 0.15]]])
    return tensor_args.to_device(ends[:, :1] * (1 - share) + ends[:, 1:] * share)


def test_a_trajectory_is_pushed_out_of_collision():
    torch.manual_seed(0)
    tensor_args = TensorDeviceType(torch.device("cpu"))
    world = world_of(tensor_args)
    term = SweptCollisionCost(world, tensor_args, weight=50.0)
    start = trajectories(tensor_args)
    offsets = torch.tensor([[0.0, 0.0, 0.0], [0.05, 0.05, 0.0], [-0.05, 0.05, 0.0]])
    radii = torch.full((2, 12, 3, 1), 0.06)
    inner = start[:, 1:-1].clone().requires_grad_()
    optimizer = torch.optim.Adam([inner], lr=0.02)

    def spheres() -> torch.Tensor:
        way = torch.cat([start[:, :1], inner, start[:, -1:]], dim=1)
        return torch.cat([way[:, :, None] + offsets, radii], dim=-1)

    def penetration() -> float:
        buffer = CollisionQueryBuffer.initialize_from_shape((2, 12, 3, 4), tensor_args, world.collision_types)
        weight, no_activation = tensor_args.to_device([1.0]), tensor_args.to_device([0.0])
        with torch.no_grad():
            return world.get_sphere_distance(spheres(), buffer, weight, no_activation).max().item()

    before = penetration()
    for _ in range(60):
        optimizer.zero_grad()
        way = torch.cat([start[:, :1], inner, start[:, -1:]], dim=1)
        smoothness = (way[:, 2:] - 2 * way[:, 1:-1] + way[:, :-2]).square().sum()
        loss = term.forward(spheres()).sum() + smoothness
        loss.backward()
        optimizer.step()
    assert before > 0.03
    assert penetration() < 1e-3
    # Once the obstacle is away, the same buffers have no cost.
    world.update_obstacle_pose("torus", Pose(position=[[0.0, 0.0, 9.0]], quaternion=[[1.0, 0.0, 0.0, 0.0]]))
    inner.data.copy_(start[:, 1:-1])
    inner.grad = None
    cost = term.forward(spheres()).sum()
    cost.backward()
    assert cost.item() == 0 and not inner.grad.any()
