"""The names of `gsplat.rendering`."""

from __future__ import annotations

from typing import Any, NoReturn

from lumigrad.client.compat.gsplat.inria import rasterization_inria_wrapper
from lumigrad.client.compat.gsplat.options import CameraModel, RasterizeMode, RenderMode
from lumigrad.client.compat.gsplat.parameters import (
    BivariateWindshieldModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RendererConfig,
    RendererConfig_MixedBatch,
    RendererConfig_ParallelBatch,
    RollingShutterType,
    UnscentedTransformParameters,
)
from lumigrad.client.compat.gsplat.rasterization import rasterization
from lumigrad.client.compat.gsplat.surfels import rasterization_2dgs


def rasterization_2dgs_inria_wrapper(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises NotImplementedError: the original calls another rasterizer of surfels."""
    raise NotImplementedError(
        "rasterization_2dgs_inria_wrapper is not offered; use rasterization_2dgs (--model_type 2dgs)"
    )
