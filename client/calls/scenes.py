"""The part of `Client` that stores, changes and finds scenes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from lumigrad.client.base.arguments import instance, whole_number
from lumigrad.client.errors import LumigradError, SceneNotFound, Unavailable
from lumigrad.client.transport.retry import Deadline, wait_for_room
from lumigrad.client.transport.tracing import traced
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import Scene, SceneHandle, scene_facts
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target import Target
from lumigrad.client.values.world import World
from lumigrad.client.wire.changes import SceneChanges
from lumigrad.client.workers.pool import Workers
from lumigrad.client.workers.routing import Wish
from lumigrad.client.workers.worker import Worker
from lumigrad.protos.service import SCENE_SERVICE

T = TypeVar("T")
_MOST_REPLICAS = 1024


class SceneCalls:
    """Scenes on the workers."""

    _workers: Workers

    @traced(f"{SCENE_SERVICE}/Put", lambda _, scene, **__: scene_facts(scene))
    def put(self, scene: Scene, *, replicas: int = 1, timeout_s: float | None = None) -> SceneHandle:
        """Stores a scene on its worker, named by its content; storing it again costs only a round trip.

        A world's meshes are stored with it. The handle keeps the scene, so that it can be put again if the worker loses
        it.

        Args:
            scene: what to store.
            replicas: of several workers, how many share the calls that name the handle; each gets the scene when it is
                first asked.
            timeout_s: instead of the client's time-out.
        """
        advice = "make one with Spheres(…), Gaussians(…), Mesh(vertices, faces), World([Obstacle(…), …]) or Target(…)"
        instance("scene", scene, (Spheres, Gaussians, Mesh, World, Target), advice)
        copies = whole_number("replicas", replicas, 1, _MOST_REPLICAS)
        return put(self._workers, scene, self._workers.deadline(timeout_s), copies)

    @traced(f"{SCENE_SERVICE}/Update", lambda _, handle, **__: scene_facts(handle))
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
            poses: of a world: of obstacles by their names, object to world: [7] x y z (metres) and quaternion w x y z,
                or [3] or [4, 4], as of an `Obstacle`.
            enabled: of a world: whether queries see obstacles, by their names.
            timeout_s: instead of the client's time-out.
            tensors: by name, shaped as before: "positions", "colors", "radii" and "opacities" of spheres; "means",
                "quats", "scales", "covariances", "opacities", "sh" and "colors" of Gaussians, those that it has;
                "vertices" of a mesh, which stored worlds that show its handle then show.

        Raises:
            VersionMismatch: somebody else updated the scene since this handle was made.
        """
        instance("handle", handle, (SceneHandle,), "pass what put, update or get returned")
        given = {name: value for name, value in tensors.items() if value is not None}
        changes = SceneChanges(given, poses or {}, enabled or {})
        deadline = self._workers.deadline(timeout_s)

        def update(worker: Worker) -> tuple[Worker, SceneHandle]:
            return worker, worker.store.update(handle, changes, deadline)

        leader, updated = self._workers.call(handle, update, deadline)
        if updated.kind == "mesh":
            # Worlds show it as it is now, on other workers too.
            self._workers.follow(leader, handle, updated, changes)
        return updated

    @traced(f"{SCENE_SERVICE}/Get", lambda _, scene_id, **__: {"scene_id": scene_id})
    def get(self, scene_id: str, *, with_tensors: bool = False, timeout_s: float | None = None) -> SceneHandle:
        """A handle to a stored scene by its id; `with_tensors` also downloads it, as the handle's `scene`."""
        instance("scene_id", scene_id, (str,), "pass the scene_id of a handle")
        deadline = self._workers.deadline(timeout_s)
        wish = Wish(scene_id, is_movable=False)
        return self._workers.call(wish, lambda worker: worker.store.get(scene_id, with_tensors, deadline), deadline)

    @traced(f"{SCENE_SERVICE}/List")
    def list(self, *, timeout_s: float | None = None) -> tuple[SceneHandle, ...]:
        """Handles to all scenes that the workers store."""
        deadline = self._workers.deadline(timeout_s)
        found = on_each(self._workers, lambda worker: worker.store.list(deadline), deadline)
        return tuple(handle for handles in found for handle in handles)

    @traced(f"{SCENE_SERVICE}/Delete", lambda _, scene, **__: scene_facts(scene))
    def delete(self, scene: SceneHandle | str, *, timeout_s: float | None = None) -> None:
        """Lets the workers forget a scene, given by its handle or id."""
        instance("scene", scene, (SceneHandle, str), "pass what put, update or get returned, or its scene_id")
        deadline = self._workers.deadline(timeout_s)

        def delete(worker: Worker) -> None:
            worker.store.delete(scene, deadline)

        on_each(self._workers, delete, deadline, SceneNotFound)


def put(workers: Workers, scene: Scene, deadline: Deadline, replicas: int = 1) -> SceneHandle:
    """Stores a scene on the worker that it belongs to."""
    key = workers.key(scene)
    # A world's hash depends on what the worker calls its meshes.
    digest = None if isinstance(scene, World) else key
    handle = workers.call(Wish(key), lambda worker: worker.store.put(scene, deadline, digest=digest), deadline)
    return replace(handle, replicas=replicas)


def on_each(
    workers: Workers, ask: Callable[[Worker], T], deadline: Deadline, missing: type[LumigradError] = Unavailable
) -> tuple[T, ...]:
    """What every worker answers; an error only if all of them are away, or what was asked for is `missing` there."""
    answers: tuple[T, ...] = ()
    error: LumigradError | None = None
    for worker in workers.each(deadline):
        try:
            answers += (wait_for_room(partial(ask, worker), deadline, workers.retry_s),)
        except (Unavailable, missing) as failed:
            error = failed if error is None or isinstance(failed, missing) else error
    if error is not None and not answers:
        raise error
    return answers


def first_with(workers: Workers, ask: Callable[[Worker], T], missing: type[LumigradError], deadline: Deadline) -> T:
    """What the first worker answers to which what was asked for is not `missing`."""
    error: LumigradError | None = None
    for worker in workers.each(deadline):
        try:
            return ask(worker)
        except (Unavailable, missing) as failed:
            error = failed if error is None or isinstance(error, missing) else error
    assert error is not None
    raise error
