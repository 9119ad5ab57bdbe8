"""WorkerService: describes this worker and its load."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

from lumigrad.kernels.device import describe
from lumigrad.server.core.call import Call
from lumigrad.server.scenes.lookup import SCENE_KINDS
from lumigrad.server.shm.lanes import Lanes
from lumigrad.server.storage.tenants import Tenants
from lumigrad.v1 import worker_pb2


class WorkerService:
    """The methods of `lumigrad.v1.WorkerService`."""

    def __init__(self, tenants: Tenants, lanes: Lanes, metrics_port: Callable[[], int], *, metrics_tls: bool) -> None:
        """`metrics_port` is called for each request."""
        self._tenants = tenants
        self._lanes = lanes
        self._metrics_port = metrics_port
        self._metrics_tls = metrics_tls
        self._started = time.monotonic()
        self._version = version("lumigrad")

    def Info(self, _: worker_pb2.InfoRequest, call: Call) -> worker_pb2.InfoReply:
        """Describe the worker."""
        runtime = self._tenants.of(call)
        described = describe(runtime.transfer.device)
        return worker_pb2.InfoReply(
            version=self._version,
            device=described.name,
            device_name=described.device_name,
            instruction_set=described.instruction_set,
            cuda_built=described.cuda_built,
            engines=list(dict.fromkeys(kind.engine for kind in SCENE_KINDS.values() if kind.engine)),
            limits=runtime.limits.message(),
            scenes=len(runtime.scenes),
            contexts=len(runtime.contexts),
            queue_depth=runtime.executor.queue.depth,
            uptime_seconds=time.monotonic() - self._started,
            threads=described.threads,
            device_memory_bytes=described.memory_bytes,
            device_memory_free_bytes=described.memory_free_bytes,
            metrics_port=self._metrics_port(),
            metrics_tls=self._metrics_tls,
            target_image_bytes=self._tenants.target_image_bytes,
        )

    def OpenLane(self, _: worker_pb2.OpenLaneRequest, call: Call) -> worker_pb2.OpenLaneReply:
        """Offer shared memory."""
        return self._lanes.offer(call.tenant, call.metadata)
