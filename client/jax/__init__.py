"""JAX functions that compute on a worker, with their derivatives. Needs the extra `jax`."""

from lumigrad.client.base.extras import require

require("jax", "jax", "lumigrad.client.jax")

from lumigrad.client.jax.distances import MeshDistances, mesh_distance  # noqa: E402 - after the helpful error
from lumigrad.client.jax.gaussians import RenderedGaussians, render_gaussians  # noqa: E402
from lumigrad.client.jax.spheres import RenderedSpheres, render_spheres  # noqa: E402

__all__ = [
    "MeshDistances",
    "RenderedGaussians",
    "RenderedSpheres",
    "mesh_distance",
    "render_gaussians",
    "render_spheres",
]
