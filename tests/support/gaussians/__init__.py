"""Test cases of Gaussians, references in float64, and files with expected results."""
