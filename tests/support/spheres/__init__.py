"""Spheres: cases, references, oracle."""
