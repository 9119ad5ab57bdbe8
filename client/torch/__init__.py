"""PyTorch operators that compute on a worker, differentiable by autograd. Needs the extra `torch`."""

from lumigrad.client.base.extras import require

require("torch", "torch", "lumigrad.client.torch")

from lumigrad.client.torch.distances import MeshDistances, mesh_distance  # noqa: E402 - after the helpful error
from lumigrad.client.torch.gaussians import RenderedGaussians, render_gaussians  # noqa: E402
from lumigrad.client.torch.spheres import RenderedSpheres, render_spheres  # noqa: E402
from lumigrad.client.torch.surfels import RenderedSurfels, render_gaussians_2d  # noqa: E402

__all__ = [
    "MeshDistances",
    "RenderedGaussians",
    "RenderedSpheres",
    "RenderedSurfels",
    "mesh_distance",
    "render_gaussians",
    "render_gaussians_2d",
    "render_spheres",
]
