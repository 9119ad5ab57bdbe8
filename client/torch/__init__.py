"""Autograd operators: PyTorch on this side, the rendering on a worker. Needs the extra `torch`."""

from lumigrad.client.extras import require

require("torch", "torch", "lumigrad.client.torch")

from lumigrad.client.torch.spheres import RenderedSpheres, render_spheres  # noqa: E402 - after the helpful error

__all__ = ["RenderedSpheres", "render_spheres"]
