"""The methods of `Client` that store, change and find scenes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from string import punctuation
from typing import Any, TypeVar
from urllib.parse import quote

from lumigrad.client.base.arguments import instance, whole_number
from lumigrad.client.errors import InvalidArgument, LumigradError, SceneNotFound, Unavailable
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.transport.call import Call, Cancellable
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import Scene, SceneHandle, check_is_sent, scene_facts
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage
from lumigrad.client.values.world import World
from lumigrad.client.wire.scenes import SceneChanges
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.routing import Route
from lumigrad.client.workers.worker import Worker
from lumigrad.protos.service import SCENE_SERVICE

T = TypeVar("T")
_MOST_REPLICAS = 1024
_UPDATE_ID_BYTES = 8
# Characters of an address in errors.
_SHOWN = 200
# The time-out for deleting a scene that was stored for a while.
_TAKE_BACK_S = 5.0


def _check_names(argument: str, values: Any) -> None:
    """Raises InvalidArgument unless `values` is None or a mapping whose keys are strings, the names of obstacles."""
    if values is None:
        return
    example = f"pass {{name: value}}, e.g. dict(zip(world.names, {argument}))"
    instance(argument, values, (Mapping,), example)
    for name in values:
        instance(argument, name, (str,), example)


class SceneCalls(Cancellable):
    """Stores, changes and finds scenes on the workers."""

    _workers: Pool

    def put(self, scene: Scene | str, *, replicas: int = 1, timeout_s: float | None = None) -> SceneHandle:
        """Stores a scene on its worker under a hash of its content; storing it again costs only a round trip.

        A world's meshes are stored with it. Levels of Gaussians are read while they are sent and stay in the worker's
        spool, so they may be larger than memory. The handle keeps the scene, to store it again if the worker loses it.

        A `file:` address names a file of Gaussians below the folder of the worker's option `--scene-files`: nothing is
        sent, and the handle means the file's content at the time of each call. An `https:` address below one of the
        worker's `--scene-urls` names a file that the worker downloads. It ends in `#sha256=` and the file's digest in
        hexadecimal digits, so the handle always means the same content.

        Args:
            scene: the scene to store, or its address.
            replicas: number of workers that share the calls for the handle; each receives the scene with its first
                call.
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            InvalidArgument: this is not a scene, or the worker refuses a value; the text names it.
            ResourceExhausted: the worker has no room for the scene.
            LumigradError: no worker answered in time.

        Example:
            scene = client.put(gaussians)
            frame = client.render(scene, camera)
        """
        advice = (
            "make one with Spheres(…), Gaussians(…), Mesh(vertices, faces), World([Obstacle(…), …]), TargetImage(…) or "
            "GaussianLevels.of(…)"
        )
        method, facts = f"{SCENE_SERVICE}/Put", partial(scene_facts, scene)
        with self._workers.begin(timeout_s, method, facts, self._cancellation) as call:
            copies = whole_number("replicas", replicas, 1, _MOST_REPLICAS)
            if isinstance(scene, str):
                return replace(self._at(scene, call), replicas=copies)
            instance("scene", scene, (Spheres, Gaussians, Mesh, World, TargetImage, GaussianLevels), advice)
            return replace(self._workers.put(scene, call), replicas=copies)

    def _at(self, address: str, call: Call) -> SceneHandle:
        if not address.startswith(("file:", "https:")):
            text = f"expected a scene, or the file: or https: address of one, got {address[:_SHOWN]!r}"
            raise InvalidArgument.of("scene", f"{text}; read other files with Gaussians.load")
        # The address is also the routing key, and gRPC metadata is ASCII.
        address = quote(address, safe=punctuation, errors="replace")
        attempts = RoutedAttempts(self._workers, Route(address, is_movable=False), call)
        while True:
            with attempts as worker:
                return worker.store.at(address, attempts.call)

    def update(
        self,
        /,
        handle: SceneHandle,
        *,
        poses: Mapping[str, Any] | None = None,
        enabled: Mapping[str, bool] | None = None,
        timeout_s: float | None = None,
        **tensors: Any,
    ) -> SceneHandle:
        """Changes a stored scene and returns the handle to the new version.

        Args:
            handle: names the scene and the version that the update builds on.
            poses: for a world: new poses by obstacle name, object to world: [7] x y z (metres) and quaternion
                w x y z, or [3], [3, 4] or [4, 4], as for an `Obstacle`.
            enabled: for a world: whether queries include an obstacle, by obstacle name.
            timeout_s: overrides the client's time-out, seconds.
            tensors: new tensors by name, with unchanged shapes: "positions", "colors", "radii" and "opacities" of
                spheres; those of "means", "quats", "scales", "covariances", "opacities", "sh" and "colors" that the
                Gaussians have; "vertices" of a mesh, also in the stored worlds that refer to it.

        Raises:
            VersionMismatch: another client updated the scene after this handle was made.

        Example:
            scene = client.update(scene, opacities=0.5 * gaussians.opacities)
        """
        method, facts = f"{SCENE_SERVICE}/Update", partial(scene_facts, handle)
        with self._workers.begin(timeout_s, method, facts, self._cancellation) as call:
            instance("handle", handle, (SceneHandle,), "pass what put, update or get returned")
            check_is_sent("handle", handle)
            for name, values in (("poses", poses), ("enabled", enabled)):
                _check_names(name, values)
            given = {name: value for name, value in tensors.items() if value is not None}
            return self._updated(handle, SceneChanges(given, poses or {}, enabled or {}), call)

    def _updated(self, handle: SceneHandle, changes: SceneChanges, call: Call) -> SceneHandle:
        update_id = secrets.token_hex(_UPDATE_ID_BYTES)
        attempts = RoutedAttempts(self._workers, handle, call)
        while True:
            with attempts as worker:
                assert attempts.reference is not None
                updated = worker.store.update(handle, attempts.reference, changes, update_id, attempts.call)
                break
        if updated.kind == "mesh":
            # Worlds on other workers must use the new version too.
            self._workers.follow(worker, handle, updated, changes)
        return updated

    def get(self, scene_id: str, *, with_tensors: bool = False, timeout_s: float | None = None) -> SceneHandle:
        """Returns a handle to a stored scene.

        Args:
            scene_id: the id of the scene, as in its handle.
            with_tensors: also download the scene, as the handle's `scene`.
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            SceneNotFound: no worker has the scene.

        Example:
            found = client.get(scene.scene_id, with_tensors=True)
            found.scene.means  # [N, 3] float32
        """
        with self._workers.begin(
            timeout_s, f"{SCENE_SERVICE}/Get", lambda: {"scene_id": scene_id}, self._cancellation
        ) as call:
            instance("scene_id", scene_id, (str,), "pass the scene_id of a handle")
            attempts = RoutedAttempts(self._workers, Route(scene_id, is_movable=False), call)
            while True:
                with attempts as worker:
                    return worker.store.get(scene_id, with_tensors, attempts.call)

    def list(self, *, timeout_s: float | None = None) -> tuple[SceneHandle, ...]:
        """Returns handles to all scenes that the workers store.

        Args:
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            LumigradError: no worker answered in time.

        Example:
            for handle in client.list():
                print(handle.kind, handle.count, handle.nbytes)
        """
        with self._workers.begin(timeout_s, f"{SCENE_SERVICE}/List", None, self._cancellation) as call:
            found = on_each(self._workers, lambda worker, _: worker.store.list(call), call)
            return tuple(handle for handles in found for handle in handles)

    def delete(self, scene: SceneHandle | str, *, timeout_s: float | None = None) -> None:
        """Deletes a scene from all workers.

        Args:
            scene: its handle or id.
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            SceneNotFound: no worker has the scene.

        Example:
            client.delete(client.put(spheres))
        """
        method, facts = f"{SCENE_SERVICE}/Delete", partial(scene_facts, scene)
        with self._workers.begin(timeout_s, method, facts, self._cancellation) as call:
            instance("scene", scene, (SceneHandle, str), "pass what put, update or get returned, or its scene_id")
            check_is_sent("scene", scene)

            def delete(worker: Worker, is_repeated: bool) -> None:
                # On a retry, a missing scene means that the first attempt deleted it.
                with suppress(*([SceneNotFound] if is_repeated else [])):
                    worker.store.delete(scene, call)

            on_each(self._workers, delete, call, SceneNotFound)

    def _take_back(self, handle: SceneHandle) -> None:
        """Undoes one `put`: the workers delete the scene unless its content was put more than once."""
        method, facts = f"{SCENE_SERVICE}/Delete", partial(scene_facts, handle)
        with self._workers.begin(_TAKE_BACK_S, method, facts, self._cancellation) as call:

            def take_back(worker: Worker, is_repeated: bool) -> None:
                # A repetition could take back another program's put; the scene then stays until it is evicted.
                if not is_repeated:
                    worker.store.delete(handle, call, one_put=True)

            on_each(self._workers, take_back, call, SceneNotFound)


@contextmanager
def stored(client: SceneCalls, scene: Scene) -> Iterator[SceneHandle]:
    """Stores a scene for a `with` block.

    Ids are hashes of content, so other programs may use the same scene: it is deleted afterwards only if no other
    program has put it.
    """
    handle = client.put(scene)
    try:
        yield handle
    finally:
        # There is nothing to delete on a worker that is gone or has evicted the scene.
        with suppress(LumigradError):
            client._cancelled_by(None)._take_back(handle)


def on_each(
    workers: Pool, ask: Callable[[Worker, bool], T], call: Call, missing: type[LumigradError] = Unavailable
) -> tuple[T, ...]:
    """Calls `ask` for every worker and returns the answers; raises if all are unreachable or raise `missing`.

    `ask` takes a worker, and whether an earlier call to it was interrupted.
    """
    answers: tuple[T, ...] = ()
    error: LumigradError | None = None
    for worker, attempts in workers.attempts_at_each(call):
        try:
            while True:
                with attempts:
                    answers += (ask(worker, attempts.number > 1),)
                    break
        except (Unavailable, missing) as failed:
            error = failed if error is None or isinstance(failed, missing) else error
    if error is not None and not answers:
        try:
            raise error
        finally:
            # The error's traceback refers to this frame, and would keep the call's arguments in a cycle.
            del error
    return answers
