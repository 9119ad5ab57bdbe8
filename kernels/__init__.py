"""The kernels: engines in C++ and CUDA with a thin Python interface on torch tensors.

They run in process, without a server. `spheres` and `gaussians` have `forward` and `backward`, `meshes` has `evaluate`
and `backward`; `density` and `training` have the functions for training.
"""

from lumigrad.kernels.errors import ArgumentError

__all__ = ["ArgumentError"]
