"""PyTorch3D's Pulsar (`pytorch3d.renderer.points.pulsar`) with the rendering on a worker."""

from lumigrad.client.compat.pulsar.checks import (
    EPS,
    MAX_FLOAT,
    MAX_GRAD_SPHERES,
    MAX_INT,
    MAX_UINT,
    MAX_USHORT,
    PulsarArgumentError,
)
from lumigrad.client.compat.pulsar.renderer import Renderer

__all__ = [
    "EPS",
    "MAX_FLOAT",
    "MAX_GRAD_SPHERES",
    "MAX_INT",
    "MAX_UINT",
    "MAX_USHORT",
    "PulsarArgumentError",
    "Renderer",
]
