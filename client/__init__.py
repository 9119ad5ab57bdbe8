"""The user's side: `Client` and its value types. Autograd operators are in `lumigrad.client.torch`."""

from lumigrad.client.camera import Camera
from lumigrad.client.client import Client
from lumigrad.client.cuboid import Cuboid
from lumigrad.client.distances import Distances
from lumigrad.client.errors import (
    Cancelled,
    ContextLost,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    LumigradError,
    ResourceExhausted,
    SceneNotFound,
    StepMismatch,
    TrainingHeld,
    TrainingLost,
    Unauthenticated,
    Unavailable,
    VersionMismatch,
    Violation,
)
from lumigrad.client.extras import MissingPackage
from lumigrad.client.frame import Frame
from lumigrad.client.gaussian_settings import Transform
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.gradients import Gradients
from lumigrad.client.mesh import Mesh
from lumigrad.client.mesh_report import MeshReport
from lumigrad.client.obstacle import Obstacle
from lumigrad.client.scene import SceneHandle
from lumigrad.client.spheres import Spheres
from lumigrad.client.target import Target
from lumigrad.client.timings import Timings
from lumigrad.client.training import AdaptiveDensity, Loss, Mcmc, Rate, Trainer
from lumigrad.client.voxel_grid import VoxelGrid
from lumigrad.client.worker_info import WorkerInfo
from lumigrad.client.world import World

__all__ = [
    "AdaptiveDensity",
    "Camera",
    "Cancelled",
    "Client",
    "ContextLost",
    "Cuboid",
    "DeadlineExceeded",
    "Distances",
    "Frame",
    "Gaussians",
    "Gradients",
    "Internal",
    "InvalidArgument",
    "Loss",
    "LumigradError",
    "Mcmc",
    "Mesh",
    "MeshReport",
    "MissingPackage",
    "Obstacle",
    "Rate",
    "ResourceExhausted",
    "SceneHandle",
    "SceneNotFound",
    "Spheres",
    "StepMismatch",
    "Target",
    "Timings",
    "Trainer",
    "TrainingHeld",
    "TrainingLost",
    "Transform",
    "Unauthenticated",
    "Unavailable",
    "VersionMismatch",
    "Violation",
    "VoxelGrid",
    "WorkerInfo",
    "World",
]
