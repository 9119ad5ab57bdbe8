"""The resource budgets of the CUDA kernels, checked without a GPU: `make gpu-check`."""
