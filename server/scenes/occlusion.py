"""Occlusion culling of the pages of a cut: nearer pages are drawn to find hidden pages among them and behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels.gaussians import VISITS, Camera
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Delivery
from lumigrad.server.engines.detail import NONE, Cut
from lumigrad.server.engines.gaussians import GAUSSIANS, OF_LEVELS, GaussianPlan
from lumigrad.server.engines.occlusion import ScreenBoxes, all_cells, can_hide
from lumigrad.server.storage.page_pool import CutRows
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import render_pb2

Flags = npt.NDArray[np.bool_]
Pages = npt.NDArray[np.int64]

# Passes run only for cuts with at least this many Gaussians per pixel.
_LEAST_PER_PIXEL = 1
# The first pass draws 1 / `_FIRST_FRACTION` of a cut's Gaussians, and each further pass `_GROWTH` times as many new
# ones.
_FIRST_FRACTION = 16
_GROWTH = 2
# Outputs of a pass besides those for culling: depths of closers, and a colour, with which the kernels are fastest.
_OUTPUTS = ("color", "depths")


@dataclass(frozen=True)
class Hidden:
    """The hidden pages of a view.

    Attributes:
        by_search: [P], pages that a search has found.
        by_image: [P], these and all others that an image does not need; None if that is not known.
        is_repeated: Whether the view is a repeated one, whose image should tell `by_image`.
    """

    by_search: Flags
    by_image: Flags | None = None
    is_repeated: bool = False

    def to_bits(self) -> npt.NDArray[np.uint8]:
        """Return both as bits."""
        return np.concatenate([np.packbits(flags) for flags in (self.by_search, self.by_image) if flags is not None])

    @staticmethod
    def of_bits(bits: npt.NDArray[np.uint8], count: int) -> Hidden:
        """Return what `to_bits` was called on, for a repeated view; `count` is P."""
        parts = bits.reshape(-1, -(-count // 8))
        search, *image = (np.unpackbits(part, count=count).astype(bool) for part in parts)
        return Hidden(search, image[0] if image else None, is_repeated=True)


@dataclass(frozen=True)
class Occlusion:
    """Finds hidden pages, by passes that draw the nearest pages.

    Attributes:
        scene_id: The name of the scene; `cut` has its pages in view.
        present: [P], the pages in view that can be drawn.
        spec: The request; `plan` is its checked form for the whole cut.
        gather: Returns the rows of a cut, whose room is held until `release` is called.
    """

    scene_id: str
    cut: Cut
    present: Flags
    spec: render_pb2.RenderSpec
    plan: GaussianPlan
    runtime: Runtime
    call: Call
    gather: Callable[[Cut], CutRows]
    release: Callable[[], None]

    def hidden(self, most_rows: int) -> Hidden | None:
        """Return which pages no camera sees, [P]; None if none can be hidden, or the view has too few Gaussians.

        At most `most_rows` Gaussians are drawn at a time to find them, unless they are known from an earlier call with
        this view.
        """
        cut = self.cut
        for camera in self.plan.cameras:
            pixels = camera.width * camera.height
            if cut.rows < _LEAST_PER_PIXEL * pixels or not can_hide(camera, self.plan.settings):
                return None
        known = self.runtime.pages.hidden(self.scene_id, self._name(most_rows))
        if known is not None:
            return Hidden.of_bits(known.numpy(), len(cut.levels))
        seen, passes = np.zeros(len(cut.pages), bool), 0
        for index, camera in enumerate(self.plan.cameras):
            by_camera, drawn = self._seen_by(camera, index, most_rows)
            seen |= by_camera
            passes += drawn
        pages = np.zeros(len(cut.levels), bool)
        pages[cut.pages] = ~seen
        # Images are not looked at where no pass is worth it.
        found = Hidden(pages, None if passes else pages)
        self.keep(found, most_rows)
        return found

    def keep(self, hidden: Hidden, most_rows: int) -> None:
        """Keep what is hidden, for later calls with this view; `most_rows` as for `hidden`."""
        self.runtime.pages.keep_hidden(self.scene_id, self._name(most_rows), torch.from_numpy(hidden.to_bits()))

    def _name(self, most_rows: int) -> str:
        """Return a hash of everything that determines which pages are hidden."""
        name = hashlib.sha256(f"{self.cut.is_packed} {most_rows} {len(self.plan.cameras)} ".encode())
        for part in (self.cut.levels, self.present):
            name.update(part.tobytes())
        for index in range(len(self.plan.cameras)):
            name.update(self._spec_of_pass(index).SerializeToString(deterministic=True))
        return name.hexdigest()

    def _seen_by(self, camera: Camera, index: int, most_rows: int) -> tuple[Flags, int]:
        """Return which pages of the cut a camera may see, [N], and the number of passes that found this."""
        cut, counts, pixels = self.cut, self.cut.counts, camera.width * camera.height
        boxes = ScreenBoxes(cut.table.bounds[cut.pages, cut.levels[cut.pages]], camera, self.plan.settings)
        seen = boxes.meet(all_cells(camera))
        # Pages that are empty or not present are never drawn, but may be hidden.
        order = np.argsort(boxes.near, kind="stable")
        order = order[self.present[cut.pages[order]] & (counts[order] > 0)]
        is_drawn = np.zeros(len(seen), bool)
        room, passes = max(1, cut.rows // _FIRST_FRACTION), 0
        # The part of what could be hidden that the last pass has hidden.
        share = 1.0
        while True:
            drawn = np.flatnonzero(is_drawn & seen)
            rest = order[~is_drawn[order] & seen[order]]
            # A pass draws at least one page.
            fits = np.searchsorted(np.cumsum(counts[rest]), min(room, most_rows - counts[drawn].sum()), "right")
            new = rest[: max(not len(drawn), int(fits))]
            pages = np.sort(np.append(drawn, new))
            # Pages that reach beyond the boxes of the nearer ones are not hidden.
            open_cells = all_cells(camera) & ~boxes.covered(pages)
            behind = np.flatnonzero(seen & ~is_drawn & ~boxes.meet(open_cells))
            behind = np.setdiff1d(behind, new)
            # A pass costs as much as drawing one Gaussian per pixel, besides its own Gaussians. What it hides counts
            # twice, because a repeated view saves it again; half of its new Gaussians are usually hidden.
            gain = 2 * share * counts[behind].sum() + counts[new].sum()
            if not len(new) or gain <= pixels + counts[pages].sum():
                return seen, passes
            passes += 1
            seen &= self._not_hidden(pages, boxes, index)
            # Pages around the camera may be behind it.
            if (boxes.near[new] > 0).any():
                share = 1 - counts[behind][seen[behind]].sum() / max(1, counts[behind].sum())
            is_drawn[new] = True
            room *= _GROWTH

    def _not_hidden(self, pages: Pages, boxes: ScreenBoxes, index: int) -> Flags:
        """Draw some pages, and return which of all pages may be seen, [N]."""
        levels = np.full_like(self.cut.levels, NONE)
        levels[self.cut.pages[pages]] = self.cut.levels[self.cut.pages[pages]]
        try:
            rows = self.gather(replace(self.cut, levels=levels, has_colors=False))
            visited, closing = self._drawn(rows, index)
        finally:
            self.release()
        seen = ~boxes.behind(closing.astype(np.float64))
        counts = self.cut.counts[pages]
        seen[pages] = visited_pages(visited, counts)
        return seen

    def _drawn(self, rows: CutRows, index: int) -> tuple[Array, Array]:
        """Return which of the rows are visited, [N], and the depths at which cells are closed, [rows, columns]."""
        runtime, call = self.runtime, self.call
        # Any colour will do.
        tensors = {**rows.tensors, "colors": rows.tensors["opacities"][:, None]}
        plan = self._plan_of_pass(len(rows.tensors["means"]), index)

        def draw() -> Delivery[tuple[Array, Array]]:
            check = runtime.transfer.paced(call.check)
            forward = GAUSSIANS.forward(plan, tensors, (*_OUTPUTS, *VISITS), retain=False, before_view=check)
            depths, closers = forward.outputs["depths"][0], forward.outputs["closers"][0]
            closing = torch.where(closers >= 0, depths[closers.clamp(min=0).long()], torch.inf)
            runtime.transfer.finish()
            call.times.add_kernel(forward.times.milliseconds())
            download = runtime.transfer.start_download([forward.outputs["visited"][0], closing])
            return Delivery((download.arrays[0], download.arrays[1]), download)

        # The pool counts the rows.
        drawing = plan.forward_bytes((*_OUTPUTS, *VISITS), retain=False, device=runtime.transfer.device)
        cost = Cost(bytes=drawing, is_repeatable=True)
        runtime.memory.check(cost)
        return runtime.executor.deliver(draw, call, cost)

    def _plan_of_pass(self, count: int, index: int) -> GaussianPlan:
        """Return the plan that draws `count` Gaussians, with one colour channel, for one camera."""
        shapes = {"means": [count, 3], "quats": [count, 4], "scales": [count, 3], "opacities": [count]}
        spec = self._spec_of_pass(index)
        plan = GAUSSIANS.plan(spec, {**shapes, "colors": [count, 1]}, self.runtime.limits, self.plan.field)
        assert isinstance(plan, GaussianPlan)
        return plan

    def _spec_of_pass(self, index: int) -> render_pb2.RenderSpec:
        """Return the request for one camera, without settings that do not affect which Gaussians it sees."""
        spec = render_pb2.RenderSpec(cameras=[self.spec.cameras[index]], outputs=_OUTPUTS)
        spec.gaussians.CopyFrom(self.spec.gaussians)
        for name in (*OF_LEVELS, "background", "sh_degree"):
            spec.gaussians.ClearField(name)
        return spec


def visited_pages(visited: npt.NDArray[np.uint8], counts: npt.NDArray[np.int64]) -> Flags:
    """Return which pages with `counts` [N] of consecutive rows have a visited one, [N]."""
    sums = np.concatenate([[0], np.cumsum(visited, dtype=np.int64)])
    ends = np.cumsum(counts)
    return np.asarray(sums[ends] > sums[ends - counts])
