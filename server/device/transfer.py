"""Transfers of arrays between network buffers and the device: no copies on the CPU, pinned memory for CUDA."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from lumigrad.kernels._native import Renderer, StepMachine, cpu_renderer, cpu_step_machine
from lumigrad.kernels.errors import check_stop
from lumigrad.kernels.gaussians.prepared_passes import Passes, cpu_passes
from lumigrad.kernels.meshes import Queries, cpu_queries
from lumigrad.protos import dtypes
from lumigrad.protos.buffers import PayloadBuffers
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import NoLane
from lumigrad.server.core.pinned import PinnedPool, Pinner
from lumigrad.server.device.cuda import CudaCopies
from lumigrad.server.device.gpu_jpegs import GpuJpegs
from lumigrad.v1 import tensor_pb2

T = TypeVar("T")

# Sizes between which upload buffers are cached. glibc has an arena per thread, so it would not reuse a buffer that
# another call's thread has freed.
_LEAST_KEPT_BYTES = 8 << 20
_MOST_KEPT_BYTES = 128 << 20
# Arrays in a block of pinned memory begin at multiples of this.
_ALIGNMENT = 64
# Parts of a call's work that are queued on a GPU while one runs. A cancelled call still runs this many.
_PARTS_AHEAD = 1


class _Copies:
    """Copies from the device to the host that may be in progress; keeps source and target memory until they end."""

    def __init__(self, sources: Sequence[torch.Tensor], targets: Sequence[Array], end: torch.cuda.Event) -> None:
        self._memory: tuple[Sequence[torch.Tensor], Sequence[Array]] = sources, targets
        self._end: torch.cuda.Event | None = end

    @property
    def has_ended(self) -> bool:
        """Whether `wait` would return at once."""
        return self._end is None

    @property
    def device_bytes(self) -> int:
        """The memory of the device that the copies hold."""
        sources, _ = self._memory
        return sum(source.nbytes for source in sources)

    def wait(self) -> None:
        """Wait until the copies have ended, on any thread; raises if the device is lost."""
        end = self._end
        if end is None:
            return
        try:
            end.synchronize()
        finally:
            self._memory = (), ()
        self._end = None


class Pending(Protocol):
    """Results that are being downloaded to the host."""

    @property
    def is_complete(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> None:
        """Wait until the results have arrived, on any thread; raises if the device is lost."""


@dataclass(frozen=True, eq=False)
class Download:
    """Arrays that are being downloaded to the host.

    Attributes:
        copies: The copies that complete the arrays; None if the arrays are complete.
    """

    arrays: Sequence[Array]
    copies: _Copies | None = None

    @property
    def is_complete(self) -> bool:
        """Whether `wait` would return at once."""
        return self.copies is None or self.copies.has_ended

    def wait(self) -> None:
        """Wait until the arrays are complete, on any thread; raises if the device is lost."""
        if self.copies is not None:
            self.copies.wait()


@dataclass(frozen=True)
class Delivery(Generic[T]):
    """A result, and the download that completes its arrays."""

    result: T
    download: Download


class Transfer:
    """Moves arrays to and from the CPU, which needs no copies.

    Methods run on the device's thread, except `allocate` and those documented otherwise.
    """

    # Registers memory that the device is to write to; None if it can write to any memory.
    pinner: Pinner | None = None

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cpu = device.type == "cpu"
        self._buffers = PayloadBuffers(_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES)

    @property
    def pinned_bytes(self) -> int:
        """The pinned memory of the host, without shared memory."""
        return 0

    @property
    def downloading_bytes(self) -> int:
        """The memory of the device that a download holds."""
        return 0

    def allocate(self, length: int) -> memoryview:
        """Return a buffer for an upload."""
        return self._buffers.lend(length)

    def upload(self, array: Array, dtype: tensor_pb2.DType) -> torch.Tensor:
        """Return the array on the device; other float types become float32.

        On CUDA the copy is only queued: keep the array until `finish`.
        """
        # torch has no read-only tensors, so immutable inline bytes, which are few, are copied.
        host = torch.from_numpy(array if array.flags.writeable else array.copy())
        if dtype == dtypes.BFLOAT16:
            host = host.view(torch.bfloat16)
        tensor = self._to_device(host)
        return tensor.float() if tensor.is_floating_point() else tensor

    def download(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """Return the tensors on the host; bfloat16 as uint16 bits. Waits for all queued work of the device."""
        download = self.start_download(tensors)
        download.wait()
        return list(download.arrays)

    def start_download(self, tensors: Sequence[torch.Tensor], lanes: Sequence[NoLane] = ()) -> Download:
        """Begin a download without waiting: on CUDA, tensors are copied while the device continues with other work.

        `lanes` has a lane for each tensor, to whose shared memory it is copied if there is room.
        """
        return Download([_bits(tensor).numpy() for tensor in tensors])

    def copied(self, tensors: Sequence[torch.Tensor], lane: NoLane) -> list[Array]:
        """Copy tensors to the host, to the shared memory of a lane if it has room; waits for the device."""
        return [self._copied(_bits(tensor).numpy(), lane) for tensor in tensors]

    def _copied(self, source: Array, lane: NoLane) -> Array:
        shared = lane.allocate(source.shape, source.dtype)
        copy = np.empty_like(source) if shared is None else shared
        np.copyto(copy, source)
        return copy

    def settle(self) -> None:
        """Wait for the last download, so that it holds no memory of the device."""

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """Download, on any thread, tensors that were complete at the last wait for the device."""
        return [tensor.numpy() for tensor in tensors]

    def finish(self) -> None:
        """Wait for the device."""

    def paced(self, check: Callable[[], object]) -> Callable[[], object]:
        """Return a function to call before each part of a call's work, which may raise to stop it.

        The function is `check`; on CUDA it also waits, to limit the queued work, which can no longer be stopped.
        """
        return check

    def trim(self) -> None:
        """Free cached memory that was unused for some time; callable on any thread."""

    def renderer(self) -> Renderer:
        """Return the renderer of prepared renders."""
        return cpu_renderer()

    def queries(self) -> Queries:
        """Return the queries that are answered without Python."""
        return cpu_queries()

    def passes(self) -> Passes:
        """Return the prepared passes, whose states are retained."""
        return cpu_passes()

    def step_machine(self) -> StepMachine:
        """Return the machine that makes the steps of one training without Python."""
        return cpu_step_machine()

    def jpegs(self) -> GpuJpegs | None:
        """Return the device's encoder of JPEG files; None if the CPU encodes them."""
        return None

    def _to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host


