"""File formats of Gaussian scenes, and logs of driving simulators."""

from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.drive_log import read_drive_log
from lumigrad.client.formats.load import check_displayed, is_gaussian_scene, load_gaussians, read_scene
from lumigrad.client.formats.save import save_gaussians, save_scene
from lumigrad.client.formats.scene import StoredScene

__all__ = [
    "SceneView",
    "StoredScene",
    "check_displayed",
    "is_gaussian_scene",
    "load_gaussians",
    "read_drive_log",
    "read_scene",
    "save_gaussians",
    "save_scene",
]
