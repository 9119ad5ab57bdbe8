"""Soft-blended spheres, as in Pulsar: "exact" with true derivatives, or "compat" with Pulsar's results."""

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres.backward import GRADIENTS, Backward, backward, backward_steps
from lumigrad.kernels.spheres.camera import Camera
from lumigrad.kernels.spheres.forward import OUTPUTS, Forward, State, forward, forward_steps
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
    "backward_steps",
    "check_values",
    "forward",
    "forward_steps",
]
