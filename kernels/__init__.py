"""The mathematics: engines in C++ and CUDA behind a thin Python face on torch tensors.

Usable in process, without a server: `lumigrad.kernels.spheres.forward` and `backward`.
"""

from lumigrad.kernels.errors import ArgumentError

__all__ = ["ArgumentError"]
