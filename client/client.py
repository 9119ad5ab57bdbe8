"""The client: scenes, pictures, distances and gradients from workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lumigrad.client.base.arguments import instance, names
from lumigrad.client.calls.distances import DistanceCalls
from lumigrad.client.calls.scenes import SceneCalls, on_each
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rendering.frame import Frame, render, render_spread
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.engines import (
    DepthOrder,
    GaussianSemantics,
    ProjectionMethod,
    Response,
    Semantics,
    TileBounds,
    Transform,
    UnscentedTransform,
    settings_of,
)
from lumigrad.client.settings.image_format import ImageFormat, image_formats, jpeg_quality_of
from lumigrad.client.training.calls import TrainingCalls
from lumigrad.client.transport.addresses import Targets, WorkerTargets
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.channel import Access, Certificate, Priority, Tls
from lumigrad.client.transport.lanes import LaneMode
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.info import WorkerInfo
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.worker import Worker
from lumigrad.protos.service import RENDER_SERVICE, WORKER_SERVICE
from lumigrad.v1 import worker_pb2


class Client(SceneCalls, DistanceCalls, TrainingCalls):
    """A client of one worker or several. Connects when first used; safe to use from several threads.

    Calls that reach no worker are retried for a while, so a worker can be restarted while clients use it. The client
    then uploads missing scenes again and recomputes missing forward states.

    With several workers, the hash of a scene's content determines its worker, in the same way for all clients. While
    that worker is unavailable or about to stop, the next one in the scene's order serves its calls.
    """

    def __init__(
        self,
        target: WorkerTargets | None = None,
        *,
        timeout_s: float = 60.0,
        retry_s: float = 10.0,
        token: str | None = None,
        tls: Tls | None = None,
        certificate: Certificate | None = None,
        priority: Priority | None = None,
        lane: LaneMode = "auto",
    ) -> None:
        """Sets up, without connecting.

        Args:
            target: "host:port" of a worker; several of them, in a sequence or with commas; "dns:///name:port" for all
                addresses of the name, which is resolved again every few seconds; or a function without arguments that
                returns the addresses and is called as often. None: LUMIGRAD_TARGET, else localhost:50051.
            timeout_s: default time-out of a call, including retries, seconds.
            retry_s: how long a call is retried while no worker answers, seconds; 0: never. If a worker is full, the
                call is retried until its time-out, unless this is 0.
            token: sent as a bearer token with each call; None: LUMIGRAD_TOKEN, else none.
            tls: True, or the path of a PEM file with the certificate authorities to trust; False: plain text; None:
                LUMIGRAD_TLS, which is 1 or such a path, else plain text.
            certificate: PEM files of the client's own certificate and of its key, for workers that require one.
            priority: priority of all calls: "interactive", "batch", which yields to other calls, or None: "normal".
            lane: transport of large payloads. "auto": shared memory, if the target is a loopback address and the
                worker offers it; "shared": likewise at any address, with a warning where that is impossible; "stream":
                the gRPC stream of the call.
        """
        access = Access.of(timeout_s, retry_s, token, tls, certificate, priority, lane)
        self._workers = Pool(Targets(target), access)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.target!r})"

    @property
    def target(self) -> str:
        """The worker's address; for several workers the target that was passed, addresses joined by commas."""
        return self._workers.target

    @property
    def lane(self) -> str:
        """The transport of large payloads, "shared" or "stream"; contacts a worker if it is not known yet."""
        call = Call(self._workers.timeout_of(None), cancellation=self._cancellation)
        attempts = RoutedAttempts(self._workers, None, call)
        while True:
            with attempts as worker:
                return worker.connection.lane(attempts.call)

    def close(self) -> None:
        """Closes the connections. Stored scenes stay on the workers."""
        self._workers.close()

    def info(self, *, timeout_s: float | None = None) -> WorkerInfo:
        """Returns the worker's device, limits and load; with several workers, those of one that is available."""
        with self._workers.begin(timeout_s, f"{WORKER_SERVICE}/Info", None, self._cancellation) as call:
            attempts = RoutedAttempts(self._workers, None, call)
            while True:
                with attempts as worker:
                    return _info(worker, attempts.call)

    def infos(self, *, timeout_s: float | None = None) -> tuple[WorkerInfo, ...]:
        """Returns each worker's info; workers that are unavailable are left out, unless all are unavailable."""
        with self._workers.begin(timeout_s, f"{WORKER_SERVICE}/Info", None, self._cancellation) as call:
            return on_each(self._workers, lambda worker, _: _info(worker, call), call)

    def render(
        self,
        scene: Spheres | Gaussians | SceneHandle,
        camera: Camera | Sequence[Camera],
        *,
        background: Any = None,
        semantics: Semantics | GaussianSemantics | None = None,
        gamma: float | None = None,
        max_depth: float | None = None,
        min_depth: float | None = None,
        allowed_difference: float | None = None,
        max_hits: int | None = None,
        n_track: int | None = None,
        background_depth: float | None = None,
        sh_degree: int | None = None,
        antialiased: bool | None = None,
        eps2d: float | None = None,
        near: float | None = None,
        far: float | None = None,
        radius_clip: float | None = None,
        alpha_min: float | None = None,
        alpha_max: float | None = None,
        transmittance_min: float | None = None,
        pixel_center: float | None = None,
        scale_modifier: float | None = None,
        transforms: Sequence[Transform] | None = None,
        deterministic: bool | None = None,
        projection_method: ProjectionMethod | None = None,
        unscented: UnscentedTransform | None = None,
        depth_order: DepthOrder | None = None,
        tile_bounds: TileBounds | None = None,
        tile_size: int | None = None,
        response: Response | None = None,
        outputs: Sequence[str] = ("color",),
        image_format: ImageFormat | Mapping[str, ImageFormat] = "float32",
        jpeg_quality: int | None = None,
        retain: bool = False,
        spread: bool = False,
        timeout_s: float | None = None,
    ) -> Frame:
        """Renders a scene from one or many cameras. Settings for the other kind of scene are refused.

        Args:
            scene: a handle from `put`, or spheres or Gaussians, which are sent with the call and not stored.
            camera: one camera, or a sequence with equal image sizes; a sequence adds a first axis to the results.
            background: [K] channels, or one number for all of them; for Gaussians also [C, K]. None: 1 for spheres, 0
                for Gaussians.
            semantics: "exact" (None) for true derivatives; "compat" for Pulsar's behaviour; for Gaussians "gsplat",
                "inria_depth" and "inria_exact", see `GaussianSettings`.
            gamma: of spheres: softness of the depth blending, in [1e-5, 1], relative to the depth range; None: 0.01.
            max_depth: of spheres: far end of the depth range, scene units; None: just behind the scene.
            min_depth: of spheres: near end; spheres that begin before it are not shown. None, 0: just behind a Pulsar
                camera's film.
            allowed_difference: of spheres, as the next three: relative colour error allowed for stopping early; None:
                0 in exact, 0.01 in compat.
            max_hits: maximum number of spheres blended per pixel; None, 0: no limit.
            n_track: spheres recorded per pixel in "info", "sphere_ids" and "weights", up to 128; None: 5.
            background_depth: normalised closeness of the background, in (0, 1); None: 1e-6.
            sh_degree: of Gaussians, as those up to `response`: degree of the harmonics in use; None: the stored one.
            antialiased: scale opacities to compensate for the area that the blur adds.
            eps2d: blur in the image, pixels squared; None: 0.3.
            near: least depth shown, scene units; None: 0.01.
            far: largest depth shown; None: 1e10.
            radius_clip: Gaussians with radii of at most this many pixels are not shown; None: 0.
            alpha_min: contributions with a smaller alpha are skipped; None: 1/255.
            alpha_max: larger alphas are clamped to it; None: 0.99.
            transmittance_min: blending of a pixel stops when its transmittance falls to this; None: 1e-4.
            pixel_center: where the centre of the first pixel is, 0.5 or 0 pixels; None: 0.5, with Inria's cameras 0.
            scale_modifier: factor on all scales; None: 1.
            transforms: (begin, end, matrix [4, 4]): place slices of the Gaussians in the world.
            deterministic: sum gradients in a fixed order on every device.
            projection_method: "jacobian", or by sigma points "unscented"; None: what the cameras need.
            unscented: of sigma points, as those up to `response`: where they lie; see `GaussianSettings`.
            depth_order: sort by, and measure depth along, "z" (None) or as "distance" from the camera.
            tile_bounds: "conservative" (None) or "gsplat", which cuts Gaussians at its tiles.
            tile_size: of gsplat's tiles, pixels; None: as in gsplat.
            response: evaluate Gaussians in the "picture" (None), or along the "ray" of each pixel.
            outputs: of spheres any of "color", "alpha", "depth", "info", "sphere_ids", "weights", "hits"; of Gaussians
                "color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "contributors", "radii",
                "means2d", "depths", "conics", "projected_opacities", along rays also "hit_distance",
                "expected_hit_distance", "normals"; see `Frame`.
            image_format: wire format of outputs: one for all of them, or some by name, e.g. {"color": "png",
                "depth": "float16"}. "float16" and "bfloat16" for images of floats, which are converted back to float32;
                "uint8" and "png" for "color", "alpha" and "transmittance", rounded to 256 levels from 0 to 1; "jpeg"
                for "color" of 3 channels, for display. Files are in `Frame.encoded`. Gradients do not depend on it.
            jpeg_quality: 1 to 100; None: 90.
            retain: keep the forward state on the worker, so that `Frame.backward` need not compute it again.
            spread: divide the cameras among several workers. Images are the same; gradients are summed.
            timeout_s: instead of the client's time-out.
        """
        arguments = locals()
        advice = "pass Spheres(positions, colors, radii), Gaussians(…), or a handle from put or get"
        instance("scene", scene, (Spheres, Gaussians, SceneHandle), advice)
        cameras = _cameras(camera)
        settings = settings_of(scene, cameras, arguments)
        wanted = names("outputs", outputs)
        formats = image_formats(image_format, wanted)
        quality = jpeg_quality_of(jpeg_quality, formats)
        request = RenderRequest(scene, cameras, isinstance(camera, Camera), settings, wanted, formats, quality)
        return self.render_request(request, retain=retain, spread=spread, timeout_s=timeout_s)

    def render_request(
        self, request: RenderRequest, *, retain: bool = False, spread: bool = False, timeout_s: float | None = None
    ) -> Frame:
        """Renders a request; `render` makes one from its arguments."""
        with self._workers.begin(timeout_s, f"{RENDER_SERVICE}/Render", request.facts, self._cancellation) as call:
            return (render_spread if spread else render)(self._workers, request, retain, call)


def _info(worker: Worker, call: Call) -> WorkerInfo:
    connection = worker.connection
    return WorkerInfo.of(connection.unary(connection.worker.Info, worker_pb2.InfoRequest(), call), worker.target)


def _cameras(camera: Any) -> tuple[Camera, ...]:
    if isinstance(camera, Camera):
        return (camera,)
    advice = "make one with Camera.look_at, orbit, opencv, sensor, pulsar or inria"
    # A string is iterable, but its letters are not what the caller passed.
    instance("camera", camera, (Camera,) if isinstance(camera, str) else (Camera, Iterable), advice)
    cameras = tuple(camera)
    for entry in cameras:
        instance("camera", entry, (Camera,), advice)
    if not cameras:
        raise InvalidArgument.of("camera", f"expected a Camera or a sequence of at least one, got none; {advice}")
    return cameras
