"""One model on several workers: each renders its share of the views, and they average their gradients."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from lumigrad.client.arguments import whole_number
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument, LumigradError, PeerLost, TrainingLost, Unavailable
from lumigrad.client.scene import Scene, SceneHandle
from lumigrad.client.training.results import StepResult
from lumigrad.client.training.trainer import Trainer
from lumigrad.v1 import training_pb2

T = TypeVar("T")

# What it takes that a training on one worker does not have: positions on the way between workers.
_IN_FLIGHT = 4


class GroupTrainer:
    """A training on several workers, as a loop sees it. Not to be shared between threads.

    All workers hold the same parameters. A worker that is lost ends a step with `PeerLost`; `regroup` goes on with the
    others.
    """

    def __init__(self, clients: Sequence[Client], trainers: Sequence[Trainer], timeout_s: float) -> None:
        """`train_together` makes one; `clients` are closed with it."""
        self._clients = list(clients)
        self._trainers = list(trainers)
        self._timeout_s = timeout_s
        self._meet()

    def __enter__(self) -> GroupTrainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def targets(self) -> tuple[str, ...]:
        """The workers that take part."""
        return tuple(client.target for client in self._clients)

    @property
    def step_number(self) -> int:
        """Of the next step."""
        return self._trainers[0].step_number

    def steps(self, count: int, *, batch: int = 1, in_flight: int = _IN_FLIGHT) -> Iterator[StepResult]:
        """Makes steps with the training's own loss.

        Args:
            count: how many.
            batch: views of each worker in a step, which the workers choose: each once before any comes again.
            in_flight: steps on their way at the most.

        Yields:
            What each step did; losses are means over all workers' views, `views` those of the first worker.

        Raises:
            PeerLost: a worker did not come to a step; call `regroup`, and go on from `step_number`.
        """
        limit = whole_number("in_flight", in_flight, 1, 64)
        last, sent = self.step_number + count, self.step_number
        while self.step_number < last:
            while sent < last and sent - self.step_number < limit:
                for trainer in self._trainers:
                    trainer.send_step(sent, batch=batch)
                sent += 1
            yield self._together(lambda trainer: trainer.receive_step())[0]

    def regroup(self) -> int:
        """Goes on with the workers that are left, from where all of them have been; returns the next step's number.

        Raises:
            TrainingLost: no worker is left, or those that are have no snapshot of a common step.
        """
        present = []
        for client, trainer in zip(self._clients, self._trainers, strict=True):
            try:
                trainer.restart(None, None)
                present.append((client, trainer))
            except (Unavailable, TrainingLost):
                trainer.close(finish=False)
                client.close()
        if not present:
            raise TrainingLost("no worker of the group is left", "")
        self._clients, self._trainers = [client for client, _ in present], [trainer for _, trainer in present]
        self._meet(self._common_step())
        return self.step_number

    def publish(self) -> SceneHandle:
        """Makes the parameters the next version of the scene, on every worker; returns the first worker's handle."""
        return self._together(lambda trainer: trainer.publish())[0]

    def scene(self) -> Scene:
        """The scene as it is now, downloaded."""
        return self._trainers[0].scene()

    def snapshot(self) -> int:
        """Has every worker write its state into its spool; returns the number of the next step."""
        return self._together(lambda trainer: trainer.snapshot())[0]

    def close(self, *, finish: bool = True) -> None:
        """Ends the training on all workers; `finish` as for `Trainer.close`."""
        for trainer, client in zip(self._trainers, self._clients, strict=True):
            trainer.close(finish=finish)
            client.close()

    def _common_step(self) -> int:
        steps = [trainer.step_number for trainer in self._trainers]
        if len(set(steps)) == 1:
            return steps[0]
        written = [trainer.snapshot_step for trainer in self._trainers]
        if None in written:
            raise TrainingLost(f"workers are at steps {steps}, and not all of them have snapshots", "")
        return min(step for step in written if step is not None)

    def _meet(self, step: int | None = None) -> None:
        """Have the workers find each other, at a step; None: at the beginning."""
        group, size, rendezvous = uuid.uuid4().hex, len(self._trainers), ""
        for rank, trainer in enumerate(self._trainers):
            host = self._clients[0].target.rpartition(":")[0]
            peers = training_pb2.Peers(
                rank=rank, size=size, rendezvous=rendezvous or host, timeout_seconds=self._timeout_s / 2, group=group
            )
            started = trainer.restart(step, peers)
            if not rank:
                rendezvous = f"{host}:{started.rendezvous_port}"
        steps = {trainer.step_number for trainer in self._trainers}
        if len(steps) > 1:
            raise TrainingLost(f"the workers have no snapshot of a common step, but of {sorted(steps)}", "")

    def _together(self, ask: Callable[[Trainer], T]) -> list[T]:
        """Ask all of them, and hear all of them even if one fails."""
        answers, failures = [], []
        for trainer in self._trainers:
            try:
                answers.append(ask(trainer))
            except LumigradError as error:
                failures.append(error)
        lost = [error for error in failures if isinstance(error, (PeerLost, Unavailable))]
        if failures and not lost:
            raise failures[0]
        if lost:
            raise PeerLost(f"a worker was lost at step {self.step_number}: {lost[0]}", "", self.step_number) from lost[
                0
            ]
        return answers


def train_together(
    targets: Sequence[str],
    scene: Any,
    cameras: Sequence[Any],
    photographs: Sequence[Any],
    *,
    token: str | None = None,
    tls: Any = None,
    certificate: Any = None,
    timeout_s: float = 60.0,
    **options: Any,
) -> GroupTrainer:
    """Begins to train one scene on several workers, which were started with `--peers`.

    Args:
        targets: addresses of the workers; the first one's host must be reachable from all others under that name.
        scene: spheres or Gaussians, where to begin.
        cameras: the views, from which all workers choose.
        photographs: what each view should show, as for `Client.trainer`.
        token: as for `Client`, of all workers.
        tls: likewise.
        certificate: likewise.
        timeout_s: how long one reply may take; workers wait half as long for each other.
        options: as for `Client.trainer`.
    """
    if not targets:
        raise InvalidArgument.of("targets", "expected the address of at least one worker, got none")
    clients = [Client(target, token=token, tls=tls, certificate=certificate) for target in targets]
    trainers = [client.trainer(scene, cameras, photographs, timeout_s=timeout_s, **options) for client in clients]
    return GroupTrainer(clients, trainers, timeout_s)
