"""The attempts of one call: chooses a worker for each, and restores scenes that the worker has lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Protocol, TypeAlias

from lumigrad.client.errors import (
    Cancelled,
    ContextLost,
    DeadlineExceeded,
    LumigradError,
    ResourceExhausted,
    SceneNotFound,
    Unavailable,
    VersionMismatch,
)
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.retry import MOST_REPAIRS, Backoff, Passing, forget_frames
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import References
from lumigrad.client.workers.routing import Route, Subject, in_order
from lumigrad.client.workers.scene_store import is_repairable
from lumigrad.client.workers.worker import Context, Kept, Worker
from lumigrad.v1 import scene_pb2

# Log records get the texts of errors, not the errors: a handler may keep records, and an error keeps its traceback's
# frames with all their arrays.
_log = logging.getLogger("lumigrad")
# Limits to how many other workers a scene spreads when many clients find its worker full.
_MOST_SPILLS = 2


@dataclass(frozen=True)
class InlineWorld:
    """A world that is sent with a call, and references to its meshes on the worker."""

    world: World
    meshes: References


# A worker's reference to the scene of a call.
Source: TypeAlias = "scene_pb2.SceneRef | InlineWorld"


class Members(Protocol):
    """The part of a pool that attempts use."""

    retry_s: float

    def members(self) -> Sequence[Worker]:
        """Returns the current workers."""

    def route(self, subject: Subject) -> Route:
        """Returns the route of a call about `subject`."""

    def note_missing(self) -> None:
        """Records that a worker was unreachable."""


class RoutedAttempts:
    """The attempts of one call. Each is a `with` block that yields the worker to call.

        attempts = RoutedAttempts(pool, handle, call)
        while True:
            with attempts as worker:
                return worker.connection.unary(…, attempts.call)

    A transient or repairable error ends the attempt but not the loop; see `Backoff`. The code in the block must be safe
    to repeat.

    Workers are tried in the route's order of preference. If the worker has lost the call's scene and the client has a
    copy, the scene is stored again before the next attempt.

    Attributes:
        call: the routed call, for the RPCs of the attempts.
        kept: the forward state that this attempt uses; None: the worker has to compute it.
        source: this worker's reference to the scene; None: the call does not use a stored scene.
        reference: `source`, or None if the world is sent with the call.
    """

    kept: Kept | None = None
    source: Source | None = None
    reference: scene_pb2.SceneRef | None = None
    _worker: Worker | None = None
    # State of the current worker: whether the next attempt uses it again, whether it lost the scene, and the number of
    # repairs.
    _stays = False
    _is_lost = False
    _repairs = 0
    # The stored scene, and its handle on the current worker at the last attempt.
    _handle: SceneHandle | None = None
    _named: SceneHandle | None = None
    # State of this round. When all workers have been tried, another round begins after a pause.
    _missed: Unavailable | Cancelled | None = None
    _busy: ResourceExhausted | None = None
    _spills = 0

    def __init__(
        self,
        pool: Members,
        subject: Subject,
        call: Call,
        *,
        route: Route | None = None,
        context: Context | None = None,
        to_release: bool = False,
        any_version: bool = False,
    ) -> None:
        """Prepares the attempts of a call about `subject`. `route` orders the workers; None: the subject's own route.

        The forward state of `context` is used as long as its worker has it; with `to_release` the worker drops it after
        the call. With `any_version` the client's copy is also stored again if the scene was updated meanwhile.
        """
        self._route = route = route or pool.route(subject)
        self.kept = None if context is None else context.take(to_release=to_release)
        self.call = call.to(route.key if self.kept is None else self.kept.affinity)
        self._pool = pool
        self._subject = subject
        self._unrouted = call
        self._context = context
        self._to_release = to_release
        # The client's copy of a mesh is stored even if the stored mesh was updated.
        self._any_version = any_version or isinstance(subject, Mesh)
        self._asked: set[Worker] = set()
        self._failures: dict[str, Unavailable] = {}

    def __enter__(self) -> Worker:
        while True:
            try:
                worker = self._next()
            except Unavailable as error:
                # The look-up of workers failed.
                if not self._backoff.after(error):
                    raise
                continue
            worker.under_way += 1
            worker.asked += 1
            try:
                if self.kept is None:
                    if worker.store.changes:
                        worker.store.catch_up(self.call)
                    self.source = source = self._prepared(worker)
                    self.reference = None if isinstance(source, InlineWorld) else source
                return worker
            except BaseException as error:
                worker.under_way -= 1
                if not self._goes_on(worker, error, is_begun=False):
                    raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        worker = self._worker
        assert worker is not None
        worker.under_way -= 1
        if error is not None:
            return self._goes_on(worker, error, is_begun=True)
        if self.kept is not None and self._context is not None and self._to_release:
            self._context.forget(self.kept)
        return False

    @cached_property
    def _backoff(self) -> Backoff:
        """The pauses between attempts; most calls need none."""
        return Backoff(self._unrouted, self._pool.retry_s)

    def _next(self) -> Worker:
        if self._stays and self._worker is not None:
            self._stays = False
            return self._worker
        if self.kept is not None:
            self._worker = self.kept.worker
            return self._worker
        members = in_order(self._route, self._pool.members())
        for worker in members:
            if worker not in self._asked:
                break
        else:
            self._asked.clear()
            self._missed = None
            worker = members[0]
        self._asked.add(worker)
        if worker is not self._worker:
            self._worker, self._is_lost, self._repairs = worker, False, 0
        return worker

    def _prepared(self, worker: Worker) -> Source | None:
        """Stores the scene on the worker if it is missing; returns the worker's reference to it."""
        subject, store = self._subject, worker.store
        is_lost = self._is_lost
        if isinstance(subject, World):
            any_version = is_lost and self._any_version
            meshes = store.meshes.references(subject, self.call, anew=is_lost, any_version=any_version)
            self._is_lost = False
            return InlineWorld(subject, meshes)
        if isinstance(subject, Mesh):
            subject = store.meshes.resident(subject, self.call)
        if not isinstance(subject, SceneHandle):
            return None
        self._handle = subject
        if not subject.scene_id:
            return store.reference(subject)
        if is_lost and self._named is not None:
            store.repair(self._handle, self._named, self.call)
            self._is_lost = False
        self._named = store.current(self._handle)
        return scene_pb2.SceneRef(scene_id=self._named.scene_id, version=self._named.version)

    def _goes_on(self, worker: Worker, error: BaseException, *, is_begun: bool) -> bool:
        """Prepares another attempt, perhaps after a pause; returns False if there is none and `error` is final.

        Raises:
            LumigradError: there is no other attempt, and this error replaces `error`.
        """
        final: BaseException | None = error
        try:
            final = self._handle_error(worker, error, is_begun=is_begun)
            if final is None:
                forget_frames(error)
                return True
            if final is not error:
                raise final
            return False
        finally:
            if final is not None:
                # Frames that errors have passed refer to these attempts.
                self._failures.clear()
                self._missed = self._busy = None
            del final

    def _handle_error(self, worker: Worker, error: BaseException, *, is_begun: bool) -> BaseException | None:
        """Prepares another attempt, perhaps after a pause; returns the final error if there is none."""
        if isinstance(error, DeadlineExceeded):
            worker.health.note_timeout()
            self._backoff.check_late(error)
            return error
        if self.kept is not None:
            return self._handle_state_error(worker, self.kept, error)
        if is_begun and isinstance(error, SceneNotFound | VersionMismatch) and self._plan_repair(error):
            return None
        if isinstance(error, SceneNotFound):
            return self._handle_missing(error)
        if isinstance(error, ResourceExhausted):
            return self._handle_full(error)
        return self._handle_unavailable(worker, error) if isinstance(error, Unavailable | Cancelled) else error

    def _handle_missing(self, error: SceneNotFound) -> LumigradError | None:
        """Prepares another attempt after a worker had no scene of which the client has no copy to store.

        The scene may be on another worker, or on one that did not answer.
        """
        if self._has_others():
            return None
        return error if self._missed is None else self._wait(self._missed)

    def _handle_unavailable(self, worker: Worker, error: Unavailable | Cancelled) -> LumigradError | None:
        """Prepares another attempt after a worker did not answer: with another worker, or after a pause."""
        self._missed = error
        if isinstance(error, Unavailable):
            worker.health.note_unavailable()
            self._failures[worker.target] = error
        return self._wait(error)

    def _handle_state_error(self, worker: Worker, kept: Kept, error: BaseException) -> BaseException | None:
        """Prepares another attempt of a call that uses a forward state; returns the final error if there is none.

        If the state is lost, or its worker cannot serve the call and there are others, the next attempt recomputes it.
        """
        assert self._context is not None
        if isinstance(error, Unavailable):
            worker.health.note_unavailable()
            self._pool.note_missing()
        if not isinstance(error, ContextLost):
            if not isinstance(error, Passing):
                return error
            if isinstance(error, Cancelled) or not any(member is not worker for member in self._pool.members()):
                return self._wait(error)
            if isinstance(error, ResourceExhausted) and error.retry_after_s is None:
                return error
            worker.releases.add(kept)
        self.call.trace.note_repair("context")
        _log.info("a forward state is computed again: %s", str(error))
        self._context.forget(kept)
        self.kept, self._worker = None, None
        self.call = self._unrouted.to(self._route.key)
        return None

    def _plan_repair(self, error: SceneNotFound | VersionMismatch) -> bool:
        """Makes the next attempt store the scene again; returns False if the client cannot repair the error."""
        if self._repairs == MOST_REPAIRS:
            return False
        if isinstance(self.source, InlineWorld):
            if error.scene_id not in {mesh.scene_id for mesh in self.source.meshes if mesh is not None}:
                return False
            self.call.trace.note_repair("mesh")
        elif self._handle is None or not is_repairable(self._handle, error, self._any_version):
            return False
        self._repairs += 1
        _log.info("a scene is stored again: %s", str(error))
        self._is_lost = self._stays = True
        return True

    def _handle_full(self, error: ResourceExhausted) -> LumigradError | None:
        """Prepares another attempt after a worker was full: with another worker, or after a pause."""
        self._busy = self._busy or error
        may_spill = self._route.is_movable and self._spills < _MOST_SPILLS and self._has_others()
        if error.retry_after_s is not None and may_spill:
            self._spills += 1
            _log.info("a call goes to another worker: %s", str(error))
            return None
        busy, self._busy = self._busy, None
        # The next round begins, after a pause, with the preferred worker.
        self._asked.clear()
        self._spills = 0
        return self._wait(busy)

    def _wait(self, error: Passing) -> LumigradError | None:
        """Waits for the next attempt; returns the final error if no time is left for one.

        That is an Unavailable whose text lists every worker's error, if several did not answer for `retry_s`.
        """
        if self._backoff.after(error, self._has_others):
            return None
        if not isinstance(error, Unavailable) or len(self._failures) < 2 or error.is_lasting:
            return error
        failures = "; ".join(f"{target}: {failure}" for target, failure in self._failures.items())
        text = f"none of {len(self._failures)} workers answered: {failures}"
        return Unavailable(text, was_begun=error.was_begun)

    def _has_others(self) -> bool:
        # A forward state is on one worker only.
        return self.kept is None and any(worker not in self._asked for worker in self._pool.members())
