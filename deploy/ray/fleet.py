"""The actor that manages the workers of a fleet and returns their addresses to clients."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass

import ray

from lumigrad.ray.member import Member
from lumigrad.ray.options import Options
from lumigrad.ray.scaling import Scaling
from lumigrad.ray.worker import ServingWorker

NAMESPACE = "lumigrad"


@dataclass(frozen=True)
class Status:
    """The state of a fleet.

    Attributes:
        targets: addresses of the workers that serve.
        nodes: the Ray nodes of these workers.
        wanted: the number of workers that the fleet should have.
        starting: the number of workers that are starting, or wait for resources of the cluster.
        leaving: the number of workers that finish their calls and then end.
        waiting: the number of calls that wait for a device, over all workers.
    """

    targets: tuple[str, ...]
    nodes: tuple[str, ...]
    wanted: int
    starting: int
    leaving: int
    waiting: int


class Fleet:
    """Keeps the wanted number of workers. If it dies, Ray restarts it, and it finds its workers again."""

    def __init__(self, name: str, options: Options, token: str) -> None:
        """Starts to manage the workers, including existing ones."""
        self._name, self._options, self._token = name, options, token
        self._scaling = Scaling(options)
        self._members = [self._member(number) for number in _numbers_of(name)]
        self._scaling.wanted = min(max(len(self._members), options.minimum), options.most)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lumigrad fleet", daemon=True)
        self._thread.start()

    def options(self) -> Options:
        """Returns the options with which the fleet was started."""
        return self._options

    def token(self) -> str:
        """Returns the token that workers require from clients."""
        return self._token

    def status(self) -> Status:
        """Returns the current state."""
        members = tuple(self._members)
        serving = [member.seen for member in members if member.is_serving and member.seen is not None]
        leaving = sum(member.is_leaving for member in members)
        return Status(
            targets=tuple(look.target for look in serving),
            nodes=tuple(look.node_id for look in serving),
            wanted=self._scaling.wanted,
            starting=len(members) - len(serving) - leaving,
            leaving=leaving,
            waiting=sum(look.waiting for look in serving),
        )

    def stop(self) -> None:
        """Lets all workers finish their calls, and waits for that."""
        self._stopping.set()
        self._thread.join()
        for member in self._members:
            # A worker that has not served yet has no calls to finish, and perhaps no node.
            member.leave() if member.is_serving else member.end()
        while self._members:
            self._hear()
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stopping.wait(self._options.interval_s):
            self._hear()
            looks = [member.seen for member in self._members if member.is_serving and member.seen is not None]
            now, waiting = time.monotonic(), [look.waiting for look in looks]
            self._adjust(self._scaling.look(now, waiting, [look.under_way for look in looks]))

    def _hear(self) -> None:
        for member in self._members:
            member.hear()
        self._members = [member for member in self._members if not member.has_gone]

    def _adjust(self, wanted: int) -> None:
        staying = [member for member in self._members if not member.is_leaving]
        for member in sorted(staying, key=lambda member: member.number)[wanted:]:
            member.leave() if member.is_serving else member.end()
        for _ in range(wanted - len(staying)):
            number = max((member.number for member in self._members), default=-1) + 1
            self._members = [*self._members, self._member(number)]

    def _member(self, number: int) -> Member:
        """Returns the existing worker with this number, or a new one."""
        options = self._options
        actor = ray.remote(ServingWorker).options(
            name=f"{self._name}/{number}",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            # Ray restarts the worker on any node with room, without limit.
            max_restarts=-1,
            num_cpus=options.cpus,
            num_gpus=options.gpus,
            resources=dict(options.resources),
            scheduling_strategy="SPREAD",
        )
        return Member(number, actor.remote(options, self._token), options.silence_s)


def _numbers_of(name: str) -> list[int]:
    """Returns the numbers of the workers that a dead fleet of this name has left."""
    named = [entry["name"] for entry in ray.util.list_named_actors(True) if entry["namespace"] == NAMESPACE]
    found = (re.fullmatch(rf"{re.escape(name)}/(\d+)", entry) for entry in named)
    return sorted(int(match[1]) for match in found if match)
