"""The client for programs that run an event loop: `AsyncClient` has the verbs of `Client`, to be awaited."""

from lumigrad.client.aio.client import AsyncClient
from lumigrad.client.aio.results import AsyncDistances, AsyncFrame
from lumigrad.client.aio.trainer import AsyncBatch, AsyncTrainer

__all__ = ["AsyncBatch", "AsyncClient", "AsyncDistances", "AsyncFrame", "AsyncTrainer"]
