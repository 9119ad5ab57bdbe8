"""Scenes that take long to read: the worker meanwhile starts, stops and answers, and reads each of them once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.driving.scenes import SCENE, Street, frame, street
from support.driving.stubs import DrivingClient
from support.held_disk import HeldDisk
from support.ports import reserved_port
from support.workers.slow_render import wait_until
from support.workers.worker import LUMIGRAD, WorkerProcess, worker

START_SECONDS = 20.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Street:
    return street(tmp_path_factory.mktemp("scenes"))


@pytest.fixture
def disk(tmp_path: Path) -> HeldDisk:
    return HeldDisk(tmp_path)


def loaded(simulator: DrivingClient) -> list[str]:
    return [scene.scene_id for scene in simulator.call("get_loaded_scenes").scenes]


def test_a_scene_is_read_although_no_caller_waits_so_long(place: Street, disk: HeldDisk) -> None:
    options = ("--device", "cpu", "--sensorsim", str(place.folder))
    with worker(*options, environment=disk.environment) as process, DrivingClient(process.target) as simulator:
        with disk.hold_reads() as begun:
            for _ in range(2):
                with pytest.raises(grpc.RpcError) as late:
                    simulator.call("render_rgb", frame(), timeout=1.0)
                assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            wait_until(begun.exists, "the first read")
            assert not loaded(simulator)
        wait_until(lambda: loaded(simulator) == [SCENE], "the scene that nobody waits for any more")
        assert simulator.call("render_rgb", frame()).image_bytes


@pytest.fixture
def release_later(disk: HeldDisk) -> Iterator[None]:
    """Holds reads for longer than a start may take, from the first attempt to read."""
    hold = disk.hold_reads()
    begun = hold.__enter__()
    is_over = threading.Event()

    def release() -> None:
        while not begun.exists() and not is_over.wait(0.05):
            pass
        is_over.wait(START_SECONDS + 3.0)
        hold.__exit__(None, None, None)

    thread = threading.Thread(target=release)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("release_later")
def test_a_worker_that_loads_for_longer_than_a_start_may_take_is_not_killed(place: Street, disk: HeldDisk) -> None:
    program = (
        "import sys",
        "from lumigrad.client.cli import main",
        "from lumigrad.server.process import slot",
        f"slot._START_SECONDS = slot._LEAST_SILENCE_SECONDS = {START_SECONDS}",
        "sys.exit(main())",
    )
    command = (sys.executable, "-c", "\n".join(program), "serve")
    options = ("--device", "cpu", "--hang-seconds", "2", "--sensorsim", str(place.folder), "--sensorsim-preload")
    with (
        worker(*options, environment=disk.environment, supervised=True, command=command) as process,
        DrivingClient(process.target) as simulator,
    ):
        process.wait_for_log("worker started")
        assert process.log.count("worker started") == 1
        assert loaded(simulator) == [SCENE]


def test_a_worker_that_loads_is_not_serving_and_ends_when_it_is_asked_to(place: Street, disk: HeldDisk) -> None:
    with reserved_port() as port:
        command = [LUMIGRAD, "serve", "--no-supervisor", "--device", "cpu", "--port", str(port), "--metrics-port", "0"]
        command += ["--lame-duck-seconds", "0", "--sensorsim", str(place.folder), "--sensorsim-preload"]
        with disk.hold_reads() as begun:
            process = subprocess.Popen(command, env=disk.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                wait_until(begun.exists, "the first read")
                with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                    check = health_pb2_grpc.HealthStub(channel).Check
                    status = check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True).status
                assert status == health_pb2.HealthCheckResponse.NOT_SERVING
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
                assert process.stdout is not None
                assert process.stdout.read() == b""
            finally:
                process.kill()
                process.wait()


def short_of_memory(attempts: int, seconds: float, retry: str = "0.01") -> tuple[str, ...]:
    """Statements for a worker whose first attempts to read a scene find no memory, and which waits for `seconds`."""
    return (
        "from lumigrad.server.core.errors import DeviceMemoryError",
        "from lumigrad.server.sensorsim import service",
        f"read, left, service._PRELOAD_WAIT_SECONDS = service.read_named, [{attempts}], {seconds}",
        "def read_named(*arguments):",
        "    left[0] -= 1",
        "    if left[0] >= 0:",
        f"        raise DeviceMemoryError(2, 1, {retry})",
        "    return read(*arguments)",
        "service.read_named = read_named",
    )


def test_a_worker_waits_for_memory_of_the_scenes_that_it_loads_first(place: Street) -> None:
    options = ("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload")
    before = short_of_memory(attempts=3, seconds=60)
    with worker(*options, before=before) as process, DrivingClient(process.target) as simulator:
        process.wait_for_log("waiting for memory for a scene", count=3)
        assert process.log.count("waiting for memory for a scene") == 3
        assert loaded(simulator) == [SCENE]


def test_a_worker_without_memory_for_a_scene_starts_and_reads_it_later(place: Street) -> None:
    options = ("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload")
    before = short_of_memory(attempts=10**9, seconds=0)
    with worker(*options, before=before) as process, DrivingClient(process.target) as simulator:
        process.wait_for_log("started without a scene")
        process.wait_for_log(SCENE)
        assert loaded(simulator) == []
        assert simulator.call("render_rgb", frame(scene_id=SCENE)).image_bytes
        assert loaded(simulator) == [SCENE]


def test_a_scene_that_can_never_fit_still_ends_a_first_start(place: Street) -> None:
    options = ("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload")
    with pytest.raises(RuntimeError, match=r"--sensorsim-preload: "):
        WorkerProcess(*options, before=short_of_memory(attempts=1, seconds=60, retry="None"))
