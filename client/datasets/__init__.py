"""Data sets of posed photographs: Inria's, nerfstudio's and COLMAP's."""

from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.points import Points
from lumigrad.client.datasets.view import View, resized

__all__ = ["Capture", "Points", "View", "resized"]
