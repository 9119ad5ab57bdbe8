"""The pages of a tenant's scenes that are in memory, and the cuts that are made from them."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.gaussians.packed_rows import unpack
from lumigrad.server.core.call import Call
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.engines.content import Tensors
from lumigrad.server.engines.detail import Cut
from lumigrad.server.engines.levels import LevelTable
from lumigrad.server.storage.lru import LruStore

# Half of the memory is for the cut being drawn, and half for pages.
_CUT_FRACTION = 2
# Memory of a page besides its rows, measured as 1.5 KB for each of 50,000 pages of one Gaussian.
OVERHEAD_BYTES = 1536
# The number of views whose hidden pages are kept: those of the cameras of a large capture, which come again and again.
_MOST_VIEWS = 1024
# How often a call that waits for room checks whether it has ended.
_LOOK_SECONDS = 0.05


class CutRows:
    """The rows of a cut in one piece on the device. A call copies them from pages, and another call may continue.

    Attributes:
        name: The cut's name in the pool.
        tensors: The tensors, by the names of a cloud's tensors.
        filled: The number of pages that are complete.
        lock: Held by the call that fills the rows.
    """

    def __init__(self, name: str, cut: Cut, device: torch.device) -> None:
        self.name = name
        self.tensors: Tensors = {name: empty(shape, torch.float32, device) for name, shape in cut.shapes.items()}
        self.filled = 0
        self.lock = threading.Lock()
        self._is_packed = cut.is_packed
        self._counts = cut.counts

    @property
    def bytes(self) -> int:
        """The size of all rows."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def is_complete(self) -> bool:
        """Whether all pages are copied."""
        return self.filled == len(self._counts)

    def add(self, filled: int, pages: Sequence[torch.Tensor]) -> None:
        """Copy or unpack the pages after the first `filled`; on the device's thread, or any thread for a CPU.

        May be repeated after a failure.
        """
        counts = self._counts[filled : filled + len(pages)].tolist()
        start = int(self._counts[:filled].sum())
        unpack(list(zip(pages, counts, strict=True)), self.tensors, start, is_packed=self._is_packed)
        self.filled = filled + len(pages)


