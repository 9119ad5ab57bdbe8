"""Host memory that a GPU reads from and writes to."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import memory
from lumigrad.protos import dtypes
from lumigrad.server.core.call import NoLane
from lumigrad.server.device import cuda
from lumigrad.server.device.transfer import Transfer, transfer_for
from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice
from support.backends.emulated_copies import EmulatedCopies, emulated_transfer

ARRAY = np.arange(300_000, dtype=np.float32)


def test_the_cpu_moves_nothing() -> None:
    transfer = transfer_for(torch.device("cpu"), 0)
    assert type(transfer) is Transfer and transfer.pinner is None
    uploaded = transfer.upload(ARRAY, dtypes.FLOAT32)
    download = transfer.start_download([uploaded])
    assert download.is_complete
    assert download.arrays[0].ctypes.data == uploaded.data_ptr() == ARRAY.ctypes.data
    assert transfer.pinned_bytes == transfer.downloading_bytes == 0


def test_uploads_go_through_pinned_memory() -> None:
    copies = EmulatedCopies()
    transfer = emulated_transfer(copies)
    buffer = transfer.allocate(ARRAY.nbytes)
    assert np.frombuffer(buffer, np.uint8).ctypes.data in copies.pinned
    assert transfer.pinned_bytes >= ARRAY.nbytes
    assert len(transfer.allocate(0)) == 0


def test_where_cuda_refuses_to_pin_memory_results_arrive_all_the_same() -> None:
    copies = EmulatedCopies()
    copies.refuses = True
    (array,) = emulated_transfer(copies).download([torch.from_numpy(ARRAY)])
    assert np.array_equal(array, ARRAY)


def test_a_refusal_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(cuda, "pin", lambda *_: "cudaErrorMemoryAllocation")
    copies = cuda.CudaCopies(torch.device("cuda", 0))
    with caplog.at_level(logging.WARNING, "lumigrad"):
        logging.getLogger("lumigrad").propagate = True
        assert not copies.pin(ARRAY.view(np.uint8))
        assert not copies.pin(ARRAY.view(np.uint8))
    assert [record.message for record in caplog.records] == [
        "CUDA does not register host memory, so copies to and from it take longer"
    ]


@pytest.fixture(params=["emulation", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    made = cuda_devices.emulated() if request.param == "emulation" else cuda_devices.gpu()
    monkeypatch.setattr(memory, "_native", made.native)
    return made


def test_memory_is_registered_with_cuda_once(device: CudaDevice) -> None:
    block = torch.empty(1 << 20, dtype=torch.uint8)
    page = -block.data_ptr() % 4096
    address = block.data_ptr() + page
    assert memory.pin(device.device, address, 1 << 16) == ""
    assert memory.pin(device.device, address + 4096, 4096) == "cudaErrorHostMemoryAlreadyRegistered"
    memory.unpin(device.device, address)
    assert memory.pin(device.device, address + 4096, 4096) == ""
    memory.unpin(device.device, address + 4096)
    if device.name == "gpu":
        # The refusal causes no error in a later call.
        torch.ones(10, device=device.device).sum().item()


class _StandInLane(NoLane):
    """A lane with room for arrays that are not small."""

    def __init__(self, pin: Callable[[np.ndarray], bool]) -> None:
        self.made: list[np.ndarray] = []
        self._pin = pin

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray | None:
        if math.prod(shape) < 8:
            return None
        self.made.append(np.zeros(shape, dtype))
        self._pin(self.made[-1])
        return self.made[-1]


@pytest.mark.parametrize("is_cpu", [True, False])
def test_copies_are_made_once_where_they_are_sent_from(is_cpu: bool) -> None:
    copies = EmulatedCopies()
    transfer = Transfer(torch.device("cpu")) if is_cpu else emulated_transfer(copies)
    large, small, lane = torch.arange(20.0), torch.arange(4.0).bfloat16(), _StandInLane(copies.pin)
    found = transfer.copied([large, small], lane)
    assert found[0] is lane.made[0] and len(lane.made) == 1 and found[1].dtype == np.uint16
    expected = large.clone()
    large.zero_()
    small.zero_()
    assert found[0].tolist() == expected.tolist() and found[1].tolist() == [0, 0x3F80, 0x4000, 0x4040]
