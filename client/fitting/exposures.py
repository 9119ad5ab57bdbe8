"""Affine maps of the colours of photographs, fitted in this process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lumigrad.client.fitting.adam import Adam
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


def of_neighbours(names: Sequence[str], fitted: Sequence[str], matrices: Array) -> Array:
    """Exposures [N, 3, 4] for photographs that were not fitted: between those of their neighbours, by name.

    Photographs of a walk around something are numbered as they were taken, and a camera's exposure changes slowly. What
    is known of the photographs themselves is not looked at.

    Args:
        names: of those photographs.
        fitted: names of those that were.
        matrices: [V, 3, 4] exposures of these.
    """
    order = sorted([*names, *fitted])
    places = {name: place for place, name in enumerate(order)}
    ranks = np.argsort([places[name] for name in fitted])
    known, rows = np.array([places[name] for name in fitted])[ranks], matrices[ranks].reshape(len(fitted), -1)
    wanted = [places[name] for name in names]
    columns = [np.interp(wanted, known, column) for column in rows.T]
    return np.stack(columns, axis=1).reshape(-1, 3, 4).astype(np.float32)


def exposed(matrix: Array, picture: Array) -> Array:
    """[H, W, 3] the affine map [3, 4] of the picture's colours."""
    return np.asarray(picture @ matrix[:, :3].T + matrix[:, 3], np.float32)
