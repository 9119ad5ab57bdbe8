"""`Client`, which stores scenes on workers and gets pictures, distances and gradients from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from lumigrad.client.base.arguments import instance, truth
from lumigrad.client.calls.distances import DistanceCalls
from lumigrad.client.calls.driving import DrivingCalls
from lumigrad.client.calls.scenes import SceneCalls, on_each, stored
from lumigrad.client.errors import LumigradError
from lumigrad.client.rendering.batch import BatchItem, batch_facts, batch_requests, render_batch
from lumigrad.client.rendering.frame import Frame, render, render_spread
from lumigrad.client.rendering.request import RenderRequest, request_of
from lumigrad.client.rendering.stream import MOST_IN_FLIGHT, RenderStream
from lumigrad.client.settings.fields import RenderFields
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.image_format import ImageFormat, ImageFormats
from lumigrad.client.settings.spheres import SphereSettings
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

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Client(SceneCalls, DistanceCalls, DrivingCalls, TrainingCalls):
    """A client of one worker or several. Connects when first used; safe to use from several threads.

    Calls that reach no worker are retried for a while, so a worker can be restarted while clients use it. The client
    then uploads missing scenes again and recomputes missing forward states.

    With several workers, the hash of a scene's content determines its worker, in the same way for all clients. While
    that worker is unavailable or about to stop, the next one in the scene's order serves its calls.

    Example:
        with Client("localhost:50051", timeout_s=10) as client:
            print(client.info().device)
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
            retry_s: how long a call is retried while no worker answers, seconds; 0: never. While a worker is full, the
                call is retried until its time-out, unless `retry_s` is 0.
            token: sent as a bearer token with each call; None: LUMIGRAD_TOKEN, else none.
            tls: True, or the path of a PEM file with the certificate authorities to trust; False: plain text; None:
                LUMIGRAD_TLS, which is 1 or such a path, else plain text.
            certificate: PEM files of the client's own certificate and of its key, for workers that require one.
            priority: priority of all calls among those of the same tenant: "interactive", "batch", or None: "normal".
            lane: transport of large payloads. "auto": shared memory, if the target is a loopback address and the
                worker offers it; "shared": shared memory at any address, with a warning where that is impossible;
                "stream": the gRPC stream of the call.
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
        """The worker's address; for several workers the target as passed, with addresses joined by commas."""
        return self._workers.target

    @property
    def lane(self) -> str:
        """The transport of large payloads, "shared" or "stream"; contacts a worker if it is not known yet."""
        call = Call(self._workers.timeout_of(None), cancellation=self._cancellation)
        attempts = RoutedAttempts(self._workers, None, call)
        while True:
            with attempts as worker:
                return worker.connection.lanes.kind(attempts.call)

    def close(self) -> None:
        """Closes the connections. Stored scenes stay on the workers.

        Example:
            with Client(target) as client:  # closes it at the end
                client.info()
        """
        self._workers.close()

    def info(self, *, timeout_s: float | None = None) -> WorkerInfo:
        """Returns the worker's device, limits and load; with several workers, those of one that is available.

        Args:
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            LumigradError: no worker answered in time.

        Example:
            info = client.info()
            print(info.device, info.version)
        """
        with self._workers.begin(timeout_s, f"{WORKER_SERVICE}/Info", None, self._cancellation) as call:
            attempts = RoutedAttempts(self._workers, None, call)
            while True:
                with attempts as worker:
                    return _info(worker, attempts.call)

    def infos(self, *, timeout_s: float | None = None) -> tuple[WorkerInfo, ...]:
        """Returns each worker's info; workers that are unavailable are left out, unless all are unavailable.

        Args:
            timeout_s: overrides the client's time-out, seconds.

        Raises:
            LumigradError: no worker answered in time.

        Example:
            for info in client.infos():
                print(info.target, info.device)
        """
        with self._workers.begin(timeout_s, f"{WORKER_SERVICE}/Info", None, self._cancellation) as call:
            return on_each(self._workers, lambda worker, _: _info(worker, call), call)

    def render(
        self,
        scene: Spheres | Gaussians | SceneHandle,
        camera: Camera | Sequence[Camera],
        *,
        settings: SphereSettings | GaussianSettings | None = None,
        outputs: Sequence[str] = ("color",),
        image_format: ImageFormat | ImageFormats = "float32",
        jpeg_quality: int | None = None,
        retain: bool = False,
        spread: bool = False,
        timeout_s: float | None = None,
        **fields: Unpack[RenderFields],
    ) -> Frame:
        """Renders a scene from one or many cameras.

        Args:
            scene: a handle from `put`, or spheres or Gaussians, which are sent with the call and not stored.
            camera: one camera, or a sequence with equal image sizes; a sequence adds a first axis to the results.
            settings: `SphereSettings` for spheres, `GaussianSettings` for Gaussians; None: the defaults.
            outputs: for spheres any of "color", "alpha", "depth", "info", "sphere_ids", "weights", "hits"; for
                Gaussians "color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "contributors",
                "ids", "radii", "means2d", "depths", "conics", "projected_opacities"; along rays also "hit_distance",
                "expected_hit_distance", "normals"; for surfels also "median_depth", "normals", "distortion",
                "surface_normals". See `Frame`.
            image_format: wire format of the outputs: one for all, or a mapping from names to formats, e.g.
                {"color": "png", "depth": "float16"}. "float16" and "bfloat16" for images of floats, which are converted
                back to float32; "uint8" and "png" for "color", "alpha" and "transmittance", rounded to 256 levels from
                0 to 1; "jpeg" for "color" of 3 channels, for display. Files are in `Frame.encoded`. Gradients do not
                depend on the format.
            jpeg_quality: 1 to 100; None: 90.
            retain: keep the forward state on the worker, so that `Frame.backward` need not recompute it. A scene with
                levels of detail is then drawn from its stored values, otherwise from rounded ones.
            spread: divide the cameras among several workers. The images are the same; gradients are summed.
            timeout_s: overrides the client's time-out, seconds.
            fields: fields of the settings by name, for this call only, e.g. `background=1.0`; None: as in `settings`.

        Raises:
            InvalidArgument: an argument is wrong, or belongs to another kind of scene; the text names it.
            SceneNotFound: the worker does not have the handle's scene, and the handle has no copy of it.
            LumigradError: no worker answered in time, or none has room; see its subclasses.

        Example:
            camera = Camera.orbit(center=(0, 0, 0), distance=4, azimuth_degrees=30, elevation_degrees=20)
            settings = GaussianSettings(antialiased=True, near=0.1)
            frame = client.render(scene, camera, settings=settings, image_format="uint8", background=1.0)
            frame.color  # [512, 512, 3] uint8
        """
        request = request_of(
            scene, camera, settings=settings, outputs=outputs, image_format=image_format, jpeg_quality=jpeg_quality,
            **fields,
        )  # fmt: skip
        return self._rendered(request, retain, spread, timeout_s)

    def _rendered(
        self, request: RenderRequest, retain: bool = False, spread: bool = False, timeout_s: float | None = None
    ) -> Frame:
        """Renders a request from `render` or from an operator."""
        with self._workers.begin(timeout_s, f"{RENDER_SERVICE}/Render", request.facts, self._cancellation) as call:
            start = render_spread if truth("spread", spread) else render
            return start(self._workers, request, truth("retain", retain), call)

    def render_batch(
        self,
        /,
        items: Iterable[BatchItem],
        *,
        settings: SphereSettings | GaussianSettings | None = None,
        outputs: Sequence[str] = ("color",),
        image_format: ImageFormat | ImageFormats = "float32",
        jpeg_quality: int | None = None,
        timeout_s: float | None = None,
        **fields: Unpack[RenderFields],
    ) -> tuple[Frame | LumigradError, ...]:
        """Renders many items in one call: any mixture of scenes, image sizes, lenses, settings and outputs.

        Items of one stored scene that differ only in their cameras are rendered together, so one camera per item is as
        fast as all cameras in one item. An invalid item does not prevent the other items from being rendered. With
        several workers, each renders the items whose scenes it has.

        Args:
            items: pairs of a scene and its camera or cameras, as in `render`; an optional third element maps names of
                the arguments below, except the time-out, to values for this item only.
            settings: as for `render`. This and the following arguments are the defaults of all items; an item's own
                settings replace both `settings` and `fields`.
            outputs: as for `render`.
            image_format: as for `render`.
            jpeg_quality: as for `render`.
            timeout_s: overrides the client's time-out for the whole call, seconds.
            fields: fields of the settings by name, as for `render`.

        Returns:
            For each item its frame, shaped as from `render`, or the exception that `render` would raise, with a text
            that begins with "items[index]". `Frame.backward` renders the item again.

        Raises:
            InvalidArgument: an item is no such pair, a shared argument is unknown, or there are too many items.
            LumigradError: the call failed as a whole, e.g. no worker answered in time.

        Example:
            results = client.render_batch(
                [(scene, cameras[0]), (scene, cameras[1]), (gaussians, camera, {"near": 0.1})],
                outputs=("color", "depth"),
                image_format={"color": "uint8", "depth": "float16"},
            )
            results[0].color  # [H, W, 3] uint8, as from `render`
        """
        shared = {"settings": settings, "outputs": outputs, "image_format": image_format, "jpeg_quality": jpeg_quality}
        requests = batch_requests(items, {**shared, **fields})
        facts = partial(batch_facts, requests)
        with self._workers.begin(timeout_s, f"{RENDER_SERVICE}/RenderBatch", facts, self._cancellation) as call:
            return render_batch(self._workers, requests, call)

    def stream(
        self,
        scene: Spheres | Gaussians | SceneHandle,
        *,
        settings: SphereSettings | GaussianSettings | None = None,
        outputs: Sequence[str] = ("color",),
        image_format: ImageFormat | ImageFormats = "float32",
        jpeg_quality: int | None = None,
        in_flight: int = MOST_IN_FLIGHT,
        latest_only: bool = False,
        retain: bool = False,
        timeout_s: float | None = None,
        **fields: Unpack[RenderFields],
    ) -> RenderStream:
        """Opens a stream of frames of one scene, for viewers, simulators and loops: send a camera, receive its frame.

        Args:
            scene: a handle from `put`; or spheres or Gaussians, which are stored while the stream is open.
            settings: as for `render`, for all frames.
            outputs: as for `render`, for all frames.
            image_format: as for `render`, for all frames.
            jpeg_quality: as for `render`, for all frames.
            in_flight: the most frames that are pending at a time, 1 to 4; with several, the worker renders one while
                others travel.
            latest_only: skip cameras that a later `send` overtakes before their frames have begun; `send` then takes
                any number of cameras, and `receive` returns only the frames that were rendered.
            retain: as for `render`.
            timeout_s: overrides the client's time-out for each frame, counted from its `send`, seconds.
            fields: fields of the settings by name, as for `render`.

        Raises:
            InvalidArgument: an argument is wrong.

        Example:
            with client.stream(scene, outputs=("color", "depth"), image_format={"color": "uint8"}) as stream:
                for frame in stream.frames(cameras):
                    print(frame.color.shape)
        """
        shared = {"settings": settings, "outputs": outputs, "image_format": image_format, "jpeg_quality": jpeg_quality}
        instance("scene", scene, (Spheres, Gaussians, SceneHandle), "pass what put returned, Spheres or Gaussians")
        keeping = ExitStack()
        handle = scene if isinstance(scene, SceneHandle) else keeping.enter_context(stored(self, scene))
        try:
            return RenderStream(
                self._workers, handle, {**shared, **fields}, in_flight=in_flight, latest_only=latest_only,
                retain=retain, timeout_s=timeout_s, at_end=keeping.close,
            )  # fmt: skip
        except BaseException:
            keeping.close()
            raise


def _info(worker: Worker, call: Call) -> WorkerInfo:
    connection = worker.connection
    return WorkerInfo.of(connection.unary(connection.worker.Info, worker_pb2.InfoRequest(), call), worker.target)
