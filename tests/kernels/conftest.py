"""Fixtures for what only CUDA devices have, and for references in torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice
from support.backends.density_machines import MACHINES


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


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.gpu if name == "gpu" else ())
        for name in MACHINES
        if name != "gpu" or torch.cuda.is_available()
    ]
)
def density_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Density control runs on one machine after the other, and each instruction set of the CPU; tensors go here."""
    with MACHINES[request.param]() as device:
        yield device
