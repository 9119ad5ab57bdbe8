"""cuRobo 0.7's worlds and collision costs of spheres (`curobo.geom`), computed on a worker."""

from lumigrad.client.compat.curobo.buffers import CollisionBuffer, CollisionQueryBuffer
from lumigrad.client.compat.curobo.collision import (
    WorldCollisionConfig,
    WorldMeshCollision,
    WorldPrimitiveCollision,
    WorldVoxelCollision,
    create_collision_checker,
)
from lumigrad.client.compat.curobo.errors import CuroboArgumentError
from lumigrad.client.compat.curobo.functions import SdfMeshWarpPy, SweptSdfMeshWarpPy
from lumigrad.client.compat.curobo.geometry import Capsule, Cuboid, Cylinder, Mesh, Obstacle, Sphere, VoxelGrid
from lumigrad.client.compat.curobo.registry import register_mesh, unregister_mesh
from lumigrad.client.compat.curobo.values import CollisionCheckerType, Pose, TensorDeviceType
from lumigrad.client.compat.curobo.world_config import WorldConfig

__all__ = [
    "Capsule",
    "CollisionBuffer",
    "CollisionCheckerType",
    "CollisionQueryBuffer",
    "Cuboid",
    "CuroboArgumentError",
    "Cylinder",
    "Mesh",
    "Obstacle",
    "Pose",
    "SdfMeshWarpPy",
    "Sphere",
    "SweptSdfMeshWarpPy",
    "TensorDeviceType",
    "VoxelGrid",
    "WorldCollisionConfig",
    "WorldConfig",
    "WorldMeshCollision",
    "WorldPrimitiveCollision",
    "WorldVoxelCollision",
    "create_collision_checker",
    "register_mesh",
    "unregister_mesh",
]
