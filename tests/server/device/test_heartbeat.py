"""SERVING means that a kernel ran on this device a short while ago."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch
from grpc_health.v1 import health_pb2

from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.device.memory import DeviceMemory
from lumigrad.server.process.liveness import Heartbeat
from lumigrad.server.rpc.health import Health

CPU = torch.device("cpu")


class Device:
    """An executor whose probe fails on demand."""

    def __init__(self, seconds: float) -> None:
        self.executor = DeviceExecutor(CPU, DeviceMemory(CPU, 1 << 30), queue_size=2)
        self.broken = False
        self.probes = 0
        self.told: list[bool] = []
        self.heartbeat = Heartbeat(self.executor, self.probe, self.told.append, seconds)

    def probe(self) -> None:
        self.probes += 1
        self.executor.run(self.kernel, None)

    def kernel(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    made = Device(request.param)
    yield made
    made.executor.close()


@pytest.mark.parametrize("device", [3600.0], indirect=True)
def test_a_device_that_works_is_left_alone(device: Device) -> None:
    device.executor.run(device.kernel, None)
    device.heartbeat.beat()
    assert (device.probes, device.told) == (0, [])


@pytest.mark.parametrize("device", [0.0], indirect=True)
def test_an_idle_device_is_tried_out(device: Device) -> None:
    device.executor.run(device.kernel, None)
    device.heartbeat.beat()
    assert (device.probes, device.told) == (1, [])


@pytest.mark.parametrize("device", [3600.0], indirect=True)
def test_a_failure_is_looked_into_told_once_and_taken_back(device: Device) -> None:
    device.broken = True
    with pytest.raises(RuntimeError):
        device.executor.run(device.kernel, None)
    for _ in range(3):
        device.heartbeat.beat()
    assert (device.probes, device.told) == (3, [False])
    device.broken = False
    device.heartbeat.beat()
    assert device.told == [False, True]


@pytest.mark.parametrize("device", [0.0], indirect=True)
def test_a_busy_device_is_not_disturbed(device: Device) -> None:
    go_on = threading.Event()
    caller = threading.Thread(target=lambda: device.executor.run(lambda: go_on.wait(60), None))
    caller.start()
    while not device.executor.is_busy:
        pass
    device.heartbeat.beat()
    assert device.probes == 0
    go_on.set()
    caller.join()


def test_a_heartbeat_does_not_end_a_drain() -> None:
    """A probe that succeeds late must not report SERVING again."""
    status = Health()

    def answer() -> int:
        service = health_pb2.HealthCheckRequest(service="lumigrad.v1.RenderService")
        return status._check(iter([service]), Mock()).status

    status.set(True)
    assert status.is_serving and answer() == health_pb2.HealthCheckResponse.SERVING
    status.stop()
    status.set(True)
    assert not status.is_serving and answer() == health_pb2.HealthCheckResponse.NOT_SERVING
