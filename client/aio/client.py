"""The client's verbs for an event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any

from lumigrad.client.aio.calls import Asynchronous, Calls, awaited, awaited_as
from lumigrad.client.aio.results import AsyncDistances, AsyncFrame, in_order
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
    """The way to one worker, or to several, for coroutines: what `Client` has, with its arguments and errors.

    All verbs are awaited. They run in threads of the client's own, so packing and unpacking arrays do not hold up the
    event loop. Whoever stops waiting for a call, cancelled or by a time-out of asyncio, ends it on the worker too.
    Coroutines of several event loops may share a client.
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
        """Sets up, without connecting; takes what `Client` takes.

        So many `calls` are under way at a time, at the most; those beyond it wait here, in the order in which they were
        made, and their time-out begins with their turn.
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
        """The worker's address; of several workers what the client was given."""
        return self._blocking.target

    async def lane(self) -> str:
        """How large payloads travel, "shared" or "stream"; asks a worker if none has travelled yet."""
        return await self._calls.run(lambda client: client.lane, self._blocking)

    async def close(self) -> None:
        """Ends the connection: calls under way are cancelled, and nothing goes on when this returns."""
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
    query = awaited_as(AsyncDistances, Client.query)
    ask = awaited_as(AsyncDistances, Client.ask)
    field = awaited(Client.field)
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
        """Renders a scene from one camera after the other, several of them on their way at a time.

        Args:
            scene: as for `render`; a handle, unless the scene is so small that it may travel each time.
            cameras: may go on for ever; the next one is asked for when there is room for it.
            in_flight: frames at the most that are on their way or wait for the loop; also `calls` at the most.
            options: as for `render`.

        Yields:
            A frame for each camera, in the order of the cameras. When a loop ends early, `contextlib.aclosing` cancels
            at once what is on its way.
        """
        limit = min(whole_number("in_flight", in_flight, 1, _MOST_CALLS), self._calls.limit)
        return in_order(lambda camera: self.render(scene, camera, **options), cameras, limit)
