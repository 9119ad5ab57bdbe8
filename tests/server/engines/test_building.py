"""Builds of scenes outside the device's thread: one per tenant at a time, counted until the device has them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lumigrad.kernels import meshes
from lumigrad.kernels.errors import NoRoom
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.accounts import Account, PayloadMemory
from lumigrad.server.core.errors import CancelledError, DeviceMemoryError
from lumigrad.server.core.record import StageTimes
from lumigrad.server.core.turns import Turns
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.scenes.building import Build
from lumigrad.server.scenes.world import Shown, WorldContent, WorldKind
from lumigrad.v1 import scene_pb2

MIB = 1 << 20
SECONDS = 20.0


class Owner:
    """A call, with what builds use of it."""

    def __init__(self) -> None:
        self.has_ended = False
        self._callbacks: list[Callable[[], None]] = []

    def check(self) -> None:
        if self.has_ended:
            raise CancelledError

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        self.has_ended = True
        for callback in self._callbacks:
            callback()


@pytest.fixture
def memory() -> DeviceMemory:
    payloads = Account("bytes of payloads", 1 << 40, "--transit-mib")
    return DeviceMemory(torch.device("cpu"), 512 * MIB, PayloadMemory(payloads, lambda n: memoryview(bytearray(n))))


@pytest.fixture
def tenants(memory: DeviceMemory) -> Callable[[str], Any]:
    turns = Turns()
    return lambda name: SimpleNamespace(tenant=name, memory=memory, builds=turns, building=threading.Lock())


def beside(work: Callable[[], object]) -> tuple[threading.Thread, threading.Event]:
    """Starts work on another thread; returns the thread and an event that is set at the end."""
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, done


def test_what_was_built_counts_until_the_device_has_it(memory: DeviceMemory, tenants: Callable[[str], Any]) -> None:
    build, times = Build(tenants("a"), Owner()), StageTimes()
    assert build.run(lambda: memory.free_bytes // MIB, 300 * MIB) == 212
    assert memory.free_bytes == 212 * MIB
    with pytest.raises(DeviceMemoryError):
        memory.make_room(Cost(bytes=300 * MIB))
    build.taken_over(times, "kernel.build")
    build.end()
    assert memory.free_bytes == 512 * MIB
    assert times.milliseconds["kernel.build"] >= 0


def test_a_build_that_needs_more_counts_that_too(memory: DeviceMemory, tenants: Callable[[str], Any]) -> None:
    def work(more: int) -> int:
        build.add(more)
        return memory.free_bytes // MIB

    build = Build(tenants("a"), Owner())
    assert build.run(lambda: work(200 * MIB), 300 * MIB) == 12
    build.end()
    assert memory.free_bytes == 512 * MIB
    build = Build(tenants("a"), Owner())
    with pytest.raises(DeviceMemoryError):
        build.run(lambda: work(213 * MIB), 300 * MIB)
    assert memory.free_bytes == 512 * MIB


@pytest.mark.parametrize("kind", ["plain", "turned", "in a room"])
def test_meshes_take_no_more_than_is_counted(kind: str) -> None:
    command = [sys.executable, "-m", "support.meshes.build_memory", kind]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    taken, counted = map(float, done.stdout.split())
    assert 0.5 * counted < taken <= counted


def test_a_build_waits_for_its_tenants_other_build_and_not_for_those_of_others(tenants: Callable[[str], Any]) -> None:
    a, b = tenants("a"), tenants("b")
    first = Build(a, Owner())
    first.run(lambda: None, MIB)
    Build(b, Owner()).run(lambda: None, MIB)
    thread, done = beside(lambda: Build(a, Owner()).run(lambda: None, MIB))
    assert not done.wait(0.2)
    first.end()
    assert done.wait(SECONDS)
    thread.join()


def test_builds_of_tenants_take_turns(tenants: Callable[[str], Any]) -> None:
    inside, may_end, order = threading.Event(), threading.Event(), []

    def work() -> None:
        inside.set()
        assert may_end.wait(SECONDS)
        order.append("a")

    one, _ = beside(lambda: Build(tenants("a"), Owner()).run(work, MIB))
    assert inside.wait(SECONDS)
    other, done = beside(lambda: Build(tenants("b"), Owner()).run(lambda: order.append("b"), MIB))
    assert not done.wait(0.2)
    may_end.set()
    one.join(SECONDS)
    other.join(SECONDS)
    assert order == ["a", "b"]


def test_a_call_that_ends_gives_back_what_it_has_built(memory: DeviceMemory, tenants: Callable[[str], Any]) -> None:
    a, owner = tenants("a"), Owner()
    Build(a, owner).run(lambda: None, 100 * MIB)
    owner.end()
    assert memory.free_bytes == 512 * MIB
    Build(a, Owner()).run(lambda: None, MIB)


def test_a_call_that_ends_while_it_waits_builds_nothing(tenants: Callable[[str], Any]) -> None:
    a, late, errors = tenants("a"), Owner(), []
    first = Build(a, Owner())
    first.run(lambda: None, MIB)

    def wait() -> None:
        with pytest.raises(CancelledError) as error:
            Build(a, late).run(lambda: errors.append("built"), MIB)
        errors.append(error.type)

    thread, done = beside(wait)
    late.end()
    assert done.wait(SECONDS)
    thread.join()
    first.end()
    assert errors == [CancelledError]
    Build(a, Owner()).run(lambda: None, MIB)


class Failing:
    """Work that fails, by an error of its own or for lack of room; `kept` is alive as long as the work's frame."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self.kept: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        faces = torch.arange(3 << 20, dtype=torch.int32).reshape(-1, 3)
        self.kept = weakref.ref(faces)
        if self._error is ValueError:
            raise ValueError("bad")
        meshes.Mesh.build(torch.rand(3 << 20, 3), faces)


