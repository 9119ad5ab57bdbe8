"""Autograd operators: PyTorch on this side, the rendering on a worker. Needs the extra `torch`."""

from lumigrad.client.extras import require

require("torch", "torch", "lumigrad.client.torch")

from lumigrad.client.torch.gaussians import RenderedGaussians, render_gaussians  # noqa: E402 - after the helpful error
from lumigrad.client.torch.spheres import RenderedSpheres, render_spheres  # noqa: E402

__all__ = ["RenderedGaussians", "RenderedSpheres", "render_gaussians", "render_spheres"]
