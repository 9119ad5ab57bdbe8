"""The city of `lumigrad sample city` in pages with levels that are made while they are read, without harmonics."""

from __future__ import annotations

import numpy as np

from lumigrad.client import Gaussians
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.coarsening import Page, levels_of
from lumigrad.client.formats.levels.ordering import merging_order
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.samples.city import _centre, _ground_and_house, _moved, _vase

# Room for rounding of positions to float32, hundreds of units from the centre.
_ROOM = 1e-3


def blocks(count: int, kinds: int = 16, page_rows: int = 4096) -> GaussianLevels:
    """At least `count` Gaussians: pages with parts of each house and each vase, merged like those of files.

    Houses repeat after `kinds`.
    """
    vase = _parts(_vase().of_degree(0), page_rows)
    houses = [_parts(_moved(_ground_and_house(kind), -_centre(kind)).of_degree(0), page_rows) for kind in range(kinds)]
    pages = [page for part in (*houses, vase) for page in part]
    starts = np.cumsum([0, *map(len, houses)])
    rows = [sum(len(page.levels[0]) for page in part) for part in (houses[0], vase)]
    number = -(-count // sum(rows))
    of_vase = np.arange(starts[-1], len(pages))
    numbers = [[*range(starts[kind], starts[kind + 1]), *of_vase] for kind in range(kinds)]
    kind_of = np.concatenate([numbers[block % kinds] for block in range(number)])
    sizes = [len(numbers[block % kinds]) for block in range(number)]
    centres = np.repeat([_centre(block) for block in range(number)], sizes, axis=0)

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


def _parts(scene: StoredScene, page_rows: int) -> list[Page]:
    """Pages of neighbouring Gaussians of a scene."""
    order = merging_order(scene)
    return [
        Page.of(scene.reordered(order[begin : begin + page_rows]), levels_of(page_rows))
        for begin in range(0, len(order), page_rows)
    ]
