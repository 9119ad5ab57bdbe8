"""Time of a whole remote render of a stored scene, with a raw copy through a socket beside it."""

from __future__ import annotations

import socket
import threading

from lumigrad.client import Camera, Client, Spheres
from support.workers.worker import worker
from tests.benchmarks.measure import Measured, measure
from tests.benchmarks.scene import CAMERA, GAMMA, MAX_DEPTH, N_TRACK, Scene


def remote_render(case: str, scene: Scene, width: int, height: int) -> list[Measured]:
    """A worker of its own; `kernel_ms` is what that worker's kernel took in the same calls."""
    rows = []
    with worker("--device", "cpu") as process, Client(process.target) as client:
        handle = client.put(Spheres(scene.positions, scene.colors, scene.radii))
        camera = Camera.pulsar(CAMERA, width, height)

        for semantics in ("compat", "exact"):

            def call(semantics: str = semantics) -> float:
                frame = client.render(
                    handle,
                    camera,
                    gamma=GAMMA,
                    max_depth=MAX_DEPTH,
                    n_track=N_TRACK,
                    semantics=semantics,  # type: ignore[arg-type]
                )
                return frame.timings.kernel_ms

            rows.append(measure(case, "remote_render", semantics, call, seconds=3.0))
    return rows


def socket_copy(case: str, size: int) -> Measured:
    """The same bytes through a loopback socket and nothing else: no reply can be faster."""
    payload = bytes(size)
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        received = bytearray(size)

        def serve() -> None:
            while far.recv(1):
                far.sendall(payload)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        def call() -> float:
            near.sendall(b"?")
            view = memoryview(received)
            while view:
                view = view[near.recv_into(view) :]
            return 0.0

        result = measure(case, "socket_copy", "none", call, seconds=0.5)
        near.shutdown(socket.SHUT_WR)
        thread.join(5)
    return result
