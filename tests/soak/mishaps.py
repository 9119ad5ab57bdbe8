"""Mishaps of a soak: workers die or drain, connections break, readers stop."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

from support.fault_proxy import End, FaultProxy
from support.workers.reader import Reader
from tests.soak.logged_worker import LoggedWorker

_READER_SIZE = 1920, 1080


class Mishaps:
    """Makes mishaps happen; `count` is the number of each by name."""

    def __init__(self, process: LoggedWorker, proxy: FaultProxy, scene_id: str, token: str) -> None:
        """`scene_id` is a stored scene for a reader that stops; `token` is that of the scene's tenant."""
        self.count: Counter[str] = Counter()
        self._process = process
        self._proxy = proxy
        self._scene_id = scene_id
        self._token = token

    def stop_reader(self) -> Callable[[], None]:
        """Starts a process that asks for an image, and stops it; returns a function that ends it."""
        reader = Reader(self._process.target, self._scene_id, *_READER_SIZE, token=self._token)
        os.kill(reader.process.pid, signal.SIGSTOP)
        self.count["stopped reader"] += 1
        return reader.end

    def break_connections(self, seconds: float, settle: Callable[[], None]) -> None:
        """Ends or freezes connections through the proxy in several ways, for about `seconds`.

        `settle` waits until the calls under way have ended: a call that is lost three times is given up.
        """
        for act in random.sample([self._reset, self._close, self._cut_up, self._cut_down, self._freeze], 3):
            act()
            time.sleep(seconds / 3)
            settle()
        self._proxy.heal()

    def lose_worker(self, number: signal.Signals) -> None:
        """Have the supervisor replace its worker, which SIGTERM drains."""
        restarts = self._process.log.count("restarts=")
        os.kill(self._process.worker_pid, number)
        self.count["drained worker" if number == signal.SIGTERM else "killed worker"] += 1
        self._process.wait_for_log("restarts=", count=restarts + 1)

    def _reset(self) -> None:
        self._proxy.end_all(End.RESET)
        self.count["reset connections"] += 1

    def _close(self) -> None:
        self._proxy.end_all(End.CLOSE)
        self.count["closed connections"] += 1

    def _cut_up(self) -> None:
        self._proxy.up.cut(random.randrange(100_000))
        self.count["cut on the way up"] += 1

    def _cut_down(self) -> None:
        self._proxy.down.cut(random.randrange(1_000_000))
        self.count["cut on the way down"] += 1

    def _freeze(self) -> None:
        self._proxy.down.frozen = True
        time.sleep(0.3)
        self._proxy.down.frozen = False
        self.count["frozen network"] += 1
