"""gsplat's `rasterization` and `rasterization_2dgs` with the rendering on a worker, and what is imported beside them.

Strategies, `fully_fused_projection` and `spherical_harmonics` are plain torch, and call no worker.
"""

from lumigrad.client.compat.gsplat.harmonics import spherical_harmonics
from lumigrad.client.compat.gsplat.inria import rasterization_inria_wrapper
from lumigrad.client.compat.gsplat.options import GsplatArgumentError
from lumigrad.client.compat.gsplat.parameters import (
    BivariateWindshieldModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RollingShutterType,
    RowOffsetStructuredSpinningLidarModelParameters,
    SpinningDirection,
    UnscentedTransformParameters,
)
from lumigrad.client.compat.gsplat.projection import fully_fused_projection
from lumigrad.client.compat.gsplat.rasterization import rasterization
from lumigrad.client.compat.gsplat.strategy import DefaultStrategy, MCMCStrategy, Strategy
from lumigrad.client.compat.gsplat.surfels import rasterization_2dgs

__all__ = [
    "BivariateWindshieldModelParameters",
    "DefaultStrategy",
    "ExternalDistortionReferencePolynomial",
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "GsplatArgumentError",
    "MCMCStrategy",
    "RendererConfig",
    "RendererConfig_MixedBatch",
    "RendererConfig_ParallelBatch",
    "RollingShutterType",
    "RowOffsetStructuredSpinningLidarModelParameters",
    "SpinningDirection",
    "Strategy",
    "UnscentedTransformParameters",
    "fully_fused_projection",
    "rasterization",
    "rasterization_2dgs",
    "rasterization_inria_wrapper",
    "spherical_harmonics",
]
