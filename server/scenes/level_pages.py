"""The pages of a scene with levels for one call: pages in memory, and pages that must be read from the spool."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from lumigrad.kernels.gaussians.packed_rows import pack
from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Allocate, Call
from lumigrad.server.core.errors import SceneNotFoundError
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.levels import LevelTable
from lumigrad.server.storage.spool_files import DamagedError, PayloadFile
from lumigrad.server.storage.tenants import Runtime

T = TypeVar("T")
# A page and its level.
Place = tuple[int, int]
# Pages that are read or copied between checks of the call, and about how many bytes are read or packed.
_STEP = 64
_READ_BYTES = 4 << 20
# The most reads that may wait while reads are added for later calls.
_MOST_AHEAD = 16


class LevelPages:
    """Finds pages in memory, and has missing ones read, as float32 or packed.

    A page that was found stays in memory until it is taken. The form that a call draws depends only on the call, never
    on what is in memory: for a call that draws packed pages, float32 pages are packed, and for a call that draws
    float32, packed pages are read again.
    """

    def __init__(self, scene_id: str, table: LevelTable, runtime: Runtime, *, is_packed: bool) -> None:
        self._scene_id, self._table, self._runtime, self._is_packed = scene_id, table, runtime, is_packed
        self._found: dict[Place, torch.Tensor] = {}
        self._file: PayloadFile | None = None

    def find(self, place: Place) -> bool:
        """Return whether a page is in memory; if so, keep it there."""
        if place not in self._found:
            page = self._in_memory(place)
            if page is not None:
                self._found[place] = page
        return place in self._found

    def take(self, places: Sequence[Place], call: Call) -> list[torch.Tensor]:
        """Return some of the first pages at these places, up to one not in memory; may raise as `Call.check` does."""
        taken: list[Place] = []
        to_pack: list[Place] = []
        for place in places[:_STEP]:
            if not self.find(place) or sum(map(self._bytes_of, to_pack)) > _READ_BYTES:
                break
            taken.append(place)
            if self._is_packed and self._found[place].dtype == torch.float32:
                to_pack.append(place)
        if to_pack:
            self._pack(to_pack, call)
        return [self._found.pop(place) for place in taken]

    def wait_for(self, places: Sequence[Place], call: Call) -> None:
        """Wait until the first places that are not in memory are read; raises what `Call.check` raises."""
        missing = self._missing(places)
        read = partial(self._read, self._opened(), missing)
        self._found |= self._runtime.reads.wait_for((self._scene_id, self._is_packed, *missing), read, call)

    def read_ahead(self, places: Sequence[Place]) -> None:
        """Have places read for later calls, as far as the number of waiting reads permits."""
        while missing := self._missing(places):
            read = partial(self._read, self._opened(), missing)
            if not self._runtime.reads.begin((self._scene_id, self._is_packed, *missing), read, _MOST_AHEAD):
                return
            places = places[places.index(missing[-1]) + 1 :]

    def close(self) -> None:
        """Release the found pages and the file."""
        self._found.clear()
        self._file = None
        self.forget_deleted()

    def _missing(self, places: Sequence[Place]) -> list[Place]:
        """Return the first places whose rows are not in memory, few enough for one short read."""
        missing: list[Place] = []
        nbytes = 0
        for place in places:
            if nbytes > _READ_BYTES or len(missing) == _STEP:
                break
            if place not in self._found and self._in_memory(place) is None:
                missing.append(place)
                nbytes += self._bytes_of(place)
        return missing

    def _in_memory(self, place: Place) -> torch.Tensor | None:
        page = self._runtime.pages.page(self._scene_id, *place, is_packed=self._is_packed)
        if page is None and self._is_packed:
            page = self._runtime.pages.page(self._scene_id, *place, is_packed=False)
        return page

    def _pack(self, places: Sequence[Place], call: Call) -> None:
        """Pack pages that were found as float32, on the host."""
        found = [self._found[place] for place in places]

        def packed() -> list[torch.Tensor]:
            return [pack(self._table.tensors(rows.cpu())).to(rows.device) for rows in found]

        for place, page in zip(places, with_tensors(packed, self._runtime, call), strict=True):
            self._found[place] = page
            self._runtime.pages.keep_page(self._scene_id, *place, page)

    def _bytes_of(self, place: Place) -> int:
        """Return the bytes of a page as float32."""
        return int(self._table.counts[place]) * self._table.row_bytes

    def _opened(self) -> PayloadFile:
        """Open the file of the rows, which stays readable until the call ends, even if the scene is deleted."""
        if self._file is None and self._runtime.spool is not None:
            self._file = self._runtime.spool.open_levels(self._scene_id)
        if self._file is None:
            raise SceneNotFoundError(self._scene_id)
        return self._file

    def _read(self, file: PayloadFile, places: Sequence[Place], allocate: Allocate) -> dict[Place, torch.Tensor]:
        """Read pages, on the thread of the tenant's reads."""
        runtime = self._runtime
        try:
            arrays = [self._rows_in(file, place, allocate) for place in places]
        except DamagedError as error:
            assert runtime.spool is not None
            runtime.spool.damaged(self._scene_id, error)
            raise SceneNotFoundError(self._scene_id) from error
        upload, dtype = runtime.transfer.upload, dtypes.UINT8 if self._is_packed else dtypes.FLOAT32
        pages = with_tensors(lambda: [upload(array, dtype) for array in arrays], runtime, None)
        for place, page in zip(places, pages, strict=True):
            runtime.pages.keep_page(self._scene_id, *place, page)
        self.forget_deleted()
        return dict(zip(places, pages, strict=True))

    def _rows_in(self, file: PayloadFile, place: Place, allocate: Allocate) -> Array:
        raw = file.read(self._table.offset(*place), allocate(self._bytes_of(place)))
        if hashlib.sha256(raw).digest() != self._table.digests[place].tobytes():
            raise DamagedError(f"level {place[1]} of page {place[0]} is not what was written")
        rows = np.frombuffer(raw, np.float32)
        return pack(self._table.tensors(torch.from_numpy(rows))).numpy() if self._is_packed else rows

    def forget_deleted(self) -> None:
        """If the scene was deleted, remove its pages, which no call could find again."""
        spool = self._runtime.spool
        if spool is None or not spool.touch(self._scene_id):
            self._runtime.pages.forget(self._scene_id)


def with_tensors(work: Callable[[], T], runtime: Runtime, call: Call | None) -> T:
    """Do work with tensors on the device's thread; on the CPU, do it on this thread, concurrent with jobs."""
    if runtime.transfer.is_cpu:
        return work()

    def finished() -> T:
        result = work()
        runtime.transfer.finish()
        return result

    return runtime.executor.run(finished, call, Cost(is_repeatable=True), waits=True, tenant=runtime.tenant)
