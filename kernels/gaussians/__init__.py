"""3D Gaussian splatting: images of gsplat or diff-gaussian-rasterization, with true gradients or their own."""

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians.backward import (
    GRADIENTS,
    SCENE_GRADIENTS,
    Backward,
    backward,
    backward_steps,
    gives_sh_factors,
)
from lumigrad.kernels.gaussians.camera import MODELS, Camera
from lumigrad.kernels.gaussians.forward import (
    CELL,
    IMAGES,
    ON_RAYS,
    ON_SURFELS,
    OUTPUTS,
    PER_GAUSSIAN,
    VISITS,
    Forward,
    forward,
    forward_steps,
)
from lumigrad.kernels.gaussians.inputs import Gaussians, check_values
from lumigrad.kernels.gaussians.lidar import SpinningLidar
from lumigrad.kernels.gaussians.sensor_lenses import (
    FisheyeLens,
    FThetaLens,
    OrthographicLens,
    PinholeLens,
    SensorLens,
    Windshield,
)
from lumigrad.kernels.gaussians.settings import SEMANTICS, Settings, UnscentedTransform
from lumigrad.kernels.gaussians.state import State
from lumigrad.kernels.gaussians.transforms import Transform

__all__ = [
    "CELL",
    "GRADIENTS",
    "IMAGES",
    "MODELS",
    "ON_RAYS",
    "ON_SURFELS",
    "OUTPUTS",
    "PER_GAUSSIAN",
    "SCENE_GRADIENTS",
    "SEMANTICS",
    "VISITS",
    "ArgumentError",
    "Backward",
    "Camera",
    "FThetaLens",
    "FisheyeLens",
    "Forward",
    "Gaussians",
    "OrthographicLens",
    "PinholeLens",
    "SensorLens",
    "Settings",
    "SpinningLidar",
    "State",
    "Transform",
    "UnscentedTransform",
    "Windshield",
    "backward",
    "backward_steps",
    "check_values",
    "forward",
    "forward_steps",
    "gives_sh_factors",
]
