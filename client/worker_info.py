"""What a worker says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.v1 import worker_pb2


@dataclass(frozen=True)
class Limits:
    """What a worker accepts in one call."""

    max_payload_bytes: int
    max_pixels: int
    max_primitives: int
    max_cameras: int
    max_queue: int
    max_channels: int


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's version, device and load.

    Attributes:
        target: the address it was asked at.
        version: Lumigrad's version there.
        device: "cpu" or "cuda:0".
        device_name: e.g. "NVIDIA H200".
        instruction_set: of the CPU kernels in use: "avx512", "avx2" or "portable".
        cuda_built: whether its kernels were built with CUDA.
        engines: e.g. ("spheres",).
        limits: what it accepts in one call.
        scenes: stored scenes.
        contexts: forward states kept for backward.
        queue_depth: calls that wait.
        uptime_seconds: since it started.
        threads: CPU threads of the kernels.
        device_memory_bytes: in all.
        device_memory_free_bytes: free now.
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

    @staticmethod
    def of(message: worker_pb2.InfoReply, target: str) -> WorkerInfo:
        """Reads the worker's message."""
        limits = Limits(**{name: getattr(message.limits, name) for name in Limits.__dataclass_fields__})
        plain = set(WorkerInfo.__dataclass_fields__) - {"target", "engines", "limits"}
        values = {name: getattr(message, name) for name in plain}
        return WorkerInfo(target=target, engines=tuple(message.engines), limits=limits, **values)
