"""`AsyncClient`, the client for asyncio programs."""

from __future__ import annotations

from lumigrad.client.aio.calls import Asynchronous, Calls, awaited, awaited_as
from lumigrad.client.aio.results import AsyncDistances, AsyncFrame, frames_of_batch
from lumigrad.client.aio.stream import streaming
from lumigrad.client.aio.trainer import begun
from lumigrad.client.base.arguments import whole_number
from lumigrad.client.client import Client
from lumigrad.client.transport.addresses import WorkerTargets
from lumigrad.client.transport.channel import Certificate, Priority, Tls
from lumigrad.client.transport.lanes import LaneMode

_MOST_CALLS = 1024


class AsyncClient(Asynchronous[Client]):
    """An asyncio client of one worker or several, with the methods, arguments and errors of `Client`.

    All methods are awaited. They run in the client's own threads, so packing and unpacking arrays does not block the
    event loop. Cancelling the task of a call, directly or by an asyncio time-out, also cancels the call on the worker.
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
        """Sets up, without connecting; all arguments but `calls` are those of `Client`.

        At most `calls` calls are in progress at a time. Further calls wait here in order, and their time-outs begin
        when they start.
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
        """The worker's address; for several workers the target as passed."""
        return self._blocking.target

    async def lane(self) -> str:
        """Returns the transport of large payloads, "shared" or "stream"; contacts a worker if it is not known yet.

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
    render_batch = awaited_as(frames_of_batch, Client.render_batch)
    query = awaited_as(AsyncDistances, Client.query)
    field = awaited(Client.field)
    drive_frame = awaited(Client.drive_frame)
    drive_pictures = awaited(Client.drive_pictures)
    trainer = begun(Client.trainer, is_new=True)
    resume_trainer = begun(Client.resume_trainer, is_new=False)
    stream = streaming(Client.stream)
