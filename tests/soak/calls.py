"""The calls of a soak's clients: every verb in every way, and calls that are cancelled, hurried, or wrong."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np

from lumigrad.client import (
    Camera,
    Client,
    DeadlineExceeded,
    InvalidArgument,
    LumigradError,
    SceneNotFound,
    TrainingHeld,
    TrainingLost,
    Unavailable,
    VersionMismatch,
)
from support.calls import verbs
from support.training.scenes import gaussian_lesson
from support.workers.slow_render import SlowRender
from support.workers.tenant import tenant_client
from tests.soak.tally import Tally

# Calls that may fail after a worker has died, since they change scenes and check the result.
CHANGES = ("put", "update", "delete")
PATIENCE_SECONDS = 120.0
LARGE = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=1280, height=720)
SMALL = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=32, height=24)
STEPS = 6
_PATIENT: dict[str, Any] = {"retry_s": PATIENCE_SECONDS / 2}


class Calls:
    """Calls of a worker, to be picked at random; to be used as a context.

    `every` has each call as often as it is to be picked.
    """

    def __init__(self, direct: str, proxied: str, tokens: Sequence[str], tally: Tally) -> None:
        """Connects and gets the expected replies before anything happens.

        Args:
            direct: the worker's address.
            proxied: another address of the worker, with faults on the way.
            tokens: of two tenants: the first makes all calls, the second trains.
            tally: counts the outcomes of the calls.
        """
        self.every: list[Callable[[], None]] = []
        self._tally = tally
        self._target = direct
        self._token = tokens[0]
        self._stack = ExitStack()
        self._numbers = itertools.count()
        self.client = self._connect(direct, "shared")
        clients = [self.client, self._connect(direct, "stream"), self._connect(proxied, "stream")]
        self._cloud = self.client.put(verbs.gaussians())
        self._picture = self.client.render(self._cloud, LARGE).color
        for name, verb in verbs.verbs(self.client).items():
            self._add_verb(name, verb, clients)
        for client in clients:
            self._add("large picture", lambda client=client: self._render(client))
        for client in (*clients, *clients):
            self._add("hasty render", lambda client=client: self._hurry(client), (DeadlineExceeded, Unavailable))
        self._add("new client", self._come_and_go, times=2)
        self._add("refused", self._be_refused, times=2)
        others = self._stack.enter_context(Client(direct, timeout_s=PATIENCE_SECONDS, token=tokens[1], **_PATIENT))
        for name, client in (("training", self.client), ("another tenant's training", others)):
            self._add(name, lambda client=client: self._train(client), (TrainingHeld,), (TrainingLost,), times=2)
        self._others = others
        self._stack.enter_context(channel := grpc.insecure_channel(direct))
        raw = tenant_client(channel, self._token)
        self._slow = SlowRender(raw)
        self._stub = raw.render_stub
        self._add("cancelled", self._cancel, times=3)
        # Other scenes are left by broken calls.
        self._kept = {handle.scene_id for handle in self.client.list()}

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tidy(self) -> int:
        """Delete the scenes that broken calls left; returns their number."""
        left = [(self.client, handle) for handle in self.client.list() if handle.scene_id not in self._kept]
        left += [(self._others, handle) for handle in self._others.list()]
        for client, handle in left:
            client.delete(handle.scene_id)
        return len(left)

    def probe(self) -> None:
        """A small render, like that of an interactive viewer."""
        self.client.render(self._cloud, SMALL, timeout_s=PATIENCE_SECONDS)

    def _connect(self, target: str, lane: str) -> Client:
        client = Client(target, timeout_s=PATIENCE_SECONDS, token=self._token, lane=lane, **_PATIENT)
        return self._stack.enter_context(client)

    def _add(
        self,
        name: str,
        call: Callable[[], object],
        excused: tuple[type[Exception], ...] = (),
        losses: tuple[type[Exception], ...] = (),
        *,
        times: int = 1,
    ) -> None:
        self.every += [self._tally.counted(name, call, excused, losses)] * times

    def _add_verb(self, name: str, verb: verbs.Verb, clients: list[Client]) -> None:
        expected = verb(self.client)()
        losses = (SceneNotFound, VersionMismatch) if name in CHANGES else ()

        def call(client: Client) -> None:
            assert verbs.same(verb(client)(), expected), f"{name}: not what it was before anything happened"

        for client in clients:
            self._add(name, lambda client=client: call(client), losses=losses)

    def _render(self, client: Client) -> None:
        assert np.array_equal(client.render(self._cloud, LARGE).color, self._picture), "a wrong picture"

    def _hurry(self, client: Client) -> None:
        picture = client.render(self._cloud, LARGE, timeout_s=random.uniform(0.001, 0.2)).color
        assert np.array_equal(picture, self._picture), "a wrong picture"

    def _come_and_go(self) -> None:
        with self._connect_briefly() as client:
            self._render(client)

    def _connect_briefly(self) -> Client:
        return Client(self._target, timeout_s=PATIENCE_SECONDS, token=self._token, **_PATIENT)

    def _be_refused(self) -> None:
        for call, kind in (
            (lambda: self.client.get("nobody"), SceneNotFound),
            (lambda: self.client.render(self._cloud, LARGE, outputs=("nothing",)), InvalidArgument),
        ):
            try:
                call()
            except kind:
                continue
            except LumigradError as error:
                raise AssertionError(f"refused as {type(error).__name__}, not as {kind.__name__}") from error
            raise AssertionError("not refused")

    def _train(self, client: Client) -> None:
        lesson = gaussian_lesson(seed=next(self._numbers))
        target_images = lesson.target_images(client)
        with client.trainer(lesson.scene, lesson.cameras, target_images, snapshot_every=2) as trainer:
            steps = list(trainer.steps(STEPS))
            assert [step.number for step in steps] == list(range(STEPS)), "steps are missing"
            assert all(np.isfinite(step.loss) for step in steps), "a loss is no number"

    def _cancel(self) -> None:
        call = self._stub.Render(iter([self._slow.request(3)]), timeout=PATIENCE_SECONDS)
        time.sleep(random.uniform(0.0, 0.3))
        call.cancel()
        try:
            list(call)
        except grpc.RpcError as error:
            # The worker, or with it the scene, may have gone before.
            expected = {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND}
            assert error.code() in expected, f"cancelled, and ended with {error.code().name}"
