"""Parameters too large for the device: pages of neighbouring Gaussians in the spool; a step loads what it sees."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.server.core.errors import BusyError
from lumigrad.server.engines.cameras import gaussian_cameras
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.server.engines.detail import reached
from lumigrad.server.storage.spool import SpoolMemory
from lumigrad.server.training.idle_steps import make_up
from lumigrad.server.training.parameters import Optimizer, Parameters
from lumigrad.v1 import render_pb2

# The numbers of some pages, ascending.
Pages = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

# Kind of the files in the spool.
KIND = "blocks"
PAGE_ROWS = 256
# The most pages of one job, for which other jobs must wait.
_MOST_PAGES = 256
# The standard deviations to which Gaussians are drawn.
_REACH = 3.34
# Stands for infinity in bounds, so that products with 0 are not NaN.
_FAR = 1e30
_ROW_NUMBER_BYTES = 8
# Outliers beyond these quantiles of each axis must not coarsen the curve for all others.
_QUANTILES = 0.001, 0.999
_MORTON_BITS = 21
_SPREADS = (
    (32, 0x1F00000000FFFF),
    (16, 0x1F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)


class Blocks:
    """The parameters of all Gaussians in pages with bounds, and the pool to which a step's pages are copied.

    Attributes:
        parameters: Parameters of all rows, on the host, in the order of pages.
        order: [N] int64, the number of each row in the scene.
        device: The device on which steps are made.
    """

    def __init__(self, parameters: Parameters, order: torch.Tensor, pool_bytes: int, device: torch.device) -> None:
        self.parameters, self.order, self.device = parameters, order, device
        self._pool_bytes = pool_bytes
        self._row_bytes = sum(tensor.nbytes for tensor in parameters.tensors.values()) // parameters.count
        # Pages that a pass over all pages takes at once. Besides a row there are copies of some of its values.
        self._most_pages = max(1, min(pool_bytes // (2 * self._row_bytes * PAGE_ROWS), _MOST_PAGES))
        pages = -(-parameters.count // PAGE_ROWS)
        # For each page, the number of the first step that it has not made.
        self.steps = torch.zeros(pages, dtype=torch.int64)
        self._bounds = np.zeros((pages, 2, 3), np.float32)
        # The pages whose bounds must be computed.
        self._is_changed = np.ones(pages, bool)

    @staticmethod
    def bytes(shapes: Shapes, optimizer: Optimizer) -> int:
        """Return the memory in the spool for a scene whose tensors have these shapes."""
        return shapes["means"][0] * (Parameters.row_bytes(shapes, optimizer) + _ROW_NUMBER_BYTES)

    @staticmethod
    def begun(
        order: Rows, shapes: Shapes, optimizer: Optimizer, memory: SpoolMemory, pool_bytes: int, device: torch.device
    ) -> Blocks:
        """Create blocks in memory of the spool; `fill` fills their rows."""
        at = 0

        def placed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            nonlocal at
            tensor = torch.frombuffer(memory.data, dtype=dtype, count=prod(shape), offset=at).reshape(shape)
            at += tensor.nbytes
            return tensor

        numbers = placed((len(order),), torch.int64)
        numbers.copy_(torch.from_numpy(order))
        like = Parameters.of_scene({name: torch.zeros(0, *shape[1:]) for name, shape in shapes.items()}, optimizer)
        parameters = like.mapped(lambda tensor: placed((len(order), *tensor.shape[1:]), torch.float32))
        return Blocks(parameters, numbers, pool_bytes, device)

    def fill(self, first: int, tensors: Tensors, optimizer: Optimizer) -> int:
        """Initialise as many rows from `first` on as there is room for from a scene's tensors; returns the next row."""
        end = first + self._most_pages * PAGE_ROWS
        numbers = self.order[first:end].to(self.device)
        begun = Parameters.of_scene({name: tensor[numbers] for name, tensor in tensors.items()}, optimizer)
        for name, tensor in begun.tensors.items():
            self.parameters.tensors[name][first : first + len(tensor)] = tensor.cpu()
        return first + len(numbers)

    def rows(self, pages: Pages) -> int:
        """Return the number of Gaussians of some pages."""
        return sum(end - start for start, end in self._runs(pages))

    def reached(self, spec: render_pb2.RenderSpec, field: str) -> Pages:
        """Return the pages that cameras see; raises BusyError if the pool has too little room for them."""
        self._bound()
        pages = np.flatnonzero(reached(self._bounds, gaussian_cameras(spec, field), spec.gaussians))
        # Engines and optimisers do not take empty tensors everywhere.
        pages = pages if len(pages) else np.zeros(1, np.int64)
        needed = self.rows(pages) * self._row_bytes
        if needed > self._pool_bytes:
            what = f"pages with {self.rows(pages)} of {self.parameters.count} Gaussians are in view of {field}"
            raise BusyError(f"{what}: they take {needed} bytes, and pool_bytes is {self._pool_bytes}", None)
        return pages

    def loaded(self, pages: Pages, optimizer: Optimizer, step: int) -> Parameters:
        """Copy the rows of some pages to the device, as they are before a step."""

        def load(tensor: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor[start:end] for start, end in self._runs(pages)]).to(self.device)

        rows = self.parameters.mapped(load)
        if not optimizer.visible_only:
            counts = np.minimum((pages + 1) * PAGE_ROWS, self.parameters.count) - pages * PAGE_ROWS
            make_up(rows, np.repeat(self.steps.numpy()[pages], counts), step, optimizer)
        return rows

    def store(self, pages: Pages, parameters: Parameters, step: int) -> None:
        """Replace the rows of some pages by `parameters`, on the host, after a step. Cannot fail."""
        self._is_changed[pages] = True
        self.steps.numpy()[pages] = step + 1
        at = 0
        for start, end in self._runs(pages):
            for name, parameter in self.parameters.by_name.items():
                new = parameters.by_name[name].tensors
                for part, tensor in parameter.tensors.items():
                    tensor[start:end].copy_(new[part][at : at + end - start])
            at += end - start

    def parts(self) -> list[Pages]:
        """Split all pages into parts for which there is room."""
        return np.array_split(np.arange(len(self._bounds)), -(-len(self._bounds) // self._most_pages))

    def copy_to(self, scene: Tensors, pages: Pages, optimizer: Optimizer, step: int) -> Tensors:
        """Copy the values of some pages before a step to a scene's tensors; returns them in the order of pages."""
        numbers = torch.cat([self.order[start:end] for start, end in self._runs(pages)])
        values = self.loaded(pages, optimizer, step).values
        for name, value in values.items():
            device = scene[name].device
            scene[name][numbers.to(device)] = value.to(device)
        return values

    def _bound(self) -> None:
        """Compute the bounds of pages that have changed."""
        pages = np.flatnonzero(self._is_changed)
        if not len(pages):
            return
        runs = list(self._runs(pages))
        means, scales = (
            torch.cat([self.parameters.values[name][start:end] for start, end in runs]).numpy()
            for name in ("means", "scales")
        )
        reach = _REACH * scales.max(axis=1, keepdims=True)
        starts = np.arange(len(pages)) * PAGE_ROWS
        # Gaussians with values that are not finite must not hide their neighbours: they may be drawn everywhere, or not
        # at all.
        low, high = np.fmin.reduceat(means - reach, starts), np.fmax.reduceat(means + reach, starts)
        self._bounds[pages] = np.nan_to_num(np.stack([low, high], axis=1), nan=0.0, posinf=_FAR, neginf=-_FAR)
        self._is_changed[pages] = False

    def _runs(self, pages: Pages) -> Iterator[tuple[int, int]]:
        """Yield the first and last + 1 of each run of rows in consecutive pages."""
        for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
            yield int(run[0]) * PAGE_ROWS, min((int(run[-1]) + 1) * PAGE_ROWS, self.parameters.count)


def page_order(means: Floats, scales: Floats) -> Rows:
    """Return the numbers [N] of Gaussians in the order of pages, along a Z-order curve.

    Gaussians larger than most pages come last, since they would stretch the bounds of their small neighbours.
    """
    codes = _codes(means)
    ordered = means[np.argsort(codes)]
    starts = np.arange(0, len(means), PAGE_ROWS)
    sizes = np.maximum.reduceat(ordered, starts) - np.minimum.reduceat(ordered, starts)
    is_large = _REACH * scales.max(axis=1) > np.median(sizes.max(axis=1))
    return np.lexsort((codes, is_large))


def _codes(means: Floats) -> npt.NDArray[np.uint64]:
    low, high = np.quantile(means.astype(np.float64), _QUANTILES, axis=0)
    # Cells are cubes, even in flat scenes.
    shares = (means - low) / max(float((high - low).max()), np.finfo(np.float32).tiny)
    cells = (np.clip(shares, 0.0, 1.0) * ((1 << _MORTON_BITS) - 1)).astype(np.uint64)
    for shift, mask in _SPREADS:
        cells = (cells | cells << np.uint64(shift)) & np.uint64(mask)
    return np.asarray(cells[:, 0] | cells[:, 1] << np.uint64(1) | cells[:, 2] << np.uint64(2))
