"""What it gains that views of one scene which wait together are computed as one: calls per second, and their delay.

Two workers, one of which computes every call by itself, take turns under the same load.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import psutil

from lumigrad.client import Camera, Client, SceneHandle, Spheres
from support.workers.worker import WorkerProcess, worker

CLIENTS = 8
ROUNDS = 5
SECONDS = 1.0


@dataclass
class Turn:
    """One worker under load: the delays of its calls, and the processor time that it took."""

    seconds: float = 0.0
    processor: float = 0.0
    delays: list[float] = field(default_factory=list)


def cloud(count: int) -> Spheres:
    """Spheres in a box around the origin."""
    random = np.random.default_rng(5)
    positions = random.uniform(-1, 1, (count, 3)).astype(np.float32)
    return Spheres(positions, random.random((count, 3), np.float32), np.full(count, 0.02, np.float32))


class Load:
    """Clients who each ask for views of one scene without a pause, while they are told to."""

    def __init__(self, process: WorkerProcess, count: int, size: int) -> None:
        self._process = psutil.Process(process.process.pid)
        self._clients = [Client(process.target) for _ in range(CLIENTS)]
        self._handle = self._clients[0].put(cloud(count))
        self._size = size
        self.total = Turn()

    def run(self) -> None:
        """Let all ask for a while."""
        until = time.perf_counter() + SECONDS
        before, began = sum(self._process.cpu_times()[:2]), time.perf_counter()
        threads = [
            threading.Thread(target=self._ask, args=(client, self._handle, number, until))
            for number, client in enumerate(self._clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.total.seconds += time.perf_counter() - began
        self.total.processor += sum(self._process.cpu_times()[:2]) - before

    def _ask(self, client: Client, handle: SceneHandle, number: int, until: float) -> None:
        camera = Camera.look_at((0.3 * number, -1, -4), (0, 0, 0), (0, -1, 0), width=self._size, height=self._size)
        while time.perf_counter() < until:
            began = time.perf_counter()
            client.render(handle, camera, gamma=0.1, max_depth=10.0)
            self.total.delays.append(time.perf_counter() - began)

    def close(self) -> None:
        """Hang up."""
        for client in self._clients:
            client.close()


def compare(count: int, size: int, options: tuple[str, ...]) -> None:
    """Print one line per worker, and their ratio."""
    with worker("--device", "cpu", "--batch-views", "1") as alone, worker("--device", "cpu", *options) as together:
        loads = [Load(process, count, size) for process in (alone, together)]
        for _ in range(ROUNDS):
            for load in loads:
                load.run()
        rows = [_row(load.total) for load in loads]
        views = together.metric("lumigrad_batch_views_sum") / together.metric("lumigrad_batch_views_count")
        for load in loads:
            load.close()
    print(f"{count} spheres, {size}x{size}: {views:.1f} views at once on average; calls/s, median delay, processor")
    for name, row in zip(("alone", "together"), rows, strict=True):
        print(f"  {name:<10}{row[0]:>8.0f}{row[1]:>10.1f} ms{row[2]:>10.2f} ms")
    print("  ratio     " + "".join(f"{other / one:>8.2f}  " for one, other in zip(*rows, strict=True)), flush=True)


def _row(turn: Turn) -> tuple[float, float, float]:
    calls = len(turn.delays)
    return calls / turn.seconds, 1e3 * statistics.median(turn.delays), 1e3 * turn.processor / calls


if __name__ == "__main__":
    for number, edge in ((1_000, 64), (10_000, 64), (100_000, 64), (100_000, 256)):
        compare(number, edge, ("--batch-views", "16"))
