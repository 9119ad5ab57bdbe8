"""Gaussians: cases, references, oracle."""
