"""`AsyncRenderStream`: streams of frames for asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import wraps
from types import TracebackType
from typing import Any

from lumigrad.client.aio.calls import Asynchronous, Calls
from lumigrad.client.aio.results import AsyncFrame
from lumigrad.client.client import Client
from lumigrad.client.errors import LumigradError
from lumigrad.client.rendering.stream import RenderStream
from lumigrad.client.values.camera import Camera

_Cameras = Camera | Sequence[Camera]


class AsyncRenderStream:
    """A `RenderStream` whose methods are awaited, for an `async with` block. One task may send while another receives.

    If a task that waits for a frame is cancelled, the worker stops, and the next `receive` requests the pending frames
    again.

    Example:
        async def main():
            async with AsyncClient(target) as client, client.stream(gaussians) as stream:
                async for frame in stream.frames(cameras):
                    print(frame.color.shape)

        asyncio.run(main())
    """

    def __init__(self, begin: Callable[[Client], RenderStream], client: Client, calls: Calls) -> None:
        """Prepares a stream for `AsyncClient.stream`; `begin` opens it, and `calls` are those of the client."""
        self._begin = begin
        self._client = client
        self._client_calls = calls
        # One thread sends, and one receives.
        self._calls = Calls(2)
        self._stream: RenderStream | None = None

    async def __aenter__(self) -> AsyncRenderStream:
        self._stream = await self._client_calls.run(self._begin, self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pending(self) -> int:
        """The number of frames that were requested and not received."""
        return self._blocking.pending

    async def send(self, camera: _Cameras) -> None:
        """Requests a frame, without waiting for it.

        Args:
            camera: one camera, or several with equal image sizes, as in `AsyncClient.render`.

        Raises:
            InvalidArgument: as for `RenderStream.send`.
            LumigradError: no worker was found in time for the first frame.

        Example:
            async def main():
                async with AsyncClient(target) as client, client.stream(gaussians) as stream:
                    await stream.send(camera)
                    return await stream.receive()

            asyncio.run(main())
        """
        await self._calls.run(lambda stream: stream.send(camera), self._blocking)

    async def receive(self) -> AsyncFrame:
        """Waits for the next frame; with `latest_only`, cameras before it may have been skipped.

        Raises:
            InvalidArgument: no frame is pending.
            LumigradError: as for `AsyncClient.render`; the next call returns the frame after this one.

        Example:
            async def main():
                async with AsyncClient(target) as client, client.stream(gaussians) as stream:
                    await stream.send(camera)
                    return await stream.receive()

            asyncio.run(main())
        """
        frame = await self._calls.run(lambda stream: stream.receive(), self._blocking)
        return AsyncFrame(frame, self._client_calls)

    async def frames(self, cameras: Iterable[_Cameras] | AsyncIterable[_Cameras]) -> AsyncGenerator[AsyncFrame, None]:
        """Yields the frame of each camera, in order and as soon as it arrives.

        Args:
            cameras: may be endless, and may depend on earlier frames. The next camera is taken when fewer than
                `in_flight` frames are in flight or not yet consumed by the loop.

        Raises:
            LumigradError: as for `receive`, in place of the frame.

        Example:
            async def main():
                async with AsyncClient(target) as client, client.stream(gaussians) as stream:
                    async for frame in stream.frames(cameras):
                        print(frame.color.shape)

            asyncio.run(main())
        """
        sent: asyncio.Queue[bool] = asyncio.Queue()
        room = asyncio.Semaphore(self._blocking.in_flight)
        # Cameras are taken in a separate task, because the next camera may depend on the last frame.
        feed = asyncio.create_task(self._send_each(cameras, sent, room))
        try:
            while await sent.get():
                # The worker may have skipped this camera's frame.
                if self.pending:
                    yield await self.receive()
                room.release()
            await feed
        finally:
            feed.cancel()
            await asyncio.gather(feed, return_exceptions=True)

    async def close(self) -> None:
        """Ends the stream and cancels pending frames.

        Example:
            async def main():
                async with AsyncClient(target) as client, client.stream(gaussians) as stream:
                    await stream.close()

            asyncio.run(main())
        """
        if self._stream is not None:
            await self._calls.close(self._stream.close)

    @property
    def _blocking(self) -> RenderStream:
        if self._stream is None:
            raise LumigradError("this stream is not open; use it in an `async with` block")
        return self._stream

    async def _send_each(
        self,
        cameras: Iterable[_Cameras] | AsyncIterable[_Cameras],
        sent: asyncio.Queue[bool],
        room: asyncio.Semaphore,
    ) -> None:
        """Sends cameras while there is room; queues True for each camera, and False at the end."""
        try:
            async with aclosing(_each(cameras)) as each:
                await room.acquire()
                async for camera in each:
                    await self.send(camera)
                    sent.put_nowait(True)
                    await room.acquire()
        finally:
            sent.put_nowait(False)


def streaming(method: Callable[..., RenderStream]) -> Callable[..., AsyncRenderStream]:
    """Converts a method that opens a stream to one whose result opens the stream on entering `async with`."""

    @wraps(method)
    def stream(self: Asynchronous[Client], /, *arguments: Any, **options: Any) -> AsyncRenderStream:
        return AsyncRenderStream(lambda client: method(client, *arguments, **options), self._blocking, self._calls)

    return stream


async def _each(items: Iterable[_Cameras] | AsyncIterable[_Cameras]) -> AsyncGenerator[_Cameras, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for entry in items:
            yield entry
