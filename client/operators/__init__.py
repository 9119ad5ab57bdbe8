"""What the operators of PyTorch and of JAX share: everything but the graph and the types of arrays."""
