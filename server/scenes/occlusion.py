"""Occlusion culling of the pages of a cut: nearer pages are drawn to find hidden pages behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels.gaussians import Camera
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Delivery
from lumigrad.server.engines.detail import NONE, Cut
from lumigrad.server.engines.gaussians import GAUSSIANS, OF_LEVELS, GaussianPlan
from lumigrad.server.engines.occlusion import (
    ScreenBoxes,
    all_tiles,
    can_hide,
    least_transmittance,
    open_tiles,
    with_backdrop,
)
from lumigrad.server.storage.page_pool import CutRows
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import render_pb2

Flags = npt.NDArray[np.bool_]

# Passes run only for cuts with at least this many Gaussians per pixel.
_LEAST_PER_PIXEL = 1
# The first pass draws 1 / `_FIRST_FRACTION` of a cut's Gaussians, and each further pass `_GROWTH` times as many.
_FIRST_FRACTION = 16
_GROWTH = 2


@dataclass(frozen=True)
class Occlusion:
    """Finds hidden pages, by passes that draw the nearest pages with a backdrop behind them.

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

    def hidden(self, most_rows: int) -> Flags:
        """Return which pages of the cut no camera sees, [P].

        At most `most_rows` Gaussians are drawn at a time to find them, unless they are known from an earlier call with
        this view.
        """
        cut, pages, hidden = self.cut, self.runtime.pages, np.zeros(len(self.cut.levels), bool)
        for camera in self.plan.cameras:
            pixels = camera.width * camera.height
            if cut.rows < _LEAST_PER_PIXEL * pixels or not can_hide(camera, self.plan.settings):
                return hidden
        view = self._name(most_rows)
        known = pages.hidden(self.scene_id, view)
        if known is not None:
            return np.unpackbits(known.numpy(), count=len(hidden)).astype(bool)
        seen = np.zeros(len(cut.pages), bool)
        for index, camera in enumerate(self.plan.cameras):
            seen |= self._seen_by(camera, index, most_rows)
        hidden[cut.pages] = ~seen
        pages.keep_hidden(self.scene_id, view, torch.from_numpy(np.packbits(hidden)))
        return hidden

    def _name(self, most_rows: int) -> str:
        """Return a hash of everything that determines which pages are hidden."""
        name = hashlib.sha256(f"{self.cut.is_packed} {most_rows} {len(self.plan.cameras)} ".encode())
        for part in (self.cut.levels, self.present):
            name.update(part.tobytes())
        for index in range(len(self.plan.cameras)):
            name.update(self._spec_of_pass(index).SerializeToString(deterministic=True))
        return name.hexdigest()

    def _seen_by(self, camera: Camera, index: int, most_rows: int) -> Flags:
        """Return which pages of the cut a camera sees, [N]; exact except for the margins of boxes."""
        cut, tiles = self.cut, all_tiles(camera)
        boxes = ScreenBoxes(cut.table.bounds[cut.pages, cut.levels[cut.pages]], camera, self.plan.settings)
        seen = boxes.meet(tiles)
        # Rooms are at least 1, since a pass that hides less than its room is the last one.
        room = max(1, min(cut.rows // _FIRST_FRACTION, most_rows))
        while True:
            # Pages in front of closed tiles are drawn in the end, but cannot open a tile.
            live = np.flatnonzero(boxes.meet(tiles))
            live = live[np.argsort(boxes.near[live], kind="stable")]
            drawn = np.cumsum(cut.counts[live])
            # Pages around the camera are drawn in addition, since no backdrop can stand in front of them.
            around = int(cut.counts[live[boxes.near[live] <= boxes.nearest_backdrop]].sum())
            first = max(1, int(np.searchsorted(drawn, min(around + room, most_rows), "right")))
            # Pages behind that reach beyond the boxes of these are not hidden.
            behind = live[first:][~boxes.meet(tiles & ~boxes.covered(live[:first]))[live[first:]]]
            # A pass costs as much as drawing one Gaussian per pixel, besides its own Gaussians. What it hides counts
            # twice, because a repeated view saves it again.
            is_worth_it = 2 * cut.counts[behind].sum() > camera.width * camera.height + room
            if not is_worth_it or boxes.near[live[first]] <= boxes.nearest_backdrop:
                return seen
            depth = float(boxes.near[live[first]])
            nearest = cut.pages[live[:first]]
            nearest = nearest[self.present[nearest]]
            if not len(nearest):
                return seen
            tiles &= self._open(nearest, depth, camera, index)
            hidden = seen & (boxes.near >= depth) & ~boxes.meet(tiles)
            seen &= ~hidden
            # The next pass takes longer, so it is worth its time only if this pass was.
            if cut.counts[hidden].sum() < room or room == most_rows:
                return seen
            room = min(room * _GROWTH, most_rows)

    def _open(self, nearest: npt.NDArray[np.int64], depth: float, camera: Camera, index: int) -> Flags:
        """Return the tiles that the `nearest` pages leave open in front of a depth."""
        levels = np.full_like(self.cut.levels, NONE)
        levels[nearest] = self.cut.levels[nearest]
        rows = self.gather(replace(self.cut, levels=levels, has_backdrop=True))
        try:
            return np.asarray(self._drawn(rows, depth, camera, index))
        finally:
            self.release()

    def _drawn(self, rows: CutRows, depth: float, camera: Camera, index: int) -> Array:
        runtime, call = self.runtime, self.call
        means = rows.tensors["means"]
        plan = self._plan_of_pass(len(means), index)

        def draw() -> Delivery[Array]:
            tensors = with_backdrop(rows.tensors, camera, plan.settings, depth)
            check = runtime.transfer.paced(call.check)
            forward = GAUSSIANS.forward(plan, tensors, plan.outputs, retain=False, before_view=check)
            tiles = open_tiles(forward.outputs["color"][0, :, :, 0])
            runtime.transfer.finish()
            call.times.add_kernel(forward.times.milliseconds())
            download = runtime.transfer.start_download([tiles])
            return Delivery(download.arrays[0], download)

        # The pool counts the rows, to which the pass adds a colour each.
        colors = means.element_size() * len(means)
        drawing = plan.forward_bytes(plan.outputs, retain=False, device=runtime.transfer.device)
        cost = Cost(bytes=colors + drawing, is_repeatable=True)
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
        spec = render_pb2.RenderSpec(cameras=[self.spec.cameras[index]], outputs=["color"])
        spec.gaussians.CopyFrom(self.spec.gaussians)
        for name in (*OF_LEVELS, "background", "sh_degree"):
            spec.gaussians.ClearField(name)
        spec.gaussians.transmittance_min = least_transmittance(self.plan.settings)
        return spec
