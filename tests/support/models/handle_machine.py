"""A stateful test of handles: they render the same content even if the worker has lost it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
from hypothesis.stateful import RuleBasedStateMachine, rule

from lumigrad.client import Camera, Client, SceneHandle, SceneNotFound, Spheres, VersionMismatch
from support.models.model_scenes import COLORS, CONTENTS, HEIGHT, WIDTH, Parameters, gradient, picture
from support.workers.model_worker import TOKENS, ModelWorker, noted
from support.workers.spooling import wait_until_written

CAMERA = Camera.opencv(1.5 * WIDTH, 1.5 * WIDTH, WIDTH / 2, HEIGHT / 2, np.eye(3), np.zeros(3), WIDTH, HEIGHT)
ANSWERS_BETWEEN = 15
WHICH = st.integers(0, 1 << 16)
# Two of the clients belong to one tenant.
USERS = ("alice", "alice", "bob")


@dataclass(frozen=True)
class Held:
    """A handle, its owner, and the expected content."""

    user: int
    handle: SceneHandle
    parameters: Parameters


class HandleMachine(RuleBasedStateMachine):
    """Three clients of two tenants, with a worker that is killed at times and too small for all their scenes."""

    # Set before it runs.
    place: ModelWorker

    def __init__(self) -> None:
        super().__init__()
        target = self.place.process.target
        self.clients = [Client(target, token=TOKENS[tenant], retry_s=100, timeout_s=150) for tenant in USERS]
        self.held: list[Held] = []
        # Tenant and content of the scenes that a client has updated, which other clients may observe.
        self.updated: set[tuple[str, int]] = set()
        for client in self.clients[1:]:
            for handle in client.list():
                client.delete(handle)

    @rule(user=st.integers(0, 2), content=st.integers(0, CONTENTS - 1))
    @noted
    def put(self, user: int, content: int) -> None:
        parameters = Parameters(content)
        handle = self.clients[user].put(Spheres(**parameters.tensors))
        assert handle.version == 1
        self._hold(Held(user, handle, parameters))

    @rule(which=WHICH, user=st.integers(0, 1), colors=st.integers(1, COLORS))
    @noted
    def update(self, which: int, user: int, colors: int) -> None:
        """Update a scene, by its owner or by another client of the same tenant; a refused update changes nothing."""
        held = self._any(which)
        if held is None:
            return
        user = held.user if USERS[held.user] != USERS[user] else user
        changed = Parameters(held.parameters.content, colors)
        try:
            handle = self.clients[user].update(held.handle, colors=changed.new_colors)
        except VersionMismatch:
            assert self._is_updated(held)
            return
        self.updated.add((USERS[user], changed.content))
        self._hold(Held(user, handle, changed))

    @rule(which=WHICH, retains=st.booleans(), dies=st.booleans())
    @noted
    def render(self, which: int, retains: bool, dies: bool) -> None:
        """Render a handle and differentiate, although the worker may be killed in between."""
        held = self._any(which)
        if held is None:
            return
        client = self.clients[held.user]
        try:
            frame = client.render(held.handle, CAMERA, gamma=0.1, max_depth=20.0, min_depth=0.5, retain=retains)
        except VersionMismatch:
            assert self._is_updated(held)
            return
        self.place.answers += 1
        expected = picture(held.parameters)[0]
        assert np.array_equal(frame.color, expected), "a wrong picture"
        if retains:
            if dies and self._may_die():
                self.place.kill()
            upstream = np.ones_like(expected)
            assert np.array_equal(frame.backward(upstream).colors, gradient(held.parameters)), "a wrong gradient"

    @rule(which=WHICH)
    @noted
    def delete(self, which: int) -> None:
        """Delete a scene; its handles still work, since the client stores it again."""
        held = self._any(which)
        if held is None:
            return
        try:
            self.clients[held.user].delete(held.handle)
        except SceneNotFound:
            return

    @rule(which=WHICH, user=st.integers(0, 2))
    @noted
    def look(self, which: int, user: int) -> None:
        """Get a scene by its id: the result is never another scene, nor one of another tenant."""
        held = self._any(which)
        if held is None:
            return
        try:
            found = self.clients[user].get(held.handle.scene_id, with_tensors=True)
        except SceneNotFound:
            return
        assert USERS[user] == USERS[held.user]
        if found.version == held.handle.version:
            for name, array in held.parameters.tensors.items():
                assert np.array_equal(found.scene.tensors[name], array), name
        else:
            assert self._is_updated(held)

    @rule(rests=st.booleans())
    @noted
    def die(self, rests: bool) -> None:
        """Kill the worker, possibly after it has written its scenes; the next call begins before it is back."""
        if not self._may_die():
            return
        self.place.settle()
        if rests and self.place.has_spool:
            wait_until_written(self.place.process)
        self.place.kill_soon(0.0).join(0.01)

    def teardown(self) -> None:
        """Wait until the last kill is over."""
        self.place.settle()
        for client in self.clients:
            client.close()

    def _may_die(self) -> bool:
        """Whether a kill is allowed now; kills are rare, since each takes as long as hundreds of calls."""
        may = self.place.answers >= ANSWERS_BETWEEN and time.monotonic() < self.place.until
        self.place.answers = 0 if may else self.place.answers + 1
        return may

    def _hold(self, held: Held) -> None:
        self.held.append(held)
        self.place.answers += 1

    def _any(self, which: int) -> Held | None:
        return self.held[which % len(self.held)] if self.held else None

    def _is_updated(self, held: Held) -> bool:
        return (USERS[held.user], held.parameters.content) in self.updated
