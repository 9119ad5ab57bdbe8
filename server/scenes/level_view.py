"""A scene with levels as one call draws it: chooses a cut, and gathers its rows from pages in memory and the spool."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.call import Allocate, Call, held
from lumigrad.server.core.errors import BusyError, SceneNotFoundError
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.base import Sized
from lumigrad.server.engines.cameras import gaussian_cameras
from lumigrad.server.engines.content import Outline
from lumigrad.server.engines.detail import NONE, Cut, Detail, chosen
from lumigrad.server.engines.gaussians import KIND, OF_LEVELS, GaussianRules
from lumigrad.server.engines.requests import Plan, check_cameras
from lumigrad.server.scenes.clouds import CloudContent, KeptTensors
from lumigrad.server.scenes.levels import LevelsContent
from lumigrad.server.storage.page_pool import CutRows
from lumigrad.server.storage.spool_files import DamagedError, PayloadFile
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import render_pb2

T = TypeVar("T")
# [P] the level of each page.
Levels = npt.NDArray[np.int8]
# A page and its level.
Place = tuple[int, int]
# Pages that are read or copied without a look at the call, and about how many bytes one read has.
_STEP = 64
_READ_BYTES = 4 << 20
# Outputs with a row for each Gaussian of a scene, or with its number.
_OF_ROWS = ("ids", "radii", "means2d", "depths", "conics", "projected_opacities")
# Reads that may wait while others are added for later calls.
_MOST_AHEAD = 16
_RULES = GaussianRules()


class LevelView:
    """The part of a scene with levels that a call draws: for the engine, a cloud of Gaussians."""

    kind = KIND

    def __init__(
        self, scene: StoredScene, spec: render_pb2.RenderSpec, runtime: Runtime, call: Call, field: str
    ) -> None:
        """Check what other scenes allow, and choose the cut; `field` is the path of the spec.

        BusyError: the pages in view are too many, however coarse they are drawn.
        """
        assert isinstance(scene.content, LevelsContent)
        self._table = scene.content.table
        self._scene_id = scene.scene_id
        self._runtime, self._call = runtime, call
        self.reference = scene.reference
        # Pages that were in memory when the cut was chosen, if the call does not wait for others.
        self._pages: dict[Place, torch.Tensor] = {}
        self._rows: CutRows | None = None
        _check(spec, runtime.limits, field)
        self.cut = self._chosen(spec, field)
        self.outline = Outline(self._table.shapes(self.cut.rows))

    def receive(self, _: PayloadReader) -> None:
        """Gather the rows, and wait for room and for those that have to be read; raises what `Call.check` raises."""
        self._runtime.pages.begin_drawing(self, self.cut.rows * self._table.row_bytes, self._call)
        self._call.on_end(self.drawn)
        try:
            self._rows = self._gathered()
        except BaseException:
            self.drawn()
            raise
        finally:
            self._forget_deleted()

    def _gathered(self) -> CutRows:
        runtime, call = self._runtime, self._call
        rows = self._run(lambda: runtime.pages.cut(self._scene_id, self.cut, runtime.transfer.device), call)
        places = list(zip(self.cut.pages.tolist(), self.cut.levels[self.cut.pages].tolist(), strict=True))
        file: PayloadFile | None = None
        with held(rows.lock, call), call.times.stage("pages"):
            while not rows.is_complete:
                call.check()
                left = places[rows.filled :]
                pages = self._in_memory(left)
                if not pages:
                    file, missing = file or self._opened(), self._missing(left)
                    read = partial(self._read, file, missing)
                    self._pages |= runtime.reads.wait_for((self._scene_id, *missing), read, call)
                    continue
                tensors = [self._table.tensors(page) for page in pages]
                self._run(partial(rows.add, rows.filled, tensors), call)
        self._pages.clear()
        return rows

    def load(self) -> CloudContent:
        """The cloud, on the device."""
        assert self._rows is not None
        return CloudContent.of(_RULES, KeptTensors.of(self._rows.tensors))

    @property
    def parts(self) -> Sequence[Sized]:
        """The rows that a forward state refers to."""
        return () if self._rows is None else (self._rows,)

    def release(self) -> None:
        """Let go of the rows, which another call may evict."""
        self._rows = None
        self.drawn()

    def drawn(self) -> None:
        """Give back the room that `receive` has waited for; does nothing the second time."""
        if self._runtime.pages.end_drawing(self):
            self._call.off_end(self.drawn)

    def _chosen(self, spec: render_pb2.RenderSpec, field: str) -> Cut:
        table, settings = self._table, spec.gaussians
        detail = Detail.of(settings, self._runtime.pages.room_rows(table))
        require(detail.error_px > 0, f"{field}.gaussians.max_error_px", "a number of pixels > 0", detail.error_px)
        levels, errors, rows = chosen(table, gaussian_cameras(spec, field), detail)
        if rows > detail.most_rows:
            what = (
                f"the pages in view have {rows} Gaussians at their coarsest, of which {detail.most_rows} may be drawn"
            )
            raise BusyError(f"{what} (max_gaussians, --scene-mib)", None)
        wanted = levels.copy()
        if settings.HasField("wait") and not settings.wait:
            levels = self._present(wanted)
        pages = np.flatnonzero(levels >= 0)
        drawn = errors[pages, levels[pages]]
        in_view = np.flatnonzero(wanted >= 0)
        report = render_pb2.DrawnLevels(
            counts=np.bincount(levels[pages], table.counts[pages, levels[pages]], table.counts.shape[1]).astype(int),
            error_px=max(drawn, default=0.0),
            coarse_pages=int((errors[in_view, wanted[in_view]] > detail.error_px).sum()),
            late_pages=int((levels != wanted).sum()),
            missing_pages=len(in_view) - len(pages),
        )
        return Cut(table, levels, report)

    def _present(self, wanted: Levels) -> Levels:
        """The levels that are in memory, or the next coarser ones; has the others read."""
        runtime = self._runtime
        levels: Levels = wanted.copy()
        late: list[Place] = []
        for page in np.flatnonzero(wanted >= 0).tolist():
            best = int(wanted[page])
            levels[page] = NONE
            for level in range(best, self._table.counts.shape[1]):
                found = runtime.pages.page(self._scene_id, page, level)
                if found is not None:
                    self._pages[page, level] = found
                    levels[page] = level
                    break
            if levels[page] != best:
                late.append((page, best))
        file = self._opened() if late else None
        while file is not None and (missing := self._missing(late)):
            if not runtime.reads.begin((self._scene_id, *missing), partial(self._read, file, missing), _MOST_AHEAD):
                break
            late = late[late.index(missing[-1]) + 1 :]
        return levels

    def _in_memory(self, places: Sequence[Place]) -> list[torch.Tensor]:
        """The first pages at these places, as far as they are in memory, some at a time."""
        found = []
        for place in places[:_STEP]:
            page = self._pages.pop(place, None)
            page = self._runtime.pages.page(self._scene_id, *place) if page is None else page
            if page is None:
                break
            found.append(page)
        return found

    def _missing(self, places: Sequence[Place]) -> list[Place]:
        """The first places of which the rows are not in memory: so many that one read takes little time."""
        missing: list[Place] = []
        nbytes = 0
        for place in places:
            if nbytes > _READ_BYTES or len(missing) == _STEP:
                break
            if place not in self._pages and self._runtime.pages.page(self._scene_id, *place) is None:
                missing.append(place)
                nbytes += self._bytes_of(place)
        return missing

    def _bytes_of(self, place: Place) -> int:
        return int(self._table.counts[place]) * self._table.row_bytes

    def _opened(self) -> PayloadFile:
        """The file of the rows, which stays readable until the call ends, even if the scene is deleted."""
        spool = self._runtime.spool
        file = None if spool is None else spool.open_levels(self._scene_id)
        if file is None:
            raise SceneNotFoundError(self._scene_id)
        return file

    def _read(self, file: PayloadFile, places: Sequence[Place], allocate: Allocate) -> dict[Place, torch.Tensor]:
        """Read pages, on the thread of the tenant's reads."""
        runtime = self._runtime
        try:
            arrays = [self._rows_in(file, place, allocate) for place in places]
        except DamagedError as error:
            assert runtime.spool is not None
            runtime.spool.damaged(self._scene_id, error)
            raise SceneNotFoundError(self._scene_id) from error
        pages = self._run(lambda: [runtime.transfer.upload(array, dtypes.FLOAT32) for array in arrays], None)
        for place, page in zip(places, pages, strict=True):
            runtime.pages.keep_page(self._scene_id, *place, page)
        self._forget_deleted()
        return dict(zip(places, pages, strict=True))

    def _forget_deleted(self) -> None:
        """Remove what was kept of a scene since it was deleted, which nobody would find again."""
        spool = self._runtime.spool
        if spool is None or not spool.touch(self._scene_id):
            self._runtime.pages.forget(self._scene_id)

    def _rows_in(self, file: PayloadFile, place: Place, allocate: Allocate) -> Array:
        raw = file.read(self._table.offset(*place), allocate(self._bytes_of(place)))
        if hashlib.sha256(raw).digest() != self._table.digests[place].tobytes():
            raise DamagedError(f"level {place[1]} of page {place[0]} is not what was written")
        return np.frombuffer(raw, np.float32)

    def _run(self, work: Callable[[], T], call: Call | None) -> T:
        """Do work with tensors: on the CPU here, beside the jobs of others."""
        runtime = self._runtime
        if runtime.transfer.is_cpu:
            return work()

        def finished() -> T:
            result = work()
            runtime.transfer.finish()
            return result

        return runtime.executor.run(finished, call, Cost(is_repeatable=True), waits=True, tenant=runtime.tenant)


