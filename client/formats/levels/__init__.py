"""Scenes of Gaussians in pages with levels of detail, for scenes that are larger than memory."""

from lumigrad.client.formats.levels.leaves import leaf_gradients
from lumigrad.client.formats.levels.ordering import PAGE_ROWS
from lumigrad.client.formats.levels.pages import GaussianLevels

__all__ = ["PAGE_ROWS", "GaussianLevels", "leaf_gradients"]
