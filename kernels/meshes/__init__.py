"""Signed distances and collision costs between spheres and meshes, with true derivatives or cuRobo's."""

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes.backward import GRADIENTS, Backward, backward, backward_steps
from lumigrad.kernels.meshes.esdf import esdf, esdf_steps, voxel_counts
from lumigrad.kernels.meshes.evaluate import COSTS, DISTANCES, OUTPUTS, Evaluation, State, evaluate, evaluate_steps
from lumigrad.kernels.meshes.inputs import check_values
from lumigrad.kernels.meshes.mesh import SIGNS, Mesh, Report
from lumigrad.kernels.meshes.pose import IDENTITY, are_poses
from lumigrad.kernels.meshes.prepared import Queries, cpu_queries, cuda_queries, prepare
from lumigrad.kernels.meshes.settings import REDUCTIONS, SEMANTICS, Settings
from lumigrad.kernels.meshes.shapes import Cuboid, Grid, Shape, are_sizes, cuboids_of
from lumigrad.kernels.meshes.world import Instance, World, instances_of

__all__ = [
    "COSTS",
    "DISTANCES",
    "GRADIENTS",
    "IDENTITY",
    "OUTPUTS",
    "REDUCTIONS",
    "SEMANTICS",
    "SIGNS",
    "ArgumentError",
    "Backward",
    "Cuboid",
    "Evaluation",
    "Grid",
    "Instance",
    "Mesh",
    "Queries",
    "Report",
    "Settings",
    "Shape",
    "State",
    "World",
    "are_poses",
    "are_sizes",
    "backward",
    "backward_steps",
    "check_values",
    "cpu_queries",
    "cuboids_of",
    "cuda_queries",
    "esdf",
    "esdf_steps",
    "evaluate",
    "evaluate_steps",
    "instances_of",
    "prepare",
    "voxel_counts",
]
