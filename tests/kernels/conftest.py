"""Fixtures for what only CUDA devices have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import cuda_devices
from support.cuda_devices import CudaDevice


@pytest.fixture
def emulated_cuda() -> Iterator[CudaDevice]:
    """The emulated device, put back in order afterwards."""
    cuda = cuda_devices.emulated()
    yield cuda
    cuda.native.set_seed(0)
    cuda.native.fail_allocations(0)


@pytest.fixture(params=["emulation", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> CudaDevice:
    """The emulated device, and a GPU where there is one."""
    if request.param == "gpu":
        return cuda_devices.gpu()
    device: CudaDevice = request.getfixturevalue("emulated_cuda")
    return device
