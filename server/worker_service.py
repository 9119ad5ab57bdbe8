"""WorkerService: what this worker is and how busy."""

from __future__ import annotations

import time
from importlib.metadata import version

from lumigrad.kernels.device import describe
from lumigrad.server.call import Call
from lumigrad.server.engines import ENGINES
from lumigrad.server.runtime import Runtime
from lumigrad.v1 import worker_pb2


class WorkerService:
    """The methods of `lumigrad.v1.WorkerService`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._started = time.monotonic()
        self._version = version("lumigrad")

    def Info(self, _: worker_pb2.InfoRequest, __: Call) -> worker_pb2.InfoReply:
        """Describe the worker."""
        runtime = self._runtime
        described = describe(runtime.transfer.device)
        return worker_pb2.InfoReply(
            version=self._version,
            device=described.name,
            device_name=described.device_name,
            instruction_set=described.instruction_set,
            cuda_built=described.cuda_built,
            engines=list(ENGINES),
            limits=runtime.limits.message(),
            scenes=len(runtime.scenes),
            contexts=len(runtime.contexts),
            queue_depth=runtime.executor.depth,
            uptime_seconds=time.monotonic() - self._started,
            threads=described.threads,
            device_memory_bytes=described.memory_bytes,
            device_memory_free_bytes=described.memory_free_bytes,
        )
