"""The store of versioned scenes, found by name and by content hash."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator

from lumigrad.server.core.call import Call, held
from lumigrad.server.core.errors import BusyError, SceneNotFoundError, VersionMismatchError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.engines.content import Content
from lumigrad.server.storage.lru import LruStore
from lumigrad.server.storage.scene_files import SceneSpool, is_levels, new_name
from lumigrad.server.storage.spool_writer import Writing
from lumigrad.server.storage.stored_scene import StoredScene
from lumigrad.v1 import scene_pb2

# Memory of a scene besides its tensors: measured as 3 to 8 KiB for each of 3,000 scenes of one primitive.
OVERHEAD_BYTES = 8 << 10
_RETRY_SECONDS = 5.0
# How long a new scene waits for others to be written to the spool, before which they cannot be evicted; and how often
# the wait checks its call.
_ROOM_SECONDS = 30.0
_LOOK_SECONDS = 0.05
# Writing the versions of a scene may take this share of the time, and this many seconds more; beyond that, only a
# version that stays for `_REST_SECONDS` is written.
_WRITE_SHARE = 0.25
_WRITE_BURST_SECONDS = 1.0
_REST_SECONDS = 1.0


class SceneStore(LruStore[StoredScene]):
    """A tenant's scenes in memory, bounded by its own limit and the budget of all tenants."""

    def __init__(
        self,
        limit_bytes: int,
        budget: Budget,
        metrics: Metrics,
        spool: SceneSpool | None = None,
        limit_count: int = sys.maxsize,
        option: str = "--scene-mib",
    ) -> None:
        """Create an empty store. `spool` outlives memory and process; error texts name `option`, the limit's option."""
        self._option = option
        self._spool = spool
        self._metrics = metrics
        self._id_of_hash: dict[str, str] = {}
        # How often the content of each scene was put and not taken back; unknown for scenes read from the spool.
        self._puts: dict[str, int] = {}
        # For each replaced scene, the time of its last replacement (monotonic clock), and the seconds of writing beyond
        # its share.
        self._paces: dict[str, tuple[float, float]] = {}
        # The sizes of scenes for which room is kept, but which are not stored yet.
        self._coming: list[int] = []
        super().__init__(limit_bytes, limit_count, budget)
        self._changed = threading.Condition(self._lock)

    def check(self, nbytes: int) -> None:
        """Raise BusyError, without a retry time, for a scene larger than the whole limit."""
        limit = self._cache.limit_bytes
        if nbytes > limit:
            raise BusyError(f"the scene takes {nbytes} bytes, of {limit} that scenes may take ({self._option})", None)

    @contextlib.contextmanager
    def room(self, nbytes: int, call: Call | None) -> Iterator[None]:
        """Keep room for a scene that the `with` block makes and stores, besides scenes not yet written to the spool.

        Waits for room while the call lasts; raises BusyError if that takes too long.
        """
        until = time.monotonic() + _ROOM_SECONDS
        nbytes += OVERHEAD_BYTES
        while not (is_kept := self._keep_room(nbytes)) and self._budget.is_held:
            if call is not None:
                call.turn.give()
                call.check()
            if time.monotonic() > until:
                what = f"scenes wait to be written to the spool (--spool), and fill the memory ({self._option})"
                raise BusyError(what, _RETRY_SECONDS)
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)
        try:
            yield
        finally:
            if is_kept:
                self._end_room(nbytes)

    def add(self, content_hash: str, content: Content) -> tuple[StoredScene, bool]:
        """Store a scene unless its content is present; returns the scene and whether it was present.

        Raises SceneNotFoundError, with the name of a scene that it needs and that was removed meanwhile, or BusyError
        if it does not fit besides other tenants' scenes.
        """
        with self._lock:
            present = self._by_hash(content_hash)
            if present is not None:
                self._count_put(present)
                return present, True
            for name in content.needs:
                self._find(name, 0)
            scene = StoredScene(new_name(content_hash), 1, content_hash, content)
            self._put(scene)
            self._puts[scene.scene_id] = 1
            self._write(scene)
        if not self._budget.enforce(self):
            with contextlib.suppress(SceneNotFoundError):
                self.delete(scene.scene_id)
            raise self._no_room(scene)
        self._metrics.scene_puts.labels("stored").inc()
        return scene, False

    @contextlib.contextmanager
    def counted(self, scene_id: str) -> Iterator[None]:
        """Count the put of a scene that the `with` block writes to the spool: others may read it before it is stored.

        If the block fails, the put is not counted.
        """
        with self._lock:
            self._puts[scene_id] = 1
        try:
            yield
        except BaseException:
            with self._lock:
                self._puts.pop(scene_id, None)
            raise

    def restore(self, scene: StoredScene) -> bool:
        """Store a scene from the spool; False if it is present, or was deleted meanwhile. Raises what `add` raises."""
        with self._lock:
            is_written = self._spool is not None and self._spool.touch(scene.scene_id)
            if self._cache.get(scene.scene_id) is not None or not is_written:
                return False
            for name in scene.content.needs:
                self._find(name, 0)
            self._put(scene)
        if not self._budget.enforce(self):
            with self._lock:
                self._cache.pop(scene.scene_id)
                self._forget_hash(scene)
                self._puts.pop(scene.scene_id, None)
            raise self._no_room(scene)
        return True

    def find(self, scene_id: str, version: int = 0) -> StoredScene:
        """Return a scene, the current version if `version` is 0; raises SceneNotFoundError or VersionMismatchError."""
        with self._lock:
            scene = self._find(scene_id, version)
        if self._spool is not None:
            self._spool.touch(scene_id)
        return scene

    def touch(self, scene_id: str) -> bool:
        """Return whether a scene is in memory; marks it, and its file, as used."""
        if self._spool is not None:
            self._spool.touch(scene_id)
        with self._lock:
            return self._cache.get(scene_id) is not None

    def info(self, scene_id: str) -> scene_pb2.SceneInfo | None:
        """Return the description of a scene without reading it into memory."""
        with self._lock:
            scene = self._cache.peek(scene_id)
        if scene is not None:
            return scene.info()
        return None if self._spool is None else self._spool.info(scene_id)

    def find_content(self, content_hash: str, *, counts: bool = True) -> StoredScene | None:
        """Return the scene with this content, if it is in memory.

        With `counts`, this is a put: a client asks for the content instead of uploading it.
        """
        with self._lock:
            present = self._by_hash(content_hash)
            if present is not None and counts:
                self._count_put(present)
        return present

    def ensure_written(
        self, scene_ids: Collection[str], content_hashes: Collection[str], seconds: float, call: Call | None
    ) -> bool:
        """Wait up to `seconds`, or while a call lasts, until scenes, by id and by content, are in the spool.

        Returns whether all are in the spool. Raises what `Call.check` raises.
        """
        spool = self._spool
        if spool is None:
            return False
        with self._lock:
            named = {self._id_of_hash.get(content_hash, "") for content_hash in content_hashes}.union(scene_ids)
            for scene_id in named:
                scene = self._cache.peek(scene_id)
                # The scene's write may have failed, or its file may have been evicted.
                if scene is not None and not spool.is_due(scene_id) and not spool.touch(scene_id):
                    self._write(scene)
        spool.wait_until_written(named, seconds, call)
        return all(map(spool.touch, scene_ids)) and all(map(spool.has_content, content_hashes))

    def peek(self, scene_id: str) -> StoredScene | None:
        """Return the scene, even if it was deleted but is needed by another scene; does not mark it as used."""
        with self._lock:
            return self._cache.peek(scene_id)

    def replace(
        self,
        scene_id: str,
        expected_version: int,
        content: Content,
        update_id: str = "",
        call: Call | None = None,
        *,
        own_id: str = "",
        is_lasting: bool = False,
    ) -> scene_pb2.SceneInfo:
        """Store the next version and describe it; raises VersionMismatchError if the version is not `expected_version`.

        An update that was already applied, by `update_id`, is not applied again. A scene that is in the spool stays
        there: its next version is written before anybody sees it, unless writing takes too long (`_WRITE_SHARE`) or
        there is no room. With `is_lasting`, every version is written first; if that is impossible, raises BusyError and
        leaves the scene as it is. With `own_id`, a scene whose content others have also put is left unchanged; the next
        version becomes a separate scene, and one of the puts is taken back.
        """
        spool = self._spool
        with contextlib.nullcontext() if spool is None else held(spool.exclusive, call):
            with self._lock:
                made = self._find(scene_id, 0).made_by(update_id)
                if made is not None:
                    return made
                old = base = self._find(scene_id, expected_version)
                if own_id and old.content_hash and self._puts.get(scene_id) != 1:
                    base = dataclasses.replace(old, scene_id=own_id)
                new = base.updated(content, update_id)
                if spool is None:
                    self._exchange(old, new)
                else:
                    writing = spool.begin_replacing(new.scene_id)
            if spool is not None:
                self._replace_file(spool, writing, old, new, is_lasting=is_lasting)
        self._budget.enforce(self)
        return new.info()

    def _replace_file(
        self, spool: SceneSpool, writing: Writing, old: StoredScene, new: StoredScene, *, is_lasting: bool
    ) -> None:
        """Write the next version of a scene, or delete the previous version's file; then store the next version."""
        started = time.monotonic()
        last, before = self._paces.get(old.scene_id, (started, 0.0))
        seconds = max(0.0, before - _WRITE_SHARE * (started - last))
        is_hot = seconds > _WRITE_BURST_SECONDS and not is_lasting
        is_filed = is_lasting or (spool.touch(old.scene_id) and not is_hot)
        try:
            is_replaced = is_filed and spool.replace(new, writing)
        except BaseException as error:
            if is_lasting or not isinstance(error, BusyError):
                self._keep(spool, old, new.scene_id)
                raise
            is_replaced = False
        if not is_replaced:
            with self._lock:
                if self._cache.get(new.scene_id) is old:
                    self._cache.hold(new.scene_id)
            # After a crash, the old version's file must not be taken for the newest version: updating it would create
            # different content with the same version.
            spool.discard(new.scene_id)
        with self._lock:
            if not writing.is_wanted:
                # The scene was deleted meanwhile.
                raise SceneNotFoundError(new.scene_id)
            spool.cancel_write(new.scene_id)
            now = time.monotonic()
            self._paces[new.scene_id] = now, seconds + (now - started) * is_filed
            self._exchange(old, new)
            if not is_filed:
                self._write(new, _REST_SECONDS if is_hot else 0.0)

    def _keep(self, spool: SceneSpool, old: StoredScene, new_id: str) -> None:
        """Return to the version before one that could not be written, whose own write was cancelled."""
        with self._lock:
            spool.cancel_write(new_id)
            if self._cache.peek(new_id) is old:
                self._cache.let_go(new_id)
                if not spool.touch(new_id):
                    self._write(old)

    def delete(self, scene_id: str) -> None:
        """Delete a scene; raises SceneNotFoundError if there is none."""
        with self._lock:
            self._remove(scene_id)
        if self._spool is not None:
            self._spool.sync()

    def take_back(self, scene_id: str) -> bool:
        """Take back one put of a scene's content. If it was the only one, deletes the scene and returns True."""
        with self._lock:
            puts = self._puts.get(scene_id)
            if puts == 1:
                self._remove(scene_id)
            elif puts is not None:
                self._puts[scene_id] = puts - 1
        if self._spool is not None:
            self._spool.sync()
        return puts == 1

    def clear(self) -> None:
        """Remove every scene from memory."""
        with self._lock:
            self._cache.clear()
            self._id_of_hash.clear()
            self._puts.clear()
            self._paces.clear()

    def all(self) -> list[StoredScene]:
        """Return every scene in memory."""
        with self._lock:
            return list(self._cache.values())

    def _keep_room(self, nbytes: int) -> bool:
        """Keep room for a scene of this size, evicting others; False if too many are held."""
        with self._lock:
            if not self._cache.has_room(nbytes + sum(self._coming), 1 + len(self._coming)):
                return False
            self._coming.append(nbytes)
        if self._budget.enforce(self, nbytes, 1):
            return True
        self._end_room(nbytes)
        return False

    def _end_room(self, nbytes: int) -> None:
        with self._changed:
            self._coming.remove(nbytes)
            self._changed.notify_all()

    def _exchange(self, old: StoredScene, new: StoredScene) -> None:
        if new.scene_id == old.scene_id:
            self._forget_hash(old)
        else:
            self._add_puts(old, -1)
        self._put(new)

    def _write(self, scene: StoredScene, delay_seconds: float = 0.0) -> None:
        """Schedule a scene to be written; it stays in memory until then."""
        if self._spool is not None:
            self._cache.hold(scene.scene_id)
            self._spool.submit(scene, self._written, delay_seconds)

    def _written(self, scene: StoredScene, is_wanted: Callable[[], bool]) -> None:
        """Allow a scene to be evicted, now that it is in the spool or the spool has no room for it."""
        with self._changed:
            # A call that replaces the scene has cancelled this write, and may have registered its own.
            if self._spool is not None and is_wanted():
                self._spool.cancel_write(scene.scene_id)
                self._cache.let_go(scene.scene_id)
                self._cache.trim()
            self._changed.notify_all()
        if self._budget.is_exceeded:
            self._budget.enforce(self)

    def _remove(self, scene_id: str) -> None:
        self._puts.pop(scene_id, None)
        self._paces.pop(scene_id, None)
        scene = self._cache.pop(scene_id)
        was_kept = self._spool is not None and self._spool.forget(scene_id)
        if scene is None and not was_kept:
            raise SceneNotFoundError(scene_id)
        if scene is not None:
            self._forget_hash(scene)

    def _put(self, scene: StoredScene) -> None:
        for name in scene.content.needs:
            # A needed scene may have grown: a mesh allocates memory for signs by winding numbers.
            needed = self._cache.peek(name)
            if needed is not None:
                self._cache.recount(name, _size(needed))
        if scene.content_hash:
            self._id_of_hash[scene.content_hash] = scene.scene_id
        self._cache.put(scene.scene_id, scene, _size(scene), scene.content.needs)

    def _find(self, scene_id: str, version: int) -> StoredScene:
        scene = self._kept(scene_id)
        if scene is None:
            raise SceneNotFoundError(scene_id)
        if version not in (0, scene.version):
            raise VersionMismatchError(scene_id, version, scene.version)
        return scene

    def _by_hash(self, content_hash: str) -> StoredScene | None:
        scene_id = self._id_of_hash.get(content_hash)
        return None if scene_id is None else self._kept(scene_id)

    def _kept(self, scene_id: str) -> StoredScene | None:
        """Return a scene in memory. A scene with levels has only its table there; it is removed if its file is gone."""
        scene = self._cache.get(scene_id)
        # Levels are in the spool, if there is one.
        if scene is None or self._spool is None or not is_levels(scene_id) or self._spool.touch(scene_id):
            return scene
        self._cache.pop(scene_id)
        self._forget_hash(scene)
        self._puts.pop(scene_id, None)
        return None

    def _count_put(self, scene: StoredScene) -> None:
        """Count a put of content that is present."""
        self._metrics.scene_puts.labels("present").inc()
        self._add_puts(scene, 1)

    def _add_puts(self, scene: StoredScene, count: int) -> None:
        if scene.scene_id in self._puts:
            self._puts[scene.scene_id] += count

    def _forget_hash(self, scene: StoredScene) -> None:
        if self._id_of_hash.get(scene.content_hash) == scene.scene_id:
            del self._id_of_hash[scene.content_hash]

    def _dropped(self, _: str, scene: StoredScene, reason: str) -> None:
        self._forget_hash(scene)
        self._puts.pop(scene.scene_id, None)
        self._paces.pop(scene.scene_id, None)
        self._metrics.evictions.labels("scenes", reason).inc()

    def _no_room(self, scene: StoredScene) -> BusyError:
        budget = self._budget
        limits = f"{budget.limit_bytes} bytes (--scene-mib) and {budget.limit_count} scenes (--max-scenes)"
        what = f"there is no room for a scene of {_size(scene)} bytes beside other tenants', of {limits} in all"
        return BusyError(what, _RETRY_SECONDS)


def _size(scene: StoredScene) -> int:
    return scene.content.bytes + OVERHEAD_BYTES
