"""Engines under test: CPU loops, the emulation of CUDA, a GPU."""
