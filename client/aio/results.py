"""What AsyncClient returns: arrays, and the way back to the gradients."""

from __future__ import annotations

from lumigrad.client.aio.calls import Calls
from lumigrad.client.aio.verbs import Asynchronous, awaited
from lumigrad.client.distances import Distances
from lumigrad.client.frame import Frame
from lumigrad.client.named_arrays import Array, NamedArrays


class AsyncFrame(NamedArrays, Asynchronous[Frame]):
    """A `Frame`, with the same arrays as items and as attributes, whose gradients are awaited.

    Attributes:
        timings: of the call.
        request: what was rendered.
        encoded: JPEG or PNG files by the output's name, as in a `Frame`.
    """

    def __init__(self, frame: Frame, calls: Calls) -> None:
        NamedArrays.__init__(self, frame)
        Asynchronous.__init__(self, frame, calls)
        self.timings = frame.timings
        self.request = frame.request
        self.encoded = frame.encoded

    backward = awaited(Frame.backward)
    differentiated = awaited(Frame.differentiated)
    release = awaited(Frame.release)

    def decoded(self, name: str) -> Array:
        """The pixels of files in `encoded`, uint8, shaped as the output; takes the time of decoding them, here."""
        return self._blocking.decoded(name)

    def _missing(self, name: str) -> str:
        return self._blocking._missing(name)


class AsyncDistances(NamedArrays, Asynchronous[Distances]):
    """`Distances`, with the same arrays as items and as attributes, whose gradients are awaited.

    Attributes:
        timings: of the call.
        query: what was asked.
    """

    def __init__(self, distances: Distances, calls: Calls) -> None:
        NamedArrays.__init__(self, distances)
        Asynchronous.__init__(self, distances, calls)
        self.timings = distances.timings
        self.query = distances.query

    backward = awaited(Distances.backward)
    differentiated = awaited(Distances.differentiated)
    release = awaited(Distances.release)

    def _missing(self, name: str) -> str:
        return self._blocking._missing(name)
