"""`AsyncClient`, the client for asyncio programs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any

from lumigrad.client.aio.calls import Asynchronous, Calls, awaited, awaited_as
from lumigrad.client.aio.results import AsyncDistances, AsyncFrame, frames_of_batch, in_order
from lumigrad.client.aio.trainer import begun
from lumigrad.client.base.arguments import whole_number
from lumigrad.client.client import Client
from lumigrad.client.transport.addresses import WorkerTargets
from lumigrad.client.transport.channel import Certificate, Priority, Tls
from lumigrad.client.transport.lanes import LaneMode
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres

_MOST_CALLS = 1024


class AsyncClient(Asynchronous[Client]):
    """A client of one worker or several for coroutines: the methods of `Client`, with its arguments and errors.

    All methods are awaited. They run in the client's own threads, so packing and unpacking arrays does not block the
    event loop. Cancelling the task of a call, also by a time-out of asyncio, cancels the call on the worker too.
    Coroutines of several event loops may share a client.

    Example:
        import asyncio

        async def main():
            async with AsyncClient(target) as client:
                return await asyncio.gather(*(client.render(gaussians, camera) for camera in cameras))

        frames = asyncio.run(main())
    """

    def __init__(
        self,
        target: WorkerTargets | None = None,
        *,
        calls: int = 16,
        timeout_s: float = 60.0,
        retry_s: float = 10.0,
        token: str | None = None,
        tls: Tls | None = None,
        certificate: Certificate | None = None,
        priority: Priority | None = None,
        lane: LaneMode = "auto",
    ) -> None:
        """Sets up, without connecting; the other arguments are those of `Client`.

        At most `calls` calls are in progress at a time. Further calls wait here, in the order in which they were made;
        their time-out begins when they start.
        """
        limit = whole_number("calls", calls, 1, _MOST_CALLS)
        client = Client(
            target, timeout_s=timeout_s, retry_s=retry_s, token=token, tls=tls, certificate=certificate,
            priority=priority, lane=lane,
        )  # fmt: skip
        super().__init__(client, Calls(limit))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.target!r})"

    @property
    def target(self) -> str:
        """The worker's address; for several workers the target that was passed."""
        return self._blocking.target

    async def lane(self) -> str:
        """The transport of large payloads, "shared" or "stream"; contacts a worker if it is not known yet.

        Raises:
            LumigradError: no worker answered.

        Example:
            async def main():
                async with AsyncClient(target) as client:
                    return await client.lane()

            asyncio.run(main())
        """
        return await self._calls.run(lambda client: client.lane, self._blocking)

    async def close(self) -> None:
        """Cancels the calls in progress, waits until they have ended, and closes the connections.

        Example:
            async def main():
                client = AsyncClient(target)
                try:
                    return await client.info()
                finally:
                    await client.close()

            asyncio.run(main())
        """
        await self._calls.close(self._blocking.close)

    info = awaited(Client.info)
    infos = awaited(Client.infos)
    put = awaited(Client.put)
    update = awaited(Client.update)
    get = awaited(Client.get)
    list = awaited(Client.list)
    delete = awaited(Client.delete)
    render = awaited_as(AsyncFrame, Client.render)
    render_request = awaited_as(AsyncFrame, Client.render_request)
    render_batch = awaited_as(frames_of_batch, Client.render_batch)
    query = awaited_as(AsyncDistances, Client.query)
    ask = awaited_as(AsyncDistances, Client.ask)
    field = awaited(Client.field)
    drive_frame = awaited(Client.drive_frame)
    drive_pictures = awaited(Client.drive_pictures)
    trainer = begun(Client.trainer, is_new=True)
    resume_trainer = begun(Client.resume_trainer, is_new=False)

    def render_stream(
        self,
        scene: Spheres | Gaussians | SceneHandle,
        cameras: Iterable[Camera] | AsyncIterable[Camera],
        *,
        in_flight: int = 4,
        **options: Any,
    ) -> AsyncGenerator[AsyncFrame, None]:
        """Renders a scene from a stream of cameras, with several calls in flight.

        Args:
            scene: as for `render`; use a handle, unless the scene is small enough to be sent with each call.
            cameras: may be endless; the next one is taken when fewer than `in_flight` frames are pending.
            in_flight: maximum number of frames in flight or not yet taken by the loop; `calls` limits it too.
            options: as for `render`.

        Yields:
            A frame for each camera, in the order of the cameras. Use `contextlib.aclosing` so that the calls in flight
            are cancelled immediately when a loop ends early.

        Raises:
            InvalidArgument: `in_flight` is no number from 1 on, or an argument of `render` is wrong.
            LumigradError: a frame's call failed, in the place of the frame.

        Example:
            async def main():
                async with AsyncClient(target) as client:
                    handle = await client.put(gaussians)
                    async for frame in client.render_stream(handle, cameras):
                        print(frame.color.shape)

            asyncio.run(main())
        """
        limit = min(whole_number("in_flight", in_flight, 1, _MOST_CALLS), self._calls.limit)
        return in_order(lambda camera: self.render(scene, camera, **options), cameras, limit)