class CudaTransfer(Transfer):
    """Moves arrays to and from a CUDA device through pinned memory.

    One download may be in progress while the device works on the next job.
    """

    def __init__(self, device: torch.device, copies: CudaCopies, pinned_limit_bytes: int) -> None:
        """Pin at most `pinned_limit_bytes` of the host, apart from shared memory."""
        super().__init__(device)
        self.is_cpu = False
        self.pinner = copies
        self._copies = copies
        self._pool = PinnedPool(copies, pinned_limit_bytes)
        # The copies of the last download; None if they are known to have ended.
        self._last: _Copies | None = None

    @property
    def pinned_bytes(self) -> int:
        """The pinned memory of the host, without shared memory."""
        return self._pool.bytes

    @property
    def downloading_bytes(self) -> int:
        """The memory of the device that a download holds."""
        last = self._last
        return 0 if last is None else last.device_bytes

    def allocate(self, length: int) -> memoryview:
        """Return a buffer for an upload."""
        return self._pool.lend(length) if length else super().allocate(length)

    def start_download(self, tensors: Sequence[torch.Tensor], lanes: Sequence[NoLane] = ()) -> Download:
        """Start copying tensors to pinned memory, or to the shared memory of lanes."""
        self.settle()
        sources = [_bits(tensor) for tensor in tensors]
        targets = self._targets(sources, lanes or [NoLane()] * len(sources))
        end = self._copies.to_host(zip(sources, targets, strict=True))
        self._last = _Copies(sources, targets, end)
        return Download(targets, self._last)

    def copied(self, tensors: Sequence[torch.Tensor], lane: NoLane) -> list[Array]:
        """Copy tensors to the host by a download, and wait for it."""
        download = self.start_download(tensors, [lane] * len(tensors))
        download.wait()
        return list(download.arrays)

    def settle(self) -> None:
        """Wait for the last download, so that it holds no memory of the device."""
        if self._last is not None:
            # The call that waits for the download also gets this error, and reports it.
            with suppress(Exception):
                self._last.wait()
            self._last = None

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """Download, on any thread, tensors that were complete at the last wait for the device."""
        return [host.numpy() for host in self._copies.fetch(tensors)]

    def finish(self) -> None:
        """Wait for the device."""
        self._copies.finish()

    def paced(self, check: Callable[[], object]) -> Callable[[], object]:
        """Return a function to call before each part of a call's work, which may raise to stop it."""
        ends: deque[torch.cuda.Event] = deque()

        def before_part() -> None:
            ends.append(self._copies.record())
            if len(ends) > _PARTS_AHEAD:
                ends.popleft().synchronize()
            check()
            check_stop()

        return before_part

    def trim(self) -> None:
        """Free cached memory that was unused for some time; callable on any thread."""
        self._pool.trim()

    def renderer(self) -> Renderer:
        """Return the renderer of prepared renders; its kernels and copies use the same streams as all others."""
        return self._copies.renderer()

    def queries(self) -> Queries:
        """Return the queries that are answered without Python, on the same streams."""
        return self._copies.queries()

    def passes(self) -> Passes:
        """Return the prepared passes, on the same streams."""
        return self._copies.passes()

    def step_machine(self) -> StepMachine:
        """Return the machine that makes the steps of one training without Python, on the stream of other kernels."""
        return self._copies.step_machine()

    def jpegs(self) -> GpuJpegs | None:
        """Return the device's encoder of JPEG files; None if its library is not installed."""
        return self._copies.jpegs()

    def _to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.device, non_blocking=True)

    def _targets(self, sources: Sequence[torch.Tensor], lanes: Sequence[NoLane]) -> list[Array]:
        """Allocate arrays for tensors: in the shared memory of lanes, or together in one block of pinned memory."""
        shared = [lane.allocate(it.shape, _numpy_type(it.dtype)) for it, lane in zip(sources, lanes, strict=True)]
        rest = [it for it, target in zip(sources, shared, strict=True) if target is None]
        ends = list(accumulate(-(-it.nbytes // _ALIGNMENT) * _ALIGNMENT for it in rest))
        block = self._pool.lend(ends[-1]) if rest else memoryview(b"")
        own: Iterator[Array] = (
            np.ndarray(it.shape, _numpy_type(it.dtype), block, offset)
            for it, offset in zip(rest, [0, *ends], strict=False)
        )
        return [next(own) if target is None else target for target in shared]


def transfer_for(device: torch.device, pinned_limit_bytes: int) -> Transfer:
    """Return the transfers of a device."""
    if device.type == "cpu":
        return Transfer(device)
    return CudaTransfer(device, CudaCopies(device), pinned_limit_bytes)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor; bfloat16 becomes uint16, since numpy has no bfloat16."""
    plain = tensor.detach().contiguous()
    return plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain


@functools.cache
def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
