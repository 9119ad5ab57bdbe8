"""Liveness of a worker: warm-up, heartbeat, watchdog, emergency exit, and trimming of the heap."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

import torch

from lumigrad.kernels import gaussians, meshes, spheres
from lumigrad.server.core import logs
from lumigrad.server.device.executor import DeviceExecutor
from lumigrad.server.engines.runner import Machine
from lumigrad.server.rpc.handler import CallHandler
from lumigrad.server.shm.lanes import Lanes

_LONGEST_PAUSE_SECONDS = 0.5


class Watchdog:
    """Detects a hung device thread, and stops jobs that take too long, from a separate thread."""

    def __init__(
        self,
        executor: DeviceExecutor,
        hang_seconds: float,
        on_hang: Callable[[str], None],
        on_look: Callable[[], None],
    ) -> None:
        """`on_hang` is called once, with a description; until then, `on_look` is called at least every half second."""
        self._executor = executor
        self._hang_seconds = hang_seconds
        self._on_hang = on_hang
        self._on_look = on_look

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        pause = min(_LONGEST_PAUSE_SECONDS, self._hang_seconds / 4)
        while self._executor.held_seconds <= self._hang_seconds:
            self._executor.stop_overdue()
            self._on_look()
            time.sleep(pause)
        # Only the stacks show where the thread hangs, and they are lost with the process.
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._on_hang(
            f"the device did not come back within {self._hang_seconds:g} s (--hang-seconds); "
            "the stacks of all threads are above"
        )


_SECONDS = 10.0


class Heartbeat:
    """Probes a device that is idle or whose last job failed, and reports when it stops or resumes working."""

    def __init__(
        self,
        executor: DeviceExecutor,
        probe: Callable[[], None],
        on_change: Callable[[bool], None],
        seconds: float = _SECONDS,
    ) -> None:
        """`probe` runs a kernel and raises if that fails; `on_change` is called with whether the device works."""
        self._executor = executor
        self._probe = probe
        self._on_change = on_change
        self._seconds = seconds
        self._works = True

    def beat(self) -> None:
        """Check the device. Call it about once a second."""
        if self._executor.is_busy:
            return
        error = None
        if time.monotonic() - self._executor.queue.last_success > self._seconds:
            try:
                self._probe()
            except Exception as failure:
                error = failure
        works = error is None
        if works != self._works:
            self._works = works
            text = "the device works again" if works else "the device fails a test render"
            logs.event(text, logging.WARNING if works else logging.ERROR, error=error)
            self._on_change(works)


# The time for refusing calls in progress, and for sending what refuses them.
_REFUSING_SECONDS = 0.5
# The time for sending the last bytes.
_FLUSH_SECONDS = 0.1


class Emergency:
    """Exits the process without waiting for a device that may never answer."""

    def __init__(
        self,
        handler: CallHandler,
        lanes: Lanes,
        tell_health: Callable[[bool], None],
        write_notes: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._lanes = lanes
        self._write_notes = write_notes
        # The executor whose jobs are refused. Set later, because the executor itself reports failures here.
        self.executor: DeviceExecutor | None = None
        self._tell_health = tell_health
        self._begun = threading.Lock()

    def end(self, code: int, why: str, error: BaseException | None = None) -> None:
        """Refuse waiting calls with UNAVAILABLE, then exit. Returns at once; later calls do nothing."""
        if not self._begun.acquire(blocking=False):
            return
        logs.event(why, logging.ERROR, error=error, exit_code=code)
        self._handler.close()
        # Done before the running calls fail, because they leave regions to which the device may still write.
        self._lanes.freeze()
        if self.executor is not None:
            self.executor.abandon()
        # A separate thread exits, because the caller may be the device's thread, which must send its last reply.
        threading.Thread(target=self._exit, args=(code,), name="emergency", daemon=True).start()

    def _exit(self, code: int) -> None:
        # Health watchers must not delay the exit.
        threading.Thread(target=self._tell_health, args=(False,), name="last health", daemon=True).start()
        self._handler.wait_idle(_REFUSING_SECONDS)
        self._write_notes()
        # A call is idle before its reply is sent.
        self._handler.wait_sent(_REFUSING_SECONDS)
        time.sleep(_FLUSH_SECONDS)
        # Skip destructors, which would wait for the device.
        os._exit(code)


_SIZE = 16
_IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
_LENS = (_SIZE, _SIZE, _SIZE / 2, _SIZE / 2)
_AWAY = 0.25


def warm_up(machine: Machine) -> None:
    """Run all engines once on the device's thread; raises if a result is wrong.

    The scenes are of the usual kind, RGB with harmonics of degree 3, since CUDA loads each kernel at its first use.
    """
    machine.executor.run(lambda: _run(machine), None)


def _run(machine: Machine) -> None:
    device = machine.transfer.device
    pictures = {"sphere": _sphere(device), "Gaussian": _gaussian(device)}
    distances = _mesh(device)
    machine.transfer.finish()
    if abs(distances.item() - _AWAY) > 1e-3:
        raise RuntimeError(f"the warm-up query of a point {_AWAY} m from a mesh gave {distances.item()} m")
    for name, picture in pictures.items():
        centre = picture[0, _SIZE // 2, _SIZE // 2, 0].item()
        if not 0.0 < centre < 1.0:
            raise RuntimeError(f"the warm-up render of a {name} of colour 0.5 gave {centre}")


def _sphere(device: torch.device) -> torch.Tensor:
    forward = spheres.forward(
        torch.tensor([[0.0, 0.0, 4.0]], device=device),
        torch.full((1, 3), 0.5, device=device),
        torch.tensor([1.0], device=device),
        [spheres.Camera.opencv(*_LENS, _IDENTITY, [0, 0, 0], _SIZE, _SIZE)],
        spheres.Settings(gamma=0.1, max_depth=10.0, min_depth=0.1),
        retain=True,
    )
    assert forward.state is not None
    spheres.backward(forward.state, {"color": torch.ones_like(forward.outputs["color"])})
    return forward.outputs["color"]


def _gaussian(device: torch.device) -> torch.Tensor:
    cloud = gaussians.Gaussians(
        means=torch.tensor([[0.0, 0.0, 4.0]], device=device),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]], device=device),
        scales=torch.ones(1, 3, device=device),
        opacities=torch.tensor([0.9], device=device),
        # Harmonics of the colour 0.5.
        sh=torch.zeros(1, 16, 3, device=device),
    )
    camera = gaussians.Camera.opencv(*_LENS, _IDENTITY, [0, 0, 0], _SIZE, _SIZE)
    forward = gaussians.forward(cloud, [camera], gaussians.Settings(), retain=True)
    assert forward.state is not None
    gaussians.backward(forward.state, {"color": torch.ones_like(forward.outputs["color"])})
    return forward.outputs["color"]


def _mesh(device: torch.device) -> torch.Tensor:
    corners = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], device=device)
    faces = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]], device=device)
    world = meshes.World([meshes.Instance(meshes.Mesh.build(corners, faces))])
    sphere = torch.tensor([-_AWAY, 0.25, 0.25, 0.5], device=device).reshape(1, 1, 1, 4)
    found = meshes.evaluate(sphere, world, meshes.Settings(), outputs=("cost", "distance"), retain=True)
    assert found.state is not None
    meshes.backward(found.state, {"cost": torch.ones_like(found.outputs["cost"])})
    return found.outputs["distance"]


# By itself, the C library returns free memory to the system only from the ends of its heaps.
_TRIM_SECONDS = 60.0


class Heap:
    """Returns free memory to the system periodically: between blocks in use, it would accumulate over hours."""

    def __init__(self, seconds: float = _TRIM_SECONDS) -> None:
        """`seconds` is the time between two trims."""
        # Only glibc has this function.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._seconds = seconds
        self._trimmed = time.monotonic()

    def tidy(self) -> None:
        """Trim the heap if it is time. Call it about once a second."""
        if self._trim is not None and time.monotonic() - self._trimmed >= self._seconds:
            self._trim(ctypes.c_size_t(0))
            self._trimmed = time.monotonic()
