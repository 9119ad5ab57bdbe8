"""The public client API: `Client` and its value types. Autograd operators are in `lumigrad.client.torch`."""

import lumigrad.client.base.grpc_log  # noqa: F401, before what else imports gRPC
from lumigrad.client.base.extras import MissingPackage
from lumigrad.client.base.timings import Gradients, Timings
from lumigrad.client.client import Client
from lumigrad.client.distances.answer import Distances
from lumigrad.client.errors import (
    Cancelled,
    ContextLost,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    LumigradError,
    PrecisionWarning,
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
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.stream import RenderStream
from lumigrad.client.settings.distances import DistanceSettings
from lumigrad.client.settings.gaussians import GaussianSettings, Transform, UnscentedTransform
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.training import AdaptiveDensity, Loss, Mcmc, Rate, Trainer
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.lenses import (
    FisheyeLens,
    FThetaLens,
    OrthographicLens,
    PinholeLens,
    SpinningLidar,
    Windshield,
)
from lumigrad.client.values.mesh import Mesh, MeshReport
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage
from lumigrad.client.values.world import Cuboid, Obstacle, VoxelGrid, World
from lumigrad.client.workers.info import WorkerInfo

__all__ = [
    "AdaptiveDensity",
    "Camera",
    "Cancelled",
    "Client",
    "ContextLost",
    "Cuboid",
    "DeadlineExceeded",
    "DistanceSettings",
    "Distances",
    "FThetaLens",
    "FisheyeLens",
    "Frame",
    "GaussianSettings",
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
    "OrthographicLens",
    "PinholeLens",
    "PrecisionWarning",
    "Rate",
    "RenderStream",
    "ResourceExhausted",
    "SceneHandle",
    "SceneNotFound",
    "SphereSettings",
    "Spheres",
    "SpinningLidar",
    "StepMismatch",
    "TargetImage",
    "Timings",
    "Trainer",
    "TrainingHeld",
    "TrainingLost",
    "Transform",
    "Unauthenticated",
    "Unavailable",
    "UnscentedTransform",
    "VersionMismatch",
    "Violation",
    "VoxelGrid",
    "Windshield",
    "WorkerInfo",
    "World",
]


def __dir__() -> list[str]:
    """Returns the public names, without the packages and modules that hold them."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
