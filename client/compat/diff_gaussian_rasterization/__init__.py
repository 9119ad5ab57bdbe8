"""diff-gaussian-rasterization, in its version with depth, with the rendering on a worker."""

from lumigrad.client.compat.diff_gaussian_rasterization.rasterizer import GaussianRasterizer
from lumigrad.client.compat.diff_gaussian_rasterization.settings import GaussianRasterizationSettings

__all__ = ["GaussianRasterizationSettings", "GaussianRasterizer"]
