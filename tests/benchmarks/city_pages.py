"""The city of `lumigrad sample city` in pages with levels that are made while they are read, without harmonics."""

from __future__ import annotations

import numpy as np

from lumigrad.client import Gaussians
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.coarsening import Page, levels_of
from lumigrad.client.formats.levels.ordering import PAGE_ROWS
from lumigrad.client.samples.city import _centre, _ground_and_house, _moved, _vase

# Room for rounding of positions to float32, hundreds of units from the middle.
_ROOM = 1e-3


def blocks(count: int, kinds: int = 16) -> GaussianLevels:
    """At least so many Gaussians: a page for each house and for each vase, merged as those of files.

    Houses repeat after `kinds`.
    """
    vase = _vase().of_degree(0)
    houses = [_moved(_ground_and_house(kind), -_centre(kind)).of_degree(0) for kind in range(kinds)]
    pages = [Page.of(scene, levels_of(PAGE_ROWS)) for scene in (*houses, vase)]
    number = -(-count // (len(houses[0]) + len(vase)))
    centres = np.repeat([_centre(block) for block in range(number)], 2, axis=0)
    kind_of = np.stack([np.arange(number) % kinds, np.full(number, kinds)], axis=1).ravel()

    def read(page: int, level: int) -> Gaussians:
        return _moved(pages[kind_of[page]].levels[level], centres[page]).gaussians()

    room = np.array([[-_ROOM], [_ROOM]])
    return GaussianLevels(
        bounds=(np.stack([page.bounds for page in pages])[kind_of] + centres[:, None, None] + room).astype(np.float32),
        counts=np.array([[len(level) for level in page.levels] for page in pages], np.int64)[kind_of],
        errors=np.array([page.errors for page in pages], np.float32)[kind_of],
        sh_degree=0,
        antialiased=False,
        source=read,
    )
