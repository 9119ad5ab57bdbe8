"""The kernels: engines in C++ and CUDA with a thin Python interface on torch tensors.

They run in process, without a server: `lumigrad.kernels.spheres.forward` and `backward`, the same of `gaussians`,
`lumigrad.kernels.meshes.evaluate` and `backward`, and for training the functions of `density` and `training`.
"""

from lumigrad.kernels.errors import ArgumentError

__all__ = ["ArgumentError"]
