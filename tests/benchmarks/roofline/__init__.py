"""Lower bounds for the times of the CUDA kernels, by counting their work."""
