"""gsplat's `rasterization` (`gsplat.rendering`) with the rendering on a worker."""

from lumigrad.client.compat.gsplat.options import GsplatArgumentError
from lumigrad.client.compat.gsplat.rasterization import rasterization
from lumigrad.client.torch.sensor_parameters import (
    BivariateWindshieldModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RollingShutterType,
    RowOffsetStructuredSpinningLidarModelParameters,
    SpinningDirection,
    UnscentedTransformParameters,
)

__all__ = [
    "BivariateWindshieldModelParameters",
    "ExternalDistortionReferencePolynomial",
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "GsplatArgumentError",
    "RendererConfig_MixedBatch",
    "RendererConfig_ParallelBatch",
    "RollingShutterType",
    "RowOffsetStructuredSpinningLidarModelParameters",
    "SpinningDirection",
    "UnscentedTransformParameters",
    "rasterization",
]
