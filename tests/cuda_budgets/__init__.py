"""What the CUDA kernels may use, checked without a GPU: `make gpu-check`."""
