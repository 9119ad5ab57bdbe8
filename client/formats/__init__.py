"""File formats of Gaussian scenes."""

from lumigrad.client.formats.load import is_gaussian_scene, load_gaussians, read_scene, save_gaussians
from lumigrad.client.formats.scene import StoredScene

__all__ = ["StoredScene", "is_gaussian_scene", "load_gaussians", "read_scene", "save_gaussians"]
