"""What the CUDA kernels need at the least, by counting their work."""
