"""Awaitable results: frames and distances whose gradients are awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy, deepcopy
from functools import wraps
from typing import Any, TypeVar

from lumigrad.client.aio.calls import Asynchronous, Calls, awaited
from lumigrad.client.base.arrays import Array, NamedArrays
from lumigrad.client.distances.answer import Distances
from lumigrad.client.errors import LumigradError
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.workers.result import Result

R = TypeVar("R", Frame, Distances)
A = TypeVar("A", bound="_AsyncResult[Any]")


class _AsyncResult(NamedArrays, Asynchronous[R]):
    """The arrays of a result, as items and as attributes.

    Attributes:
        request: the request of the call.
        timings: the timings of the call.
    """

    def __init__(self, result: R, calls: Calls) -> None:
        NamedArrays.__init__(self, result)
        Asynchronous.__init__(self, result, calls)
        self.request: Any = result.request
        self.timings = result.timings

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._blocking)

    def __copy__(self: A) -> A:
        return type(self)(copy(self._blocking), self._calls)

    def __deepcopy__(self: A, memo: dict[int, Any]) -> A:
        return type(self)(deepcopy(self._blocking, memo), self._calls)

    @wraps(Result.release)
    async def release(self) -> None:
        # Releasing does not wait, so it needs neither a thread, all of which may be busy, nor an open client.
        self._blocking.release()

    async def __aenter__(self: A) -> A:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._blocking.release()

    def _missing(self, name: str) -> str:
        return self._blocking._missing(name)


def _unpickled(kind: Any, result: Result) -> Any:
    return kind(result, Calls(1))


class AsyncFrame(_AsyncResult[Frame]):
    """A `Frame`, with the same arrays as items and as attributes, whose gradients are awaited.

    Attributes:
        levels: the part of a scene with levels of detail that was drawn; None for other scenes.
        files: all JPEG or PNG files, by the output's name, one for each camera.
        encoded: JPEG or PNG files by the output's name, as in a `Frame`.
    """

    def __init__(self, frame: Frame, calls: Calls) -> None:
        super().__init__(frame, calls)
        self.levels = frame.levels
        self.files = frame.files

    @property
    def encoded(self) -> Mapping[str, bytes | tuple[bytes, ...]]:
        """JPEG or PNG files by the output's name, as in a `Frame`."""
        return self._blocking.encoded

    backward = awaited(Frame.backward)

    def decoded(self, name: str) -> Array:
        """Decodes files in `encoded`, in the calling thread, to uint8 pixels with the shape of the output.

        Args:
            name: the output, requested as "jpeg" or "png".

        Raises:
            InvalidArgument: the output did not come in files.
            MissingPackage: Pillow, which decodes images, is not installed.

        Example:
            async def main():
                async with AsyncClient(target) as client:
                    frame = await client.render(gaussians, camera, image_format="png")
                    return frame.decoded("color")

            asyncio.run(main())
        """
        return self._blocking.decoded(name)


def frames_of_batch(results: Iterable[Frame | LumigradError], calls: Calls) -> tuple[AsyncFrame | LumigradError, ...]:
    """Converts the frames among the results of a batch to `AsyncFrame`s; errors stay unchanged."""
    return tuple(AsyncFrame(result, calls) if isinstance(result, Frame) else result for result in results)


class AsyncDistances(_AsyncResult[Distances]):
    """`Distances`, with the same arrays as items and as attributes, whose gradients are awaited.

    Attributes:
        query: the query.
    """

    def __init__(self, distances: Distances, calls: Calls) -> None:
        super().__init__(distances, calls)
        self.query = distances.query

    backward = awaited(Distances.backward)
