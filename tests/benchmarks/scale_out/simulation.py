"""A cluster as queues: who waits for what, if every trainer asks again as soon as it has its reply."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lumigrad.client.workers.routing import ranked


class Queue:
    """Serves in order of arrival, as many at a time as it has servers."""

    def __init__(self, name: str, servers: int = 1) -> None:
        self.name = name
        self.busy_s = 0.0
        self._free_at = [0.0] * servers

    def take(self, now: float, seconds: float) -> float:
        """Waits from `now` on for its turn; returns the time at which it has been served."""
        end = max(now, heapq.heappop(self._free_at)) + seconds
        heapq.heappush(self._free_at, end)
        self.busy_s += seconds
        return end

    def share(self, elapsed: float) -> float:
        """The share of the time in which the queue was busy."""
        return min(self.busy_s / (elapsed * len(self._free_at)), 1.0)


@dataclass(frozen=True)
class Stage:
    """A part of a call: the time for which it occupies queues, all at once, as chunks of a stream do.

    It ends when the last queue is done.
    """

    parts: tuple[tuple[Queue, float], ...]
    # A delay that occupies no queue.
    pause_s: float = 0.0


# Returns the stages of a trainer's next call.
NextCall = Callable[[int], Sequence[Stage]]


def steps_per_second(trainers: int, next_call: NextCall, rounds: int) -> tuple[float, float]:
    """Runs until each trainer has made `rounds` calls, on average.

    Returns:
        Calls per second, without the first tenth, while the cluster is still filling; and the seconds of all calls.
    """
    calls, finished = trainers * rounds, 0
    begun_at, counted_from = 0.0, calls // 10
    # Time, order of events at the same time, trainer, and remaining stages of its call.
    events: list[tuple[float, int, int, list[Stage]]] = [(0.0, who, who, []) for who in range(trainers)]
    order = trainers
    now = 0.0
    while finished < calls:
        now, _, who, left = heapq.heappop(events)
        if not left:
            left = list(next_call(who))[::-1]
        stage = left.pop()
        order += 1
        end = max((queue.take(now, seconds) for queue, seconds in stage.parts), default=now) + stage.pause_s
        heapq.heappush(events, (end, order, who, left))
        if not left:
            finished += 1
            if finished == counted_from:
                begun_at = end
            now = end
    return (calls - counted_from) / (now - begun_at), now


class Memory:
    """The scenes that a worker keeps, an LRU cache."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._scenes: OrderedDict[int, None] = OrderedDict()

    def has(self, scene: int) -> bool:
        """Whether a scene is kept; if not, it is from now on."""
        found = scene in self._scenes
        self._scenes[scene] = None
        self._scenes.move_to_end(scene)
        if len(self._scenes) > self._most:
            self._scenes.popitem(last=False)
        return found


@lru_cache
def owners(scenes: int, workers: int) -> tuple[int, ...]:
    """The worker of each scene, chosen as the client chooses."""
    names = [f"worker-{number}:50051" for number in range(workers)]
    numbers = {name: number for number, name in enumerate(names)}
    return tuple(numbers[ranked(f"scene-{scene}", names)[0]] for scene in range(scenes))


def measured_machine(workers: int, worker_s: float, client_s: float, callers: int, cores: int) -> float:
    """Calls per second of workers of one thread, and a client, that share the cores of one machine.

    Args:
        workers: how many.
        worker_s: a processor's time for a call, in its worker.
        client_s: the client's processor time for a call; it is one process and runs Python in one thread at a time.
        callers: each asks again when it has its reply; they have a scene each.
        cores: of the machine.
    """
    processors, client = Queue("processors", cores), Queue("client")
    processes = [Queue(f"worker {number}") for number in range(workers)]
    where = owners(callers, workers)

    def next_call(who: int) -> list[Stage]:
        # A call occupies its process and a core at the same time.
        process = processes[where[who]]
        return [
            Stage(((client, client_s), (processors, client_s))),
            Stage(((process, worker_s), (processors, worker_s))),
        ]

    return steps_per_second(callers, next_call, 400)[0]
