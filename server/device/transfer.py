"""Transfers of arrays between network buffers and the device: no copies on the CPU, pinned memory for CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.buffers import PayloadBuffers
from lumigrad.protos.dtypes import Array
from lumigrad.server.device.faults import is_out_of_memory
from lumigrad.v1 import tensor_pb2

# Buffers of uploads that are cached for later ones. glibc has an arena per thread, so that it would not reuse a buffer
# that another call's thread has freed.
_LEAST_KEPT_BYTES = 8 << 20
_MOST_KEPT_BYTES = 128 << 20


class Transfer:
    """Moves arrays to and from one device. `upload` and `download` belong to the device's thread."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cpu = device.type == "cpu"
        # PyTorch caches pinned memory itself.
        self._buffers = PayloadBuffers(_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES)

    def allocate(self, length: int) -> memoryview:
        """A buffer for an upload."""
        if self.is_cpu or not length:
            return self._buffers.lend(length)
        buffer: memoryview = _pinned((length,), torch.uint8).numpy().data
        return buffer

    def upload(self, array: Array, dtype: tensor_pb2.DType) -> torch.Tensor:
        """The array on the device, as float32 if it is of another float type.

        On CUDA the copy is only queued: keep the array until `finish`.
        """
        # Inline bytes are immutable, which torch cannot express; they are few.
        host = torch.from_numpy(array if array.flags.writeable else array.copy())
        if dtype == dtypes.BFLOAT16:
            host = host.view(torch.bfloat16)
        tensor = host if self.is_cpu else host.to(self.device, non_blocking=True)
        return tensor.float() if tensor.is_floating_point() else tensor

    def download(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """The tensors on the host; bfloat16 as uint16 bits. Waits for all queued work of the device."""
        hosts = [self._to_host(tensor.detach().contiguous()) for tensor in tensors]
        self.finish()
        return [host.numpy() for host in hosts]

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """As `download`, on any thread; for tensors that were complete at the last wait for the device."""
        if self.is_cpu:
            return [tensor.numpy() for tensor in tensors]
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            hosts = [tensor.detach().contiguous().cpu() for tensor in tensors]
        return [host.numpy() for host in hosts]

    def finish(self) -> None:
        """Wait for the device."""
        if not self.is_cpu:
            torch.cuda.current_stream(self.device).synchronize()

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        if bits.device.type == "cpu":
            return bits
        return _pinned(bits.shape, bits.dtype).copy_(bits, non_blocking=True)


def _pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Pinned host memory; MemoryError if the host has none left."""
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    except RuntimeError as error:
        # CUDA reports it as an error of the device.
        if is_out_of_memory(error):
            raise MemoryError("no pinned memory") from error
        raise
