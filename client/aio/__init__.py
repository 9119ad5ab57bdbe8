"""The client for asyncio programs: `AsyncClient` has the methods of `Client` as coroutines."""

from lumigrad.client.aio.client import AsyncClient
from lumigrad.client.aio.results import AsyncDistances, AsyncFrame
from lumigrad.client.aio.stream import AsyncRenderStream
from lumigrad.client.aio.trainer import AsyncBatch, AsyncTrainer

__all__ = ["AsyncBatch", "AsyncClient", "AsyncDistances", "AsyncFrame", "AsyncRenderStream", "AsyncTrainer"]
