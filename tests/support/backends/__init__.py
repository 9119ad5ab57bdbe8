"""The engines under test: on the CPU, on the emulation of CUDA, and on a GPU."""
