"""A scene with levels as one call draws it: the cut for the call, and its rows, gathered from pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lumigrad.kernels.gaussians import VISITS
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call, held
from lumigrad.server.core.errors import BusyError
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.engines.base import Sized
from lumigrad.server.engines.cameras import gaussian_cameras
from lumigrad.server.engines.content import Outline
from lumigrad.server.engines.detail import NONE, Cut, Detail, Levels, chosen, fitted, rows_of
from lumigrad.server.engines.gaussians import KIND, OF_LEVELS, GaussianPlan, GaussianRules
from lumigrad.server.engines.requests import Plan, check_cameras
from lumigrad.server.engines.runner import Source
from lumigrad.server.scenes.clouds import CloudContent, KeptTensors
from lumigrad.server.scenes.level_pages import LevelPages, with_tensors
from lumigrad.server.scenes.levels import LevelsContent
from lumigrad.server.scenes.occlusion import Hidden, Occlusion, visited_pages
from lumigrad.server.storage.page_pool import CutRows
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import gaussians_pb2, render_pb2

# Semantics that draw quaternions unnormalised; packing would normalise them.
_OF_ANY_LENGTH = (gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_DEPTH, gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT)
# Outputs with a row for each Gaussian of a scene, or with numbers of Gaussians.
_OF_ROWS = ("ids", "radii", "means2d", "depths", "conics", "projected_opacities")
_RULES = GaussianRules()


class LevelView(Source):
    """The part of a scene with levels that a call draws: for the engine, a cloud of Gaussians."""

    kind = KIND

    def __init__(
        self,
        scene: StoredScene,
        spec: render_pb2.RenderSpec,
        runtime: Runtime,
        call: Call,
        field: str,
        *,
        is_differentiated: bool,
    ) -> None:
        """Refuse what scenes with levels do not support, and find the pages in view; `field` is the path of the spec.

        Differentiated calls draw float32, and other calls draw packed pages.
        """
        assert isinstance(scene.content, LevelsContent)
        self._table = table = scene.content.table
        self._scene_id = scene.scene_id
        self._runtime, self._call = runtime, call
        self.reference = scene.reference
        # The rows to draw, and the rows whose room is held until `drawn`.
        self._rows: CutRows | None = None
        self._gathering: CutRows | None = None
        _check(spec, runtime.limits, field)
        settings = spec.gaussians
        is_packed = not is_differentiated and settings.semantics not in _OF_ANY_LENGTH
        self._pages = LevelPages(scene.scene_id, table, runtime, is_packed=is_packed)
        self._waits = not settings.HasField("wait") or settings.wait
        self._detail = detail = Detail.of(settings, runtime.pages.room_rows(table))
        require(detail.error_px > 0, f"{field}.gaussians.max_error_px", "a number of pixels > 0", detail.error_px)
        # The search for hidden pages, and what it found if the image can tell more.
        self._search: tuple[Occlusion, Hidden] | None = None
        # The levels to draw, [P], and the errors of all levels, [P, L].
        self._wanted, self._errors = chosen(table, gaussian_cameras(spec, field), detail)
        self.cut = Cut(table, self._wanted, render_pb2.DrawnLevels(), is_packed)

    @property
    def outline(self) -> Outline:
        """The facts that requests are checked against."""
        return Outline(self.cut.shapes)

    def choose(self, spec: render_pb2.RenderSpec, plan: GaussianPlan) -> Cut:
        """Leave out pages hidden by nearer ones, and choose a cut that fits.

        Some of the nearer pages are read and drawn for this. `spec` and `plan` are for all pages in view.

        Raises:
            BusyError: The visible pages have too many Gaussians even at their coarsest level.
            DeadlineError, CancelledError: The call has ended.
        """
        try:
            self.cut = self._chosen(spec, plan)
        except BaseException:
            self._pages.close()
            raise
        # The call may end before `gather`.
        self._call.on_end(self._pages.forget_deleted)
        return self.cut

    def _chosen(self, spec: render_pb2.RenderSpec, plan: GaussianPlan) -> Cut:
        detail, levels = self._detail, self._available()
        view = replace(self.cut, levels=np.where(levels >= 0, levels, self._wanted))
        calls = self._runtime, self._call, self._gathered, self.drawn
        occlusion = Occlusion(self._scene_id, view, levels >= 0, spec, plan, *calls)
        hidden = occlusion.hidden(detail.most_rows)
        seen = self._wanted if hidden is None else np.where(hidden.by_search, NONE, self._wanted).astype(np.int8)
        self._wanted = fitted(self._table, seen, plan.cameras, detail)
        # Pages that have arrived meanwhile may be finer than those that were drawn, and hide less.
        is_same = np.array_equal(self._wanted, seen)
        levels = np.where(seen >= 0, levels, NONE).astype(np.int8) if is_same else self._available()
        rows = rows_of(self._table, self._wanted)
        if rows > detail.most_rows:
            what = f"the pages in view have {rows} Gaussians at their coarsest, of which {detail.most_rows}"
            raise BusyError(f"{what} may be drawn (max_gaussians, --scene-mib)", None)
        cut = replace(self.cut, levels=levels, report=self._report(levels))
        is_searched = np.array_equal(levels, np.where(seen >= 0, view.levels, NONE))
        is_late = not np.array_equal(levels, self._wanted)
        # Sums of gradients must not depend on whether an image is known.
        if hidden is None or not is_searched or is_late or not cut.is_packed:
            return cut
        if hidden.by_image is not None:
            # The report is the same as that of the first call.
            self._wanted = np.where(hidden.by_image, NONE, levels).astype(np.int8)
            return replace(cut, levels=self._wanted)
        if len(plan.cameras) > 1 or not hidden.is_repeated:
            return cut
        self._search = occlusion, hidden
        return replace(cut, more_outputs=VISITS)

    def note(self, more: Mapping[str, Array]) -> None:
        """Keep which pages an image of the cut does not need, if `more` tells."""
        if self._search is None:
            return
        occlusion, hidden = self._search
        needed = np.zeros(len(self.cut.levels), bool)
        needed[self.cut.pages] = visited_pages(more["visited"][0], self.cut.counts)
        occlusion.keep(replace(hidden, by_image=~needed), self._detail.most_rows)

    def gather(self) -> None:
        """Gather the rows, waiting for room and for reads; raises what `Call.check` raises.

        Rows that are drawn coarser because they are not in memory are read for later calls. The room is held until
        `drawn`: a call that holds room must not wait for more.
        """
        try:
            late = np.flatnonzero(self.cut.levels != self._wanted)
            if len(late):
                self._pages.read_ahead(list(zip(late.tolist(), self._wanted[late].tolist(), strict=True)))
            self._rows = self._gathered(self.cut)
        finally:
            self._pages.close()
            self._call.off_end(self._pages.forget_deleted)

    def load(self) -> CloudContent:
        """Return the cloud, on the device."""
        assert self._rows is not None
        return CloudContent.of(_RULES, KeptTensors.of(self._rows.tensors))

    @property
    def parts(self) -> Sequence[Sized]:
        """The rows, which a forward state refers to."""
        return () if self._rows is None else (self._rows,)

    def drawn(self) -> None:
        """Release the room that `gather` has waited for; does nothing the second time."""
        rows, self._gathering = self._gathering, None
        if self._runtime.pages.end_drawing(self, rows):
            self._call.off_end(self.drawn)

    def _available(self) -> Levels:
        """Return the levels to draw, [P]; without waiting, those in memory or the next coarser ones."""
        if self._waits:
            return self._wanted
        levels: Levels = self._wanted.copy()
        coarsest = self._table.counts.shape[1]
        for page in np.flatnonzero(levels >= 0).tolist():
            finer = range(int(levels[page]), coarsest)
            levels[page] = next((level for level in finer if self._pages.find((page, level))), NONE)
        return levels

    def _report(self, levels: Levels) -> render_pb2.DrawnLevels:
        """Return the report of an image drawn with `levels`, [P], in place of the wanted levels."""
        wanted, counts, errors = self._wanted, self._table.counts, self._errors
        in_view, pages = np.flatnonzero(wanted >= 0), np.flatnonzero(levels >= 0)
        return render_pb2.DrawnLevels(
            counts=np.bincount(levels[pages], counts[pages, levels[pages]], counts.shape[1]).astype(int),
            error_px=max(errors[pages, levels[pages]], default=0.0),
            coarse_pages=int((errors[in_view, wanted[in_view]] > self._detail.error_px).sum()),
            late_pages=int((levels != wanted).sum()),
            missing_pages=len(in_view) - len(pages),
        )

    def _gathered(self, cut: Cut) -> CutRows:
        """Return the rows of a cut, and hold their room until `drawn`."""
        self._runtime.pages.begin_drawing(self, cut.bytes, self._call)
        self._call.on_end(self.drawn)
        try:
            return self._filled(cut)
        except BaseException:
            self.drawn()
            raise

    def _filled(self, cut: Cut) -> CutRows:
        runtime, call = self._runtime, self._call
        rows = with_tensors(lambda: runtime.pages.cut(self._scene_id, cut, runtime.transfer.device), runtime, call)
        places = list(zip(cut.pages.tolist(), cut.levels[cut.pages].tolist(), strict=True))
        self._gathering = rows
        with held(rows.lock, call), call.times.stage("pages"):
            while not rows.is_complete:
                call.check()
                left = places[rows.filled :]
                pages = self._pages.take(left, call)
                if pages:
                    with_tensors(partial(rows.add, rows.filled, pages), runtime, call)
                else:
                    self._pages.wait_for(left, call)
        return rows


def plain(spec: render_pb2.RenderSpec) -> render_pb2.RenderSpec:
    """Return the spec without the settings that choose a cut."""
    copy = render_pb2.RenderSpec()
    copy.CopyFrom(spec)
    for name in OF_LEVELS:
        copy.gaussians.ClearField(name)
    return copy


def of_pixels(plan: Plan) -> Plan:
    """Return the plan of a cut, without outputs for each Gaussian. It runs alone, since other calls have other cuts."""
    upstream = {name: shape for name, shape in plan.upstream_shapes.items() if name not in _OF_ROWS}
    sizes = {name: size for name, size in plan.gradient_sizes.items() if not name.startswith("means2d")}
    return replace(plan, kind=None, upstream_shapes=upstream, gradient_sizes=sizes)


def _check(spec: render_pb2.RenderSpec, limits: Limits, field: str) -> None:
    """Refuse what scenes with levels do not support, before cameras are read."""
    check_cameras(spec.cameras, limits, f"{field}.cameras")
    for name in spec.outputs:
        require(name not in _OF_ROWS, f"{field}.outputs", "images without ids for a scene with levels", name)
    require(not spec.tensors, f"{field}.tensors", "none for a scene with levels", len(spec.tensors))
    transforms = spec.gaussians.transforms
    require(not transforms, f"{field}.gaussians.transforms", "none for a scene with levels", len(transforms))
