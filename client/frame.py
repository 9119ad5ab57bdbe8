"""What Render returns: arrays, and the way back to the gradients."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lumigrad.client.arguments import names
from lumigrad.client.arrays import to_numpy
from lumigrad.client.errors import ContextLost, InvalidArgument
from lumigrad.client.gradients import Gradients
from lumigrad.client.named_arrays import Array, NamedArrays
from lumigrad.client.request import BackwardRequest, RenderRequest, WireFormat
from lumigrad.client.timings import Timings

if TYPE_CHECKING:
    from lumigrad.client.remote import RemoteRenderer


class Frame(NamedArrays):
    """The outputs of a rendering, as items and as attributes; those that were asked for are present.

    `color` [C, H, W, K], `alpha` [C, H, W] (1 - share of the background), `depth` [C, H, W] (distance to the closest
    sphere in scene units; -1 where there is none), `info` [C, H, W, 3 + 2 T] (Pulsar's forward info; the id channels
    are int32 bit patterns, so do not calculate with them), `sphere_ids` int32 [C, H, W, T] (closest first; -1: none),
    `weights` [C, H, W, T] and `hits` int32 [C, H, W]. Float32 unless said otherwise. The camera axis C is absent if a
    single camera was passed to render instead of a sequence.

    Attributes:
        timings: of the call.
        request: what was rendered.
    """

    _advice: ClassVar[str] = "name what you need in render(outputs=…)"

    def __init__(
        self,
        renderer: RemoteRenderer,
        request: RenderRequest,
        arrays: Mapping[str, Array],
        context_id: str | None,
        timings: Timings,
    ) -> None:
        super().__init__({name: array[0] for name, array in arrays.items()} if request.single else arrays)
        self.request = request
        self.timings = timings
        self._renderer = renderer
        self._context_id = context_id
        if context_id is not None:
            # A frame that is dropped without backward should not occupy the worker until its context expires.
            weakref.finalize(self, renderer.discard, context_id).atexit = False

    def backward(
        self,
        color: Any = None,
        *,
        alpha: Any = None,
        depth: Any = None,
        wanted: Sequence[str] = ("positions", "colors", "radii"),
        sparse: bool = False,
        wire_format: WireFormat = "float32",
        release: bool = False,
        timeout_s: float | None = None,
    ) -> Gradients:
        """Gradients of a loss whose gradients with respect to the outputs are given; at least one of them.

        Uses the forward state that the worker kept; where there is none (any more), the frame is computed again there.

        Args:
            color: dL/dcolor, shaped as the output, whether or not that was asked for.
            alpha: dL/dalpha, likewise. Not in compat.
            depth: dL/ddepth, of a frame that has the output. Not in compat.
            wanted: any of "positions", "colors", "radii", "opacities", "cameras", "background", "gamma".
            sparse: transfer only rows that are not zero, with their "index".
            wire_format: how gradients per sphere travel; "float16" and "bfloat16" halve the bytes.
            release: let the worker forget the forward state afterwards.
            timeout_s: instead of the client's time-out.
        """
        passed = {"color": color, "alpha": alpha, "depth": depth}
        upstream = {name: self._stacked(name, value) for name, value in passed.items() if value is not None}
        if not upstream:
            raise InvalidArgument.of("color", "expected at least one of color, alpha and depth, got none")
        if depth is not None and "depth" not in self:
            raise InvalidArgument.of("depth", f"expected a frame that has the output, got {self}; {self._advice}")
        request = BackwardRequest(self.request, upstream, names("wanted", wanted), sparse, wire_format)
        deadline = self._renderer.deadline(timeout_s)
        context_id = self._context_id
        if release:
            self._context_id = None
        if context_id is not None:
            try:
                return self._renderer.backward(request, deadline, context_id, release)
            except ContextLost:
                self._context_id = None
        return self._renderer.backward(request, deadline)

    def release(self) -> None:
        """Lets the worker forget the forward state; backward still works, by computing it again."""
        if self._context_id is not None:
            self._renderer.discard(self._context_id)
            self._context_id = None

    def _stacked(self, name: str, value: Any) -> Array:
        array = np.ascontiguousarray(to_numpy(name, value), dtype=np.float32)
        if name in self and array.shape != self[name].shape:
            raise InvalidArgument.of(
                name, f"expected the shape of the output, {list(self[name].shape)}, got {list(array.shape)}"
            )
        return array[None] if self.request.single else array
