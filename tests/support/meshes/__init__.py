"""Meshes and worlds: cases, references, oracle."""
