"""A synthetic capture: photographs of a still life of mathematical shapes."""