@pytest.mark.parametrize("error", [ValueError, DeviceMemoryError])
def test_a_build_that_fails_gives_everything_back_without_a_garbage_collection(
    memory: DeviceMemory, tenants: Callable[[str], Any], error: type[Exception]
) -> None:
    a, failing = tenants("a"), Failing(error)
    gc.disable()
    try:
        with pytest.raises(error) as raised:
            Build(a, Owner()).run(failing, MIB)
        assert isinstance(raised.value.__cause__, NoRoom if error is DeviceMemoryError else type(None))
        del raised
        assert failing.kept() is None
    finally:
        gc.enable()
    assert memory.free_bytes == 512 * MIB
    Build(a, Owner()).run(lambda: None, MIB)


def test_builds_count_nothing_where_the_device_has_memory_of_its_own(tenants: Callable[[str], Any]) -> None:
    apart = DeviceMemory(torch.device("cpu"), 16 * MIB)
    runtime = SimpleNamespace(tenant="a", memory=apart, builds=Turns(), building=threading.Lock())
    assert Build(runtime, Owner()).run(lambda: apart.free_bytes, 300 * MIB) == 16 * MIB  # type: ignore[arg-type]


def test_poses_of_an_update_are_set_on_the_thread_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 50
    boxes = [
        meshes.Instance(meshes.Cuboid((1.0, 1.0, 1.0)), (2.0 * i, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)) for i in range(count)
    ]
    shown = Shown([f"box {i}" for i in range(count)], [""] * count, scenes=None)  # type: ignore[arg-type]
    content = WorldContent(shown, meshes.World(boxes))
    request = scene_pb2.UpdateRequest()
    for index in range(count):
        request.obstacles.add(name=f"box {index}", disabled=index == 3).pose.values.extend((0.0, index, 0, 1, 0, 0, 0))
    arrival = WorldKind().change(content, request, runtime=None)  # type: ignore[arg-type]
    make = arrival.receive(PayloadReader())(Owner())
    # The device's thread does the rest, and must not change poses.
    monkeypatch.setattr(meshes.World, "_changed", None)
    changed = make(StageTimes()).world()
    assert [instance.pose[1] for instance in changed.instances] == [float(index) for index in range(count)]
    assert [instance.enabled for instance in changed.instances].index(False) == 3
    assert content.world().instances[1].pose[0] == 2.0
