"""PyTorch operators that compute on a worker, differentiable by autograd. Needs the extra `torch`."""

from lumigrad.client.base.extras import require

require("torch", "torch", "lumigrad.client.torch")

from lumigrad.client.torch.distances import MeshDistances, mesh_distance  # noqa: E402 - after the helpful error
from lumigrad.client.torch.gaussians import RenderedGaussians, render_gaussians  # noqa: E402
from lumigrad.client.torch.sensor_parameters import (  # noqa: E402
    BivariateWindshieldModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    UnscentedTransformParameters,
)
from lumigrad.client.torch.spheres import RenderedSpheres, render_spheres  # noqa: E402

__all__ = [
    "BivariateWindshieldModelParameters",
    "ExternalDistortionReferencePolynomial",
    "FThetaCameraDistortionParameters",
    "FThetaPolynomialType",
    "MeshDistances",
    "RenderedGaussians",
    "RenderedSpheres",
    "RollingShutterType",
    "UnscentedTransformParameters",
    "mesh_distance",
    "render_gaussians",
    "render_spheres",
]