def plain(spec: render_pb2.RenderSpec) -> render_pb2.RenderSpec:
    """The spec without the settings that choose a cut."""
    copy = render_pb2.RenderSpec()
    copy.CopyFrom(spec)
    for name in OF_LEVELS:
        copy.gaussians.ClearField(name)
    return copy


def of_pixels(plan: Plan) -> Plan:
    """The plan for a cut: alone, since other calls have other cuts, and without values for each of its Gaussians."""
    upstream = {name: shape for name, shape in plan.upstream_shapes.items() if name not in _OF_ROWS}
    sizes = {name: size for name, size in plan.gradient_sizes.items() if not name.startswith("means2d")}
    return replace(plan, kind=None, upstream_shapes=upstream, gradient_sizes=sizes)


def _check(spec: render_pb2.RenderSpec, limits: Limits, field: str) -> None:
    """Check what scenes with levels do not have, before cameras are read."""
    check_cameras(spec.cameras, limits, f"{field}.cameras")
    for name in spec.outputs:
        require(name not in _OF_ROWS, f"{field}.outputs", "images without ids for a scene with levels", name)
    require(not spec.tensors, f"{field}.tensors", "none for a scene with levels", len(spec.tensors))
    transforms = spec.gaussians.transforms
    require(not transforms, f"{field}.gaussians.transforms", "none for a scene with levels", len(transforms))
