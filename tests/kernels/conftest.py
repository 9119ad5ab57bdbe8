"""Fixtures for tests of CUDA devices, and for references in torch."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator

import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels._native import Queue
from support.backends import cuda_devices, emulation, engines, gaussian_engines, mesh_engines
from support.backends.cuda_devices import CudaDevice, Device
from support.backends.deferral import deferred
from support.backends.density_machines import MACHINES

# Orders of threads in `make test-all`.
THREAD_SEEDS = 16
DEVICES = {
    "gaussians": gaussian_engines.device_on,
    "sensors": gaussian_engines.device_on,
    "spheres": engines.device_on,
    "meshes": mesh_engines.device_on,
}


@pytest.fixture
def emulated_cuda() -> Iterator[CudaDevice]:
    """The emulated device, reset afterwards."""
    cuda = cuda_devices.emulated()
    yield cuda
    cuda.native.fail_allocations(0)


@pytest.fixture
def queue() -> Iterator[Queue]:
    """A queue for native jobs, with a running device thread."""
    made = Queue(8, 8, 0)
    thread = threading.Thread(target=made.take, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join()


@pytest.fixture
def keep_threads() -> Iterator[None]:
    """Restores the CPU's number of threads afterwards."""
    before = _native.thread_count()
    yield
    _native.set_thread_count(before)


@pytest.fixture(autouse=True)
def _as_on_hardware(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes the emulated device as late and imprecise as a GPU may be; with `--whole`, also in another thread order."""
    if "emulation" not in request.node.name and "emulated_cuda" not in request.fixturenames:
        yield
        return
    native = emulation.load("_emulation")
    native.set_error_seed(1)
    if request.config.getoption("whole"):
        native.set_seed(1 + zlib.crc32(request.node.nodeid.encode()) % THREAD_SEEDS)
    with deferred(native):
        yield
    native.set_seed(0)
    native.set_error_seed(0)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes `thread_seed`, the seed of an order of threads; `--whole` adds more seeds."""
    if "thread_seed" in metafunc.fixturenames:
        whole = metafunc.config.getoption("whole")
        metafunc.parametrize("thread_seed", range(1, 1 + THREAD_SEEDS) if whole else (1, 7))


@pytest.fixture(params=["emulation", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda(request: pytest.FixtureRequest) -> CudaDevice:
    """The emulated device, and a GPU if there is one."""
    if request.param == "gpu":
        return cuda_devices.gpu()
    device: CudaDevice = request.getfixturevalue("emulated_cuda")
    return device


@pytest.fixture
def device(request: pytest.FixtureRequest, cuda: CudaDevice) -> Device:
    """A fresh engine on `cuda`, of the kind of the test's folder."""
    return DEVICES[request.path.parent.name](cuda)


@pytest.fixture
def emulation_device(request: pytest.FixtureRequest, emulated_cuda: CudaDevice) -> Device:
    """The device of `device`, on the emulated device alone."""
    return DEVICES[request.path.parent.name](emulated_cuda)


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.gpu if name == "gpu" else ())
        for name in MACHINES
        if name != "gpu" or torch.cuda.is_available()
    ]
)
def density_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The tensors' device; a test runs on each machine for density control and with each instruction set of the CPU."""
    with MACHINES[request.param]() as device:
        yield device
