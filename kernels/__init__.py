"""The kernels: engines in C++ and CUDA with a thin Python interface on torch tensors.

Usable in process, without a server: `lumigrad.kernels.spheres.forward` and `backward`, those of `gaussians`,
`lumigrad.kernels.meshes.evaluate` and `backward`, and for training what `density` and `training` have.
"""

from lumigrad.kernels.errors import ArgumentError

__all__ = ["ArgumentError"]
