"""The throughput of a cluster, by calculation and by simulation: `python -m tests.benchmarks.scale_out.model`."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.page import insert
from tests.benchmarks.scale_out.simulation import Memory, Queue, Stage, owners, steps_per_second
from tests.benchmarks.scale_out.workloads import SCENE_BYTES, VIEW, WORKLOADS, Cluster, Workload

PAGE = Path("docs/scaling.md")
SIZES = (1, 8, 64, 512)
ROUNDS = 20
# Scenes of a million Gaussians that a worker keeps by default, in 4 GiB.
KEPT_SCENES = int((4 << 30) / SCENE_BYTES)
CHOICES = ("by hash", "in turns", "at random")


@dataclass(frozen=True)
class Outcome:
    """The results of a simulation: calls per second, the busiest queue, and the share of the time it was busy."""

    per_second: float
    busiest: str
    share: float


def limits(work: Workload, cluster: Cluster) -> dict[str, float]:
    """Calls per second and GPU that each part of a full machine would allow by itself.

    Links carry both directions at once. A single call is sent as fast as the slowest part of its way passes it on.
    """
    wider = max(work.up_bytes, work.down_bytes)
    slowest = min(cluster.process, cluster.worker_link, cluster.trainer_link)
    alone_s = cluster.trip_s + work.device_s + work.bytes / slowest
    return {
        "device": 1 / work.device_s,
        "Python, a process": cluster.process / work.bytes,
        "workers' link": cluster.worker_link / cluster.per_machine / wider,
        "trainers' link": cluster.trainer_link / cluster.per_machine / wider,
        "one call at a time": 1 / alone_s,
    }


class Machines:
    """The queues of a cluster of GPUs, and as many trainers."""

    def __init__(self, gpus: int, cluster: Cluster) -> None:
        machines = range(-(-gpus // cluster.per_machine))
        self.cluster = cluster
        self.devices = [Queue("device") for _ in range(gpus)]
        self.workers = [Queue("Python, a process") for _ in range(gpus)]
        self.trainers = [Queue("Python, a process") for _ in range(gpus)]
        self.worker_links = [(Queue("workers' link"), Queue("workers' link")) for _ in machines]
        self.trainer_links = [(Queue("trainers' link"), Queue("trainers' link")) for _ in machines]

    def transfer(self, who: int, worker: int, nbytes: float, *, up: bool) -> Stage:
        """Bytes from a trainer to a worker, or back: out of one process, over two links, into another."""
        cluster, way = self.cluster, 0 if up else 1
        return Stage(
            (
                (self.trainers[who], nbytes / cluster.process),
                (self.trainer_links[who // cluster.per_machine][way], nbytes / cluster.trainer_link),
                (self.worker_links[worker // cluster.per_machine][way], nbytes / cluster.worker_link),
                (self.workers[worker], nbytes / cluster.process),
            )
        )

    def call(self, who: int, worker: int, work: Workload, sent_before: float = 0.0) -> list[Stage]:
        """The stages of a call; `sent_before` are the bytes of a scene that the worker lacks."""
        trip = Stage((), self.cluster.trip_s)
        up = self.transfer(who, worker, work.up_bytes + sent_before, up=True)
        down = self.transfer(who, worker, work.down_bytes, up=False)
        return [trip, up, Stage(((self.devices[worker], work.device_s),)), down]

    def busiest(self, elapsed: float) -> tuple[str, float]:
        """The kind of the busiest queue, and the share of the time in which it was busy."""
        links = itertools.chain.from_iterable((*self.worker_links, *self.trainer_links))
        queues = [*self.devices, *self.workers, *self.trainers, *links]
        most = max(queues, key=lambda queue: queue.share(elapsed))
        return most.name, most.share(elapsed)


def training(gpus: int, work: Workload, scenes_per_trainer: int, cluster: Cluster | None = None) -> Outcome:
    """Trainers that each make steps of all their scenes at once, on the workers that hashes choose.

    With `scenes_per_trainer` 0 each trainer has a worker of its own.
    """
    machines = Machines(gpus, cluster or Cluster())
    callers = gpus * max(scenes_per_trainer, 1)
    where = owners(callers, gpus) if scenes_per_trainer else range(gpus)
    calls, elapsed = steps_per_second(callers, lambda who: machines.call(who % gpus, where[who], work), ROUNDS)
    return Outcome(calls, *machines.busiest(elapsed))


def affinity(gpus: int, scenes: int, choice: str, rounds: int = 60) -> tuple[float, float]:
    """Views per second, and megabytes of scenes sent per view, once every worker has had time to fill.

    As many viewers as GPUs each ask for two views at a time, of random scenes.
    """
    machines, any_one = Machines(gpus, Cluster()), random.Random(0)
    memories = [Memory(KEPT_SCENES) for _ in range(gpus)]
    turns = itertools.cycle(range(gpus))
    where = owners(scenes, gpus)
    choose: Callable[[int], int] = {
        "by hash": where.__getitem__,
        "in turns": lambda _: next(turns),
        "at random": lambda _: any_one.randrange(gpus),
    }[choice]
    asked = missed = 0
    warm_up = gpus * 2 * rounds // 2

    def next_call(who: int) -> Sequence[Stage]:
        nonlocal asked, missed
        scene = any_one.randrange(scenes)
        worker = choose(scene)
        is_there = memories[worker].has(scene)
        asked += 1
        missed += asked > warm_up and not is_there
        return machines.call(who % gpus, worker, VIEW, 0.0 if is_there else SCENE_BYTES)

    calls, _ = steps_per_second(2 * gpus, next_call, rounds)
    return calls, missed * SCENE_BYTES / 1e6 / max(asked - warm_up, 1)


def tables() -> str:
    """All tables, as in the documentation."""
    cluster = Cluster()
    parts = tuple(limits(WORKLOADS[0], cluster))
    lines = ["| steps / s and GPU | MB per step | " + " | ".join(parts) + " |", "|---" * (len(parts) + 2) + "|"]
    for work in WORKLOADS:
        found = limits(work, cluster)
        least = min(found, key=found.__getitem__)
        shown = (f"**{_short(found[part])}**" if part == least else _short(found[part]) for part in parts)
        lines.append(f"| {work.name} | {work.bytes / 1e6:,.4g} | " + " | ".join(shown) + " |")
    lines += ["", "| steps / s, GPUs: | " + " | ".join(map(str, SIZES)) + " | busiest, of 512 |", "|---" * 6 + "|"]
    for work in WORKLOADS:
        for scenes, name in ((0, "a worker each"), (1, "1 scene per GPU, hashed"), (4, "4 per GPU, hashed")):
            outcomes = [training(gpus, work, scenes) for gpus in SIZES]
            rates = " | ".join(_short(outcome.per_second) for outcome in outcomes)
            lines.append(f"| {work.name}; {name} | {rates} | {outcomes[-1].busiest}, {outcomes[-1].share:.0%} |")
    lines += [
        "",
        "| GPUs, scenes | " + " | ".join(f"{choice}: views / s, MB sent for each" for choice in CHOICES) + " |",
    ]
    lines.append("|---" * 4 + "|")
    for gpus, scenes in ((8, 8), (8, 64), (64, 512)):
        found_each = [affinity(gpus, scenes, choice) for choice in CHOICES]
        cells = " | ".join(f"{_short(views)}, {sent:.0f}" for views, sent in found_each)
        lines.append(f"| {gpus}, {scenes} | {cells} |")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"put them into {PAGE}")
    text = tables()
    print(text)
    if parser.parse_args().docs:
        insert("simulation scale_out", text, PAGE)


if __name__ == "__main__":
    main()
