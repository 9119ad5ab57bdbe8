"""Affine maps of the colours of photographs, fitted in this process."""

from __future__ import annotations

import numpy as np

from lumigrad.client.fitting.adam import Adam
from lumigrad.client.fitting.similarity import exposed
from lumigrad.client.named_arrays import Array


class Exposures:
    """A matrix [3, 4] for each photograph, with moments of its own: one is only stepped when it was looked at."""

    def __init__(self, count: int) -> None:
        self.matrices = np.tile(np.eye(3, 4, dtype=np.float32), (count, 1, 1))
        self._moments = [Adam.of(matrix) for matrix in self.matrices]

    def exposed(self, view: int, picture: Array) -> Array:
        """[H, W, 3] the picture as the photograph's camera would have exposed it."""
        return exposed(self.matrices[view], picture)

    def step(self, view: int, picture: Array, gradient: Array, rate: float) -> Array:
        """Steps a photograph's matrix; `gradient` [H, W, 3] is by the exposed picture.

        Returns:
            The gradient by `picture`, which is the one before it was exposed.
        """
        matrix = self.matrices[view]
        by_picture: Array = gradient @ matrix[:, :3]
        rows, upstream = picture.reshape(-1, 3), gradient.reshape(-1, 3)
        by_matrix = np.concatenate([upstream.T @ rows, upstream.sum(axis=0)[:, None]], axis=1)
        self._moments[view].step(matrix, by_matrix.astype(np.float32), rate)
        return by_picture
