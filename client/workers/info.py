"""Facts that a worker reports about itself."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.client.transport.addresses import split_target
from lumigrad.v1 import worker_pb2


@dataclass(frozen=True)
class Limits:
    """Limits of a worker for one call."""

    max_payload_bytes: int
    max_pixels: int
    max_primitives: int
    max_cameras: int
    max_queue: int
    max_channels: int
    max_rows: int
    max_obstacles: int
    max_voxels: int


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's version, device and load.

    Attributes:
        target: the address at which it answered.
        version: Lumigrad's version there.
        device: "cpu" or "cuda:0".
        device_name: e.g. "NVIDIA H200".
        instruction_set: instructions of the CPU kernels in use: "avx512", "avx2" or "portable".
        cuda_built: whether its kernels were built with CUDA.
        engines: any of "spheres" and "gaussians", which it renders, and "meshes", for distances.
        limits: its limits for one call.
        scenes: number of stored scenes.
        contexts: number of forward states kept for backward.
        queue_depth: number of waiting calls.
        uptime_seconds: time since it started.
        threads: number of CPU threads of the kernels.
        device_memory_bytes: total memory of the device.
        device_memory_free_bytes: free memory of the device.
        metrics_port: port of the HTTP server with Prometheus metrics on the same host; 0: unknown.
        metrics_tls: whether the metrics are served over HTTPS.
        target_image_bytes: limit for all target images of one training together; 0: unknown.
    """

    target: str
    version: str
    device: str
    device_name: str
    instruction_set: str
    cuda_built: bool
    engines: tuple[str, ...]
    limits: Limits
    scenes: int
    contexts: int
    queue_depth: int
    uptime_seconds: float
    threads: int
    device_memory_bytes: int
    device_memory_free_bytes: int
    metrics_port: int
    metrics_tls: bool
    target_image_bytes: int

    @property
    def metrics_url(self) -> str | None:
        """The URL of its metrics; None if the port or the host is unknown."""
        host, port = split_target(self.target)
        if not self.metrics_port or port is None:
            return None
        bracketed = f"[{host}]" if ":" in host else host
        return f"http{'s' if self.metrics_tls else ''}://{bracketed}:{self.metrics_port}/metrics"

    @staticmethod
    def of(message: worker_pb2.InfoReply, target: str) -> WorkerInfo:
        """Creates it from the worker's message."""
        limits = Limits(**{name: getattr(message.limits, name) for name in Limits.__dataclass_fields__})
        plain = set(WorkerInfo.__dataclass_fields__) - {"target", "engines", "limits"}
        values = {name: getattr(message, name) for name in plain}
        return WorkerInfo(target=target, engines=tuple(message.engines), limits=limits, **values)
