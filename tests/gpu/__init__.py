"""Proves the CUDA engines on a machine with a GPU: `make gpu` builds, tests, measures, compares and profiles them.

The machine may be bare: no network, no virtual environment, and only the Python packages torch, numpy, cmake, ninja,
nanobind, pytest and hypothesis. `make gpu-pack`, run where there is a network, makes the folder that supplies the rest.
"""
