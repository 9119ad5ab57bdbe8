"""Density control: cloning, splitting, pruning and relocation of primitives during training."""

from lumigrad.kernels.density.apply import Applied, apply, reset_opacities
from lumigrad.kernels.density.noise import add_noise, prepare_noise
from lumigrad.kernels.density.parameters import Parameters
from lumigrad.kernels.density.plan import Plan, plan
from lumigrad.kernels.density.random import STREAMS, Draw, normals, random_words
from lumigrad.kernels.density.relocation import Addition, Relocation, add_gaussians, relocate
from lumigrad.kernels.density.statistics import Statistics, accumulate, accumulate_spheres
from lumigrad.kernels.density.thresholds import Thresholds
from lumigrad.kernels.errors import ArgumentError

__all__ = [
    "STREAMS",
    "Addition",
    "Applied",
    "ArgumentError",
    "Draw",
    "Parameters",
    "Plan",
    "Relocation",
    "Statistics",
    "Thresholds",
    "accumulate",
    "accumulate_spheres",
    "add_gaussians",
    "add_noise",
    "apply",
    "normals",
    "plan",
    "prepare_noise",
    "random_words",
    "relocate",
    "reset_opacities",
]
