"""cuRobo 0.7's collision costs of spheres near meshes (`curobo.geom.sdf`), computed on a worker."""

from lumigrad.client.compat.curobo.buffers import CollisionBuffer, CollisionQueryBuffer
from lumigrad.client.compat.curobo.collision import WorldCollisionConfig, WorldMeshCollision
from lumigrad.client.compat.curobo.errors import CuroboArgumentError
from lumigrad.client.compat.curobo.functions import SdfMeshWarpPy, SweptSdfMeshWarpPy
from lumigrad.client.compat.curobo.registry import register_mesh, unregister_mesh
from lumigrad.client.compat.curobo.values import (
    CollisionCheckerType,
    Cuboid,
    Mesh,
    Pose,
    TensorDeviceType,
    VoxelGrid,
    WorldConfig,
)

__all__ = [
    "CollisionBuffer",
    "CollisionCheckerType",
    "CollisionQueryBuffer",
    "Cuboid",
    "CuroboArgumentError",
    "Mesh",
    "Pose",
    "SdfMeshWarpPy",
    "SweptSdfMeshWarpPy",
    "TensorDeviceType",
    "VoxelGrid",
    "WorldCollisionConfig",
    "WorldConfig",
    "WorldMeshCollision",
    "register_mesh",
    "unregister_mesh",
]
