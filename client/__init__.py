"""The user's side: `Client` and its value types. Autograd operators are in `lumigrad.client.torch`."""

from lumigrad.client.camera import Camera
from lumigrad.client.client import Client
from lumigrad.client.errors import (
    Cancelled,
    ContextLost,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    LumigradError,
    ResourceExhausted,
    SceneNotFound,
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
from lumigrad.client.scene import SceneHandle
from lumigrad.client.spheres import Spheres
from lumigrad.client.timings import Timings
from lumigrad.client.worker_info import WorkerInfo

__all__ = [
    "Camera",
    "Cancelled",
    "Client",
    "ContextLost",
    "DeadlineExceeded",
    "Frame",
    "Gaussians",
    "Gradients",
    "Internal",
    "InvalidArgument",
    "LumigradError",
    "MissingPackage",
    "ResourceExhausted",
    "SceneHandle",
    "SceneNotFound",
    "Spheres",
    "Timings",
    "Transform",
    "Unauthenticated",
    "Unavailable",
    "VersionMismatch",
    "Violation",
    "WorkerInfo",
]