class PagePool(LruStore[torch.Tensor | CutRows]):
    """Pages and cuts of one tenant, by name. They share the memory of stored scenes, and count towards its budget.

    A page is in memory as float32, [bytes / 4], packed, [bytes] uint8, or both. The pool also keeps which pages are
    hidden in the last views, one or two bits for each page: finding them takes about as long as drawing the others.

    A cut serves only one view, and can be copied from pages again: once it is drawn, it is evicted before any page.
    """

    # Neither pages nor cuts count as scenes.
    count = 0

    def __init__(self, limit_bytes: int, budget: Budget, metrics: Metrics) -> None:
        self._limit_bytes = limit_bytes
        self._metrics = metrics
        # The bytes of cuts being drawn, by drawer: they stay in memory even if they are evicted here.
        self._drawn: dict[Hashable, int] = {}
        # The names of the last views whose hidden pages were kept, the least recently used first.
        self._views: OrderedDict[str, None] = OrderedDict()
        # Calls that wait for room, in order of arrival.
        self._waiting: deque[Hashable] = deque()
        self._changed = threading.Condition()
        super().__init__(limit_bytes, 1 << 62, budget)

    def room_rows(self, table: LevelTable) -> int:
        """Return the number of Gaussians for which a cut has room."""
        return self._limit_bytes // _CUT_FRACTION // table.row_bytes

    def begin_drawing(self, drawer: Hashable, nbytes: int, call: Call) -> None:
        """Wait until a cut has room besides the cuts being drawn, first come, first served.

        Raises what `Call.check` raises. A waiting drawer must not draw another cut, for whose room an earlier drawer
        may wait.
        """
        with self._changed:
            self._waiting.append(drawer)
            try:
                while self._waiting[0] is not drawer or not self._has_room(nbytes):
                    call.turn.give()
                    call.check()
                    self._changed.wait(_LOOK_SECONDS)
                self._drawn[drawer] = nbytes
            finally:
                self._waiting.remove(drawer)
                self._changed.notify_all()

    def _has_room(self, nbytes: int) -> bool:
        return not self._drawn or sum(self._drawn.values()) + nbytes <= self._limit_bytes

    def end_drawing(self, drawer: Hashable, rows: CutRows | None = None) -> bool:
        """Release the room of a cut, and let its rows, if any, be evicted; returns False if that was done before."""
        if rows is not None:
            with self._lock:
                self._cache.drop_next(rows.name)
        with self._changed:
            self._changed.notify_all()
            return self._drawn.pop(drawer, None) is not None

    def page(self, scene_id: str, page: int, level: int, *, is_packed: bool) -> torch.Tensor | None:
        """Return the rows of one level of a page, if they are in memory in this form."""
        found = self._find(_page_name(scene_id, page, level, is_packed))
        assert not isinstance(found, CutRows)
        return found

    def hidden(self, scene_id: str, view: str) -> torch.Tensor | None:
        """Return which pages are hidden in a view, bits in bytes, if that is known."""
        name = f"{scene_id}/hidden/{view}"
        with self._lock:
            found = self._cache.get(name)
            if found is not None:
                self._use_view(name)
        assert not isinstance(found, CutRows)
        return found

    def keep_hidden(self, scene_id: str, view: str, hidden: torch.Tensor) -> None:
        """Store which pages are hidden in a view, if there is room. Only the last views are kept."""
        name = f"{scene_id}/hidden/{view}"
        with self._lock:
            self._use_view(name)
            while len(self._views) > _MOST_VIEWS:
                self._cache.pop(self._views.popitem(last=False)[0])
        self._keep(name, hidden, hidden.nbytes + OVERHEAD_BYTES)

    def keep_page(self, scene_id: str, page: int, level: int, rows: torch.Tensor) -> None:
        """Store rows in the form that they have, if there is room."""
        name = _page_name(scene_id, page, level, rows.dtype == torch.uint8)
        self._keep(name, rows, rows.nbytes + OVERHEAD_BYTES)

    def cut(self, scene_id: str, cut: Cut, device: torch.device) -> CutRows:
        """Return the rows of a cut, which may still have to be filled."""
        parts = "" if cut.has_colors else "/without colours"
        name = f"{scene_id}/{hashlib.sha256(cut.levels.tobytes()).hexdigest()}{parts}{_form(cut.is_packed)}"
        with self._lock:
            found = self._cache.get(name)
        if isinstance(found, CutRows):
            return found
        rows = CutRows(name, cut, device)
        self._keep(name, rows, rows.bytes)
        return rows

    def forget(self, scene_id: str) -> None:
        """Remove the pages and cuts of a scene that was deleted."""
        with self._lock:
            for name in [name for name in self._cache.names() if name.startswith(f"{scene_id}/")]:
                self._cache.pop(name)

    def _use_view(self, name: str) -> None:
        self._views[name] = None
        self._views.move_to_end(name)

    def _find(self, name: str) -> torch.Tensor | CutRows | None:
        with self._lock:
            return self._cache.get(name)

    def _keep(self, name: str, value: torch.Tensor | CutRows, nbytes: int) -> None:
        with self._lock:
            self._cache.put(name, value, nbytes)
        if not self._budget.enforce(self):
            with self._lock:
                self._cache.pop(name)

    def _dropped(self, _: str, __: torch.Tensor | CutRows, reason: str) -> None:
        self._metrics.evictions.labels("pages", reason).inc()


def _page_name(scene_id: str, page: int, level: int, is_packed: bool) -> str:
    return f"{scene_id}/{page}/{level}{_form(is_packed)}"


def _form(is_packed: bool) -> str:
    return "/packed" if is_packed else ""
