"""Any order of calls, deaths and evictions against a model of the stored scenes: nobody ever gets a wrong image.

The model of a scene is its name, a version, and the parameters of each version. Each of two sets of rules runs for
LUMIGRAD_FUZZ_SECONDS, 3 by default, with a spool and without.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from lumigrad.v1 import errors_pb2, scene_pb2
from support.calls.raw_calls import RawClient, detail
from support.calls.repeats import EXPLORES
from support.models.handle_machine import HandleMachine
from support.models.model_scenes import COLORS, CONTENTS, Parameters, picture, spec
from support.workers.model_worker import TENANTS, ModelWorker, model_worker, noted
from support.workers.spooling import wait_until_written

Code = grpc.StatusCode
_ANSWERS_BETWEEN = 20
# An index into the current scenes, so that no strategy depends on replies of the worker.
WHICH = st.integers(0, 1 << 16)
RARELY = st.sampled_from((False, False, False, True))


@dataclass(eq=False)
class Stored:
    """The model of a scene: its id, and the parameters of each version from 1.

    Attributes:
        is_gone: It was deleted, or a reply said that it does not exist; from then on, calls for it must fail.
        is_durable: Calls for it must succeed, even after the process was killed.
    """

    scene_id: str
    tenant: str
    content_hash: str
    versions: list[Parameters]
    is_gone: bool = False
    is_durable: bool = False

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.versions)


class Refused(Exception):
    """A VersionMismatch reply, with the version that it reports."""

    def __init__(self, actual: int) -> None:
        super().__init__(actual)
        self.actual = actual


class SceneMachine(RuleBasedStateMachine):
    """Puts, updates, gets, renders and deletes scenes of two tenants, with a worker that is killed at times."""

    # Set before the machine runs.
    place: ModelWorker

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored] = {}
        self.hashes: dict[int, str] = {}
        for client in self.place.clients.values():
            for info in listed(client):
                client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=info.scene_id), timeout=150)

    @rule(tenant=st.sampled_from(TENANTS), content=st.integers(0, CONTENTS - 1), tells_hash=st.booleans())
    @noted
    def put(self, tenant: str, content: int, tells_hash: bool) -> None:
        """Store a scene; content that is already stored keeps its id."""
        parameters = Parameters(content)
        told = self.hashes.get(content, "") if tells_hash else ""
        reply = self.place.clients[tenant].put(parameters.tensors, content_hash=told)
        self.hashes[content] = reply.scene.content_hash
        name = reply.scene.scene_id
        if not reply.existed:
            assert name not in self.place.names, "a name was given out twice"
            self.place.names.add(name)
            self.stored[name] = Stored(name, tenant, reply.scene.content_hash, [parameters])
        scene = self.stored[name]
        assert (scene.tenant, scene.versions, scene.is_gone) == (tenant, [parameters], False)
        assert reply.scene.version == 1

    @rule(which=WHICH, colors=st.integers(1, COLORS), age=st.sampled_from((0, 0, 0, 1, 2)), dies=st.booleans())
    @noted
    def update(self, which: int, colors: int, age: int, dies: bool) -> None:
        """Update a scene: exactly once, although the request is repeated and the worker may be killed meanwhile."""
        scene = self._any(which)
        if scene is None:
            return
        expected, update_id = max(1, scene.version - age), uuid.uuid4().hex
        changed = Parameters(scene.versions[0].content, colors)

        def attempt() -> scene_pb2.SceneInfo:
            client = self.place.clients[scene.tenant]
            return client.update(scene.scene_id, expected, {"colors": changed.new_colors}, update_id).scene

        try:
            if expected == scene.version:
                # Until a reply arrives, it is unknown whether the scene was updated.
                scene.is_durable = False
            is_time = dies and self.place.answers >= _ANSWERS_BETWEEN
            made = self._while_dying(scene, attempt) if is_time else self._answer(scene, attempt)
        except Refused as refused:
            assert expected < scene.version == refused.actual
            return
        if made is None:
            return
        assert expected == scene.version
        scene.versions.append(changed)
        assert (made.scene_id, made.version) == (scene.scene_id, scene.version)
        assert self._answer(scene, attempt) in (made, None)

    @rule(which=WHICH, is_foreign=RARELY, age=st.integers(-1, 2))
    @noted
    def render(self, which: int, is_foreign: bool, age: int) -> None:
        """Render a version, or the current one."""
        scene = self._any(which)
        if scene is None:
            return
        tenant = asking(scene, is_foreign)
        version = 0 if age < 0 else max(1, scene.version - age)
        request = spec(scene.scene_id, version)
        try:
            reply = self._answer(scene, lambda: self.place.clients[tenant].render(request), tenant)
        except Refused as refused:
            assert refused.actual == scene.version and 0 < version < scene.version
            return
        if reply is not None:
            assert reply.header.scene.version == scene.version and version in (0, scene.version)
            assert np.array_equal(reply.arrays["color"], picture(scene.versions[-1])), "a wrong picture"

    @rule(which=WHICH, is_foreign=RARELY)
    @noted
    def get(self, which: int, is_foreign: bool) -> None:
        """Get a scene with its tensors."""
        scene = self._any(which)
        if scene is not None:
            self._get(scene, asking(scene, is_foreign))

    def _get(self, scene: Stored, tenant: str) -> None:
        reply = self._answer(
            scene, lambda: self.place.clients[tenant].get(scene_id=scene.scene_id, with_tensors=True), tenant
        )
        if reply is not None:
            header, tensors = reply
            assert header.info.version == scene.version
            for name, array in scene.versions[-1].tensors.items():
                assert np.array_equal(tensors[name], array), name

    @rule(which=WHICH)
    @noted
    def get_content(self, which: int) -> None:
        """Get a scene by the hash of its original content, which may find another scene."""
        scene = self._any(which)
        if scene is None:
            return
        try:
            info = self.place.clients[scene.tenant].get(content_hash=scene.content_hash)[0].info
        except grpc.RpcError as error:
            assert error.code() == Code.NOT_FOUND
            return
        found = self.stored[info.scene_id]
        assert (found.tenant, found.versions, found.is_gone) == (scene.tenant, scene.versions[:1], False)

    @rule(which=WHICH, is_foreign=RARELY)
    @noted
    def delete(self, which: int, is_foreign: bool) -> None:
        """Delete a scene, which may not exist."""
        scene = self._any(which)
        if scene is None:
            return
        tenant = asking(scene, is_foreign)
        request = scene_pb2.DeleteRequest(scene_id=scene.scene_id)
        stub = self.place.clients[tenant].scene_stub
        if self._answer(scene, lambda: stub.Delete(request, timeout=150), tenant) is not None:
            scene.is_gone = True

    @rule(tenant=st.sampled_from(TENANTS))
    @noted
    def list_all(self, tenant: str) -> None:
        """List the scenes."""
        for info in listed(self.place.clients[tenant]):
            scene = self.stored[info.scene_id]
            assert (scene.tenant, scene.version, scene.is_gone) == (tenant, info.version, False)

    @rule(rests=st.booleans())
    @noted
    def die(self, rests: bool) -> None:
        """Kill the worker, possibly after it has written everything to the spool, and check what remains."""
        # Kills are rare, since a restart takes as long as hundreds of calls.
        if self.place.answers < _ANSWERS_BETWEEN:
            return
        if rests:
            self._rest()
        self.place.answers = 0
        if self.place.kill():
            self._forget()
        for scene in tuple(self.stored.values()):
            self._get(scene, scene.tenant)

    def _rest(self) -> None:
        """Wait until everything is written to the spool."""
        if self.place.has_spool:
            wait_until_written(self.place.process)
            for client in self.place.clients.values():
                for info in listed(client):
                    self.stored[info.scene_id].is_durable = True

    def _any(self, which: int) -> Stored | None:
        """A scene, most often one that exists; None if there is none."""
        scenes = list(self.stored.values())
        there = [scene for scene in scenes if not scene.is_gone]
        chosen = there if there and which % 8 else scenes
        return chosen[which % len(chosen)] if chosen else None

    def _answer(self, scene: Stored, attempt: Callable[[], Any], tenant: str | None = None) -> Any:
        """The result of a call for a scene; None if it correctly reports that the scene does not exist."""
        is_own = tenant in (None, scene.tenant)
        try:
            reply = attempt()
        except grpc.RpcError as error:
            if error.code() == Code.FAILED_PRECONDITION:
                assert is_own and not scene.is_gone
                raise Refused(detail(error, errors_pb2.VersionMismatch).actual) from None
            assert error.code() == Code.NOT_FOUND, error
            if is_own:
                assert not scene.is_durable or scene.is_gone, "a durable scene was lost"
                scene.is_gone = True
            return None
        assert is_own and not scene.is_gone, "a call succeeded for a scene that does not exist"
        self.place.answers += 1
        return reply

    def _while_dying(self, scene: Stored, attempt: Callable[[], Any]) -> Any:
        """Like `_answer`, while the worker is killed; repeats the call if it gets no reply."""
        if time.monotonic() > self.place.until:
            return self._answer(scene, attempt)
        self.place.answers = 0
        killer = self.place.kill_soon(0.002)

        def stubbornly() -> Any:
            try:
                return attempt()
            except grpc.RpcError as error:
                if error.code() != Code.UNAVAILABLE:
                    raise
            killer.join()
            self.place.reconnect()
            return attempt()

        try:
            return self._answer(scene, stubbornly)
        finally:
            killer.join()
            self.place.reconnect()
            self._forget()

    def _forget(self) -> None:
        """Removes from the model what was only in memory."""
        if not self.place.has_spool:
            for scene in self.stored.values():
                scene.is_gone = True


def asking(scene: Stored, is_foreign: bool) -> str:
    """The tenant of the scene, or the other one."""
    return next(tenant for tenant in TENANTS if (tenant != scene.tenant) == is_foreign)


def listed(client: RawClient) -> Any:
    """The scenes of a tenant."""
    return client.scene_stub.List(scene_pb2.ListRequest(), timeout=150).scenes


SECONDS = float(os.environ.get("LUMIGRAD_FUZZ_SECONDS", "3"))
# Ten examples at a time, until the time is up: Hypothesis counts only examples, and begins with the simplest.
BATCH = settings(
    max_examples=4,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)


@pytest.fixture(scope="module", params=[False, True], ids=["memory", "spool"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelWorker]:
    with model_worker(tmp_path_factory.mktemp("model"), has_spool=request.param) as made:
        yield made


@pytest.mark.parametrize("machine", [SceneMachine, HandleMachine])
def test_nobody_ever_sees_a_wrong_picture(
    place: ModelWorker, machine: type[SceneMachine | HandleMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "place", place, raising=False)
    place.until = time.monotonic() + SECONDS
    try:
        for number in itertools.count():
            # Different steps each time, but the same in every run.
            run_state_machine_as_test(machine if EXPLORES else seed(number)(machine), settings=BATCH)
            if time.monotonic() >= place.until:
                break
    except Exception as error:
        steps = "\n".join(place.history[-20:])
        raise AssertionError(f"after these steps, the last of which failed:\n{steps}\n{place.error}") from error
    assert " ERROR " not in place.process.log.replace("ERROR worker ended", "")
