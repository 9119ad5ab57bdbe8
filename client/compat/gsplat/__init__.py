"""gsplat's `rasterization` and `rasterization_2dgs` with the rendering on a worker, and what is imported beside them.

Losses, strategies and other functions are plain torch, and call no worker. `install` puts this package into the place
of gsplat, which need not be installed; `python -m lumigrad.client.compat.gsplat PROGRAM.py …` does so for a program.
"""

import sys
from importlib import import_module

from lumigrad.client.compat.gsplat.color_correct import color_correct_affine, color_correct_quadratic
from lumigrad.client.compat.gsplat.compression import PngCompression
from lumigrad.client.compat.gsplat.cuda._wrapper import (
    CameraModel,
    fully_fused_projection,
    fully_fused_projection_2dgs,
    fully_fused_projection_with_ut,
    has_2dgs,
    has_3dgs,
    has_3dgut,
    has_adam,
    has_camera_wrappers,
    has_losses,
    has_reloc,
    proj,
    quat_scale_to_covar_preci,
    spherical_harmonics,
    spherical_harmonics_l0,
    spherical_harmonics_l1_plus,
    world_to_cam,
)
from lumigrad.client.compat.gsplat.exporter import export_splats, load_ply_to_splats
from lumigrad.client.compat.gsplat.optimizers import SelectiveAdam
from lumigrad.client.compat.gsplat.options import GsplatArgumentError
from lumigrad.client.compat.gsplat.parameters import (
    BivariateWindshieldModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    LidarTiling,
    RollingShutterType,
    RowOffsetStructuredSpinningLidarModelParameters,
    RowOffsetStructuredSpinningLidarModelParametersExt,
    SpinningDirection,
    UnscentedTransformParameters,
    compute_lidar_angles_to_columns_map,
    compute_lidar_tiling,
)
from lumigrad.client.compat.gsplat.rendering import (
    RasterizeMode,
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RenderMode,
    rasterization,
    rasterization_2dgs,
    rasterization_2dgs_inria_wrapper,
    rasterization_inria_wrapper,
)
from lumigrad.client.compat.gsplat.strategy import DefaultStrategy, MCMCStrategy, Strategy

# The version of gsplat whose functions these are.
__version__ = "1.6.0"
_SUBMODULES = (
    *("rendering", "strategy", "losses", "exporter", "optimizers", "scene", "stage", "distributed", "color_correct"),
    *("compression", "experimental", "utils", "_helper", "cuda", "cuda._wrapper", "cuda._lidar", "cuda._torch_impl"),
    *("relocation", "strategy.base", "strategy.default", "strategy.mcmc", "strategy.ops"),
)


def install() -> None:
    """Puts this package and its submodules into `sys.modules` in the place of gsplat, for all imports that follow.

    Raises:
        RuntimeError: gsplat itself has been imported.

    Example:
        install()
        from gsplat.rendering import rasterization
    """
    own = sys.modules[__name__]
    if sys.modules.get("gsplat", own) is not own:
        raise RuntimeError("gsplat itself has been imported; call install() before anything that imports it")
    sys.modules["gsplat"] = own
    for name in _SUBMODULES:
        sys.modules[f"gsplat.{name}"] = import_module(f"{__name__}.{name}")


__all__ = [
    "BivariateWindshieldModelParameters",
    "CameraModel",
    "DefaultStrategy",
    "ExternalDistortionReferencePolynomial",
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "GsplatArgumentError",
    "LidarTiling",
    "MCMCStrategy",
    "PngCompression",
    "RasterizeMode",
    "RenderMode",
    "RendererConfig",
    "RendererConfig_MixedBatch",
    "RendererConfig_ParallelBatch",
    "RollingShutterType",
    "RowOffsetStructuredSpinningLidarModelParameters",
    "RowOffsetStructuredSpinningLidarModelParametersExt",
    "SelectiveAdam",
    "SpinningDirection",
    "Strategy",
    "UnscentedTransformParameters",
    "color_correct_affine",
    "color_correct_quadratic",
    "compute_lidar_angles_to_columns_map",
    "compute_lidar_tiling",
    "export_splats",
    "fully_fused_projection",
    "fully_fused_projection_2dgs",
    "fully_fused_projection_with_ut",
    "has_2dgs",
    "has_3dgs",
    "has_3dgut",
    "has_adam",
    "has_camera_wrappers",
    "has_losses",
    "has_reloc",
    "install",
    "load_ply_to_splats",
    "proj",
    "quat_scale_to_covar_preci",
    "rasterization",
    "rasterization_2dgs",
    "rasterization_2dgs_inria_wrapper",
    "rasterization_inria_wrapper",
    "spherical_harmonics",
    "spherical_harmonics_l0",
    "spherical_harmonics_l1_plus",
    "world_to_cam",
]
