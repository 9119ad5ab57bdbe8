"""Soft-blended spheres, as in Pulsar: "exact" with true derivatives, or "compat" with Pulsar's results."""

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres.backward import GRADIENTS, Backward, backward
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.forward import OUTPUTS, Forward, State, forward
from lumigrad.kernels.spheres.inputs import check_values
from lumigrad.kernels.spheres.settings import MAX_TRACK, Settings

__all__ = [
    "GRADIENTS",
    "MAX_TRACK",
    "OUTPUTS",
    "ArgumentError",
    "Backward",
    "Camera",
    "Forward",
    "Settings",
    "State",
    "backward",
    "check_values",
    "forward",
]
