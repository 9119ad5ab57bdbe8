"""The client: scenes, pictures and gradients from a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from lumigrad.client.arguments import instance, names, number
from lumigrad.client.arrays import to_numpy
from lumigrad.client.camera import Camera
from lumigrad.client.channel import Tls
from lumigrad.client.connection import Connection
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.frame import Frame
from lumigrad.client.remote import RemoteRenderer
from lumigrad.client.request import RenderRequest
from lumigrad.client.scene import SceneHandle
from lumigrad.client.scene_store import SceneStore
from lumigrad.client.settings import Semantics, SphereSettings, enclosing_depth
from lumigrad.client.spheres import Spheres
from lumigrad.client.worker_info import WorkerInfo
from lumigrad.v1 import worker_pb2


class Client:
    """A connection to one worker. Connects when first used; safe to use from several threads.

    Calls that find no worker are repeated for a while, so a worker may be restarted under a client. Whatever the new
    worker lacks, scenes and forward states, the client sends again.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout_s: float = 60.0,
        retry_s: float = 10.0,
        token: str | None = None,
        tls: Tls = False,
    ) -> None:
        """Sets up, without connecting.

        Args:
            target: "host:port"; None: LUMIGRAD_TARGET, else localhost:50051.
            timeout_s: default time-out of a call, its repetitions included, seconds.
            retry_s: how long a call is repeated while no worker answers, seconds; 0: not at all.
            token: sent as a bearer token with each call.
            tls: True, or the path of a PEM file with the certificate authorities to trust.
        """
        for name, seconds, least in (("timeout_s", timeout_s, 0.001), ("retry_s", retry_s, 0.0)):
            if not seconds >= least:
                raise InvalidArgument.of(name, f"expected seconds >= {least:g}, got {seconds}")
        self._connection = Connection(target, timeout_s, retry_s, token, tls)
        self._store = SceneStore(self._connection)
        self._renderer = RemoteRenderer(self._connection, self._store)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.target!r})"

    @property
    def target(self) -> str:
        """The worker's address."""
        return self._connection.target

    def close(self) -> None:
        """Ends the connection. Stored scenes stay on the worker."""
        self._connection.close()

    def info(self, *, timeout_s: float | None = None) -> WorkerInfo:
        """The worker's device, limits and load."""
        deadline = self._connection.deadline(timeout_s)
        reply = self._connection.unary(self._connection.worker.Info, worker_pb2.InfoRequest(), deadline)
        return WorkerInfo.of(reply, self.target)

    def put(self, scene: Spheres, *, timeout_s: float | None = None) -> SceneHandle:
        """Stores a scene on the worker, named by its content; storing it again costs only a round trip.

        The handle keeps the scene, so that it can be put again if the worker loses it.
        """
        instance("scene", scene, (Spheres,), "make one with Spheres(positions, colors, radii)")
        return self._store.put(scene, self._connection.deadline(timeout_s))

    def update(
        self,
        handle: SceneHandle,
        *,
        positions: Any = None,
        colors: Any = None,
        radii: Any = None,
        opacities: Any = None,
        timeout_s: float | None = None,
    ) -> SceneHandle:
        """Replaces tensors of a stored scene, shaped as before, and returns the handle to the new version.

        Raises:
            VersionMismatch: somebody else updated the scene since this handle was made; or this update was made, its
                reply was lost with the connection, and the repetition finds `actual` = `expected` + 1.
        """
        instance("handle", handle, (SceneHandle,), "pass what put, update or get returned")
        passed = {"positions": positions, "colors": colors, "radii": radii, "opacities": opacities}
        tensors = {name: value for name, value in passed.items() if value is not None}
        return self._store.update(handle, tensors, self._connection.deadline(timeout_s))

    def get(self, scene_id: str, *, with_tensors: bool = False, timeout_s: float | None = None) -> SceneHandle:
        """A handle to a stored scene by its id; `with_tensors` also downloads it, as the handle's `scene`."""
        instance("scene_id", scene_id, (str,), "pass the scene_id of a handle")
        return self._store.get(scene_id, with_tensors, self._connection.deadline(timeout_s))

    def list(self, *, timeout_s: float | None = None) -> tuple[SceneHandle, ...]:
        """Handles to all scenes that the worker stores."""
        return self._store.list(self._connection.deadline(timeout_s))

    def delete(self, scene: SceneHandle | str, *, timeout_s: float | None = None) -> None:
        """Lets the worker forget a scene, given by its handle or id."""
        instance("scene", scene, (SceneHandle, str), "pass what put, update or get returned, or its scene_id")
        scene_id = scene if isinstance(scene, str) else self._store.current(scene).scene_id
        self._store.delete(scene_id, self._connection.deadline(timeout_s))

    def render(
        self,
        scene: Spheres | SceneHandle,
        camera: Camera | Sequence[Camera],
        *,
        gamma: float = 1e-2,
        max_depth: float | None = None,
        min_depth: float = 0.0,
        background: Any = None,
        semantics: Semantics = "exact",
        allowed_difference: float | None = None,
        max_hits: int = 0,
        n_track: int = 5,
        background_depth: float | None = None,
        outputs: Sequence[str] = ("color",),
        retain: bool = False,
        timeout_s: float | None = None,
    ) -> Frame:
        """Renders a scene from one or many cameras.

        Args:
            scene: a handle from `put`, or spheres, which then travel with the call and are not stored.
            camera: one, or a sequence of one picture size; a sequence gives the results a first axis.
            gamma: softness of the depth blending, in [1e-5, 1], relative to the depth range.
            max_depth: far end of the depth range, scene units; None: just behind the scene.
            min_depth: near end; spheres that begin before it are not shown. 0: just behind a Pulsar camera's film.
            background: [K] channels, or one number for all of them; None: 1.
            semantics: "exact" for true derivatives, "compat" for Pulsar's behaviour.
            allowed_difference: share of the colour that stopping early may cost; None: 0 in exact, 0.01 in compat.
            max_hits: spheres blended per pixel at the most; 0: no limit.
            n_track: spheres recorded per pixel in "info", "sphere_ids" and "weights", up to 128.
            background_depth: normalised closeness of the background, in (0, 1); None: 1e-6.
            outputs: any of "color", "alpha", "depth", "info", "sphere_ids", "weights", "hits"; see `Frame`.
            retain: keep the forward state on the worker, so that `Frame.backward` need not compute it again.
            timeout_s: instead of the client's time-out.
        """
        advice = "pass Spheres(positions, colors, radii), or a handle from put or get"
        instance("scene", scene, (Spheres, SceneHandle), advice)
        cameras = _cameras(camera)
        spheres = scene.scene if isinstance(scene, SceneHandle) else scene
        settings = SphereSettings(
            gamma=gamma,
            max_depth=_max_depth(spheres, cameras, number("min_depth", min_depth)) if max_depth is None else max_depth,
            min_depth=min_depth,
            semantics=semantics,
            background=_background(background, spheres),
            allowed_difference=allowed_difference,
            max_hits=max_hits,
            n_track=n_track,
            background_depth=background_depth,
        )
        request = RenderRequest(scene, cameras, isinstance(camera, Camera), settings, names("outputs", outputs))
        return self.render_request(request, retain=retain, timeout_s=timeout_s)

    def render_request(self, request: RenderRequest, *, retain: bool = False, timeout_s: float | None = None) -> Frame:
        """As `render`, for those who hold a request already."""
        return self._renderer.render(request, retain, self._connection.deadline(timeout_s))


