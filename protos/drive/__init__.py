"""Scenes for driving simulators: their manifests, and poses in them."""
