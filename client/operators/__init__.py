"""The common part of the operators of PyTorch and JAX: all but the graph and the types of arrays."""