def _cameras(camera: Any) -> tuple[Camera, ...]:
    if isinstance(camera, Camera):
        return (camera,)
    advice = "make one with Camera.look_at, orbit, opencv or pulsar"
    instance("camera", camera, (Camera, Iterable), advice)
    cameras = tuple(camera)
    for entry in cameras:
        instance("camera", entry, (Camera,), advice)
    if not cameras:
        raise InvalidArgument.of("camera", f"expected a Camera or a sequence of at least one, got none; {advice}")
    return cameras


def _max_depth(spheres: Spheres | None, cameras: Sequence[Camera], min_depth: float) -> float:
    if spheres is None:
        raise InvalidArgument.of(
            "max_depth", "has no default for a handle without its scene; pass it, or get the scene with_tensors=True"
        )
    return enclosing_depth(spheres, cameras, min_depth)


def _background(background: Any, spheres: Spheres | None) -> tuple[float, ...]:
    if background is None:
        return ()
    channels = to_numpy("background", background)
    if channels.dtype.kind not in "fiub":
        raise InvalidArgument.of(
            "background", f"expected a number, or one for each channel, got {background!r}; 0 is black, 1 is white"
        )
    channels = channels.astype(np.float32)
    if channels.ndim == 0 and spheres is None:
        raise InvalidArgument.of("background", "expected one value per channel for a handle without its scene")
    if channels.ndim == 0 and spheres is not None:
        channels = np.full(spheres.channels, channels)
    return tuple(channels.ravel().tolist())
