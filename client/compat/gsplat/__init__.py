"""gsplat's `rasterization` (`gsplat.rendering`) with the rendering on a worker."""

from lumigrad.client.compat.gsplat.options import GsplatArgumentError
from lumigrad.client.compat.gsplat.rasterization import rasterization

__all__ = ["GsplatArgumentError", "rasterization"]
