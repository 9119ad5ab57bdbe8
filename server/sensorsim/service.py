"""The services for driving simulators: AlpaSim's and NuRec's interface, and frames as requests of ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from importlib.metadata import version

from lumigrad.drive.v1 import frame_pb2, sensorsim_pb2
from lumigrad.kernels.device import describe
from lumigrad.protos.service import SENSORSIM_SERVICE
from lumigrad.server.core import logs
from lumigrad.server.core.call import Call
from lumigrad.server.core.config import ConfigError
from lumigrad.server.core.errors import BusyError, DeviceMemoryError, ForbiddenError, InvalidArgumentError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.engines.gaussians import gaussian_plan
from lumigrad.server.rpc.status import answer_to
from lumigrad.server.scenes.lookup import named_scene, read_named
from lumigrad.server.sensorsim.addresses import SCENE_ID, URL
from lumigrad.server.sensorsim.catalog import Catalog, DriveScene
from lumigrad.server.sensorsim.frames import DriveFrame, error_about, frame_of, scan_of, scene_of
from lumigrad.server.sensorsim.renders import FrameRenderer
from lumigrad.server.sensorsim.scans import reply_of
from lumigrad.server.storage.named import NamedScene
from lumigrad.server.storage.tenants import Runtime, Tenants

# The names by which the service is called: by us; by AlpaSim, CARLA and NuRec up to 26.09; and by NuRec from 26.10.
NAMES = (
    SENSORSIM_SERVICE,
    "nre.grpc.protos.sensorsim.SensorsimService",
    "nurec.grpc.protos.sensorsim.SensorsimService",
)
# The version of AlpaSim's interface.
_API_VERSION = (0, 54, 0)
# How long the worker waits in all for memory before it starts without some scenes, and the pause between two attempts
# if an error gives none.
_PRELOAD_WAIT_SECONDS = 60.0
_RETRY_SECONDS = 1.0


class SensorsimService:
    """The methods of `lumigrad.drive.v1.SensorsimService`."""

    def __init__(self, tenants: Tenants, catalog: Catalog, metrics: Metrics) -> None:
        self._tenants = tenants
        self._catalog = catalog
        self._metrics = metrics
        self._renderer = FrameRenderer(catalog)

    def preload(self) -> None:
        """Read all scenes; raises ConfigError if one is invalid, or if they can never fit.

        If there is too little memory for a scene, waits up to a minute in all. After that the worker starts without the
        scene, and its first call reads it.
        """
        runtime, until = self._tenants.of_tenant(""), time.monotonic() + _PRELOAD_WAIT_SECONDS
        read = [scene for scene in runtime.named if _is_preloaded(scene, runtime, until)]
        missing = [scene.name for scene in read if not _is_loaded(scene, runtime)]
        if missing:
            raise ConfigError(
                f"--sensorsim-preload: expected room for all scenes (--scene-mib), got none for {missing[0]}"
            )

    def render_rgb(self, request: sensorsim_pb2.RGBRenderRequest, call: Call) -> sensorsim_pb2.RGBRenderReturn:
        """Render one picture."""
        self._admit(call)
        return sensorsim_pb2.RGBRenderReturn(image_bytes=self._rendered([self._frame(request, call, "")], call)[0])

    def batch_render_rgb(
        self, request: sensorsim_pb2.BatchRGBRenderRequest, call: Call
    ) -> sensorsim_pb2.BatchRGBRenderReturn:
        """Render pictures; a refused picture has an error."""
        self._admit(call)
        replies = [sensorsim_pb2.BatchRGBRenderReturnItem(camera_name=item.camera_name) for item in request.items]
        frames: dict[int, DriveFrame] = {}
        with call.times.stage("decode"):
            for index, item in enumerate(request.items):
                try:
                    frames[index] = self._frame(item.request, call, f"items[{index}].request.")
                except InvalidArgumentError as error:
                    replies[index].error_message = _message(error, call)
        outcomes = self._renderer.render(list(frames.values()), self._tenants.of(call), call)
        for index, outcome in zip(frames, outcomes, strict=True):
            if isinstance(outcome, Exception):
                replies[index].error_message = _message(outcome, call)
            else:
                replies[index].success = True
                replies[index].result.image_bytes = outcome
                call.record.bytes_sent += len(outcome)
        return sensorsim_pb2.BatchRGBRenderReturn(items=replies)

    def render_aggregated(
        self, request: sensorsim_pb2.AggregatedRenderRequest, call: Call
    ) -> sensorsim_pb2.AggregatedRenderReturn:
        """Render pictures and scans; an error of one is an error of the call."""
        self._admit(call)
        with call.times.stage("decode"):
            frames = [
                self._frame(item, call, f"rgb_requests[{index}].") for index, item in enumerate(request.rgb_requests)
            ]
            scans = [self._scan(item, f"lidar_requests[{index}].") for index, item in enumerate(request.lidar_requests)]
        rendered = self._rendered([*frames, *scans], call)
        pictures, points = rendered[: len(frames)], rendered[len(frames) :]
        return sensorsim_pb2.AggregatedRenderReturn(
            rgb_returns=[sensorsim_pb2.RGBRenderReturn(image_bytes=picture) for picture in pictures],
            lidar_returns=map(reply_of, points),
        )

    def render_lidar(self, request: sensorsim_pb2.LidarRenderRequest, call: Call) -> sensorsim_pb2.LidarRenderReturn:
        """Scan with a lidar."""
        self._admit(call)
        with call.times.stage("decode"):
            scan = self._scan(request, "")
        return reply_of(self._rendered([scan], call)[0])

    def get_version(self, _: sensorsim_pb2.Empty, __: Call) -> sensorsim_pb2.VersionId:
        """Return the version of this worker, and of the interface."""
        major, minor, patch = _API_VERSION
        api = sensorsim_pb2.VersionId.APIVersion(major=major, minor=minor, patch=patch)
        return sensorsim_pb2.VersionId(version_id=f"lumigrad-{version('lumigrad')}", grpc_api_version=api)

    def get_available_scenes(self, _: sensorsim_pb2.Empty, call: Call) -> sensorsim_pb2.AvailableScenesReturn:
        """Return the names of all scenes."""
        self._admit(call)
        return sensorsim_pb2.AvailableScenesReturn(scene_ids=list(self._catalog.scenes))

    def get_loaded_scenes(self, _: sensorsim_pb2.Empty, call: Call) -> sensorsim_pb2.LoadedScenesReturn:
        """Return the scenes in memory; each serves any number of rollouts."""
        runtime = self._tenants.of(call)
        loaded = [
            sensorsim_pb2.LoadedScene(scene_id=scene.name, loaded_instance_count=1, reusable_instance_count=1)
            for scene in runtime.named
            if _is_loaded(scene, runtime)
        ]
        return sensorsim_pb2.LoadedScenesReturn(scenes=loaded, loaded_instance_capacity=len(self._catalog.scenes))

    def get_available_cameras(
        self, request: sensorsim_pb2.AvailableCamerasRequest, call: Call
    ) -> sensorsim_pb2.AvailableCamerasReturn:
        """Return the cameras of a scene's rig."""
        return sensorsim_pb2.AvailableCamerasReturn(
            available_cameras=self._scene(request.scene_id, call).manifest.cameras
        )

    def get_available_trajectories(
        self, request: sensorsim_pb2.AvailableTrajectoriesRequest, call: Call
    ) -> sensorsim_pb2.AvailableTrajectoriesReturn:
        """Return the recorded motions of a scene's rig."""
        motions = enumerate(self._scene(request.scene_id, call).manifest.trajectories)
        return sensorsim_pb2.AvailableTrajectoriesReturn(
            available_trajectories=[
                sensorsim_pb2.AvailableTrajectory(trajectory_idx=index, trajectory=motion.message())
                for index, motion in motions
            ]
        )

    def get_available_ego_masks(self, _: sensorsim_pb2.Empty, __: Call) -> sensorsim_pb2.AvailableEgoMasksReturn:
        """Return the ego masks of all scenes."""
        ids = [sensorsim_pb2.EgoMaskId(camera_logical_id=name, rig_config_id=rig) for name, rig in self._catalog.masks]
        return sensorsim_pb2.AvailableEgoMasksReturn(
            ego_mask_metadata=[sensorsim_pb2.EgoMaskMetadata(ego_mask_id=each) for each in ids]
        )

    def get_dynamic_objects(
        self, request: sensorsim_pb2.AvailableDynamicObjectsRequest, call: Call
    ) -> sensorsim_pb2.AvailableDynamicObjectsReturn:
        """Return the tracks of a scene."""
        tracks = []
        for track in self._scene(request.scene_id, call).manifest.tracks:
            x, y, z = track.size_m.tolist()
            size = sensorsim_pb2.AABB(size_x=x, size_y=y, size_z=z)
            motion, semantic_class = track.motion.message(), track.semantic_class
            tracks.append(
                sensorsim_pb2.DynamicObjectTrack(
                    id=track.track_id, semantic_class=semantic_class, trajectory=motion, object_size=size
                )
            )
        return sensorsim_pb2.AvailableDynamicObjectsReturn(dynamic_objects=tracks)

    def get_external_asset_objects(
        self, request: sensorsim_pb2.ExternalAssetObjectsRequest, call: Call
    ) -> sensorsim_pb2.ExternalAssetObjectsReturn:
        """Return nothing, since every track is in the scene's own files."""
        self._scene(request.scene_id, call)
        return sensorsim_pb2.ExternalAssetObjectsReturn()

    def get_server_config(self, _: sensorsim_pb2.Empty, call: Call) -> sensorsim_pb2.ServerConfig:
        """Return the version, device and limits."""
        runtime = self._tenants.of(call)
        described, limits = describe(runtime.transfer.device), runtime.limits
        facts = {
            "version": version("lumigrad"),
            "device": described.name,
            "device_name": described.device_name,
            "max_pixels": limits.pixels,
            "max_cameras": limits.cameras,
            "queue_size": limits.queue,
        }
        return sensorsim_pb2.ServerConfig(server_config={name: str(value) for name, value in facts.items()})

    def edit_assets(self, _: sensorsim_pb2.EditAssetsRequest, __: Call) -> sensorsim_pb2.EditAssetsResponse:
        """Edit nothing."""
        message = "this worker does not edit scenes; change their files and start it again"
        return sensorsim_pb2.EditAssetsResponse(success=False, message=message)

    def restore_model_parameters(
        self, request: sensorsim_pb2.RestoreModelParametersRequest, call: Call
    ) -> sensorsim_pb2.Empty:
        """Do nothing: nothing was edited."""
        self._scene(request.scene_id, call)
        return sensorsim_pb2.Empty()

    def shut_down(self, _: sensorsim_pb2.Empty, __: Call) -> sensorsim_pb2.Empty:
        """Refuse: PERMISSION_DENIED."""
        raise ForbiddenError("a client does not end this worker; whoever started it does")

    def _scene(self, scene_id: str, call: Call) -> DriveScene:
        self._admit(call)
        return scene_of(self._catalog, scene_id, "scene_id")

    def _admit(self, call: Call) -> None:
        """Add the scene at the address in a call's metadata, if there is one."""
        metadata = dict(call.metadata)
        if URL in metadata:
            self._catalog.admit(str(metadata[URL]), str(metadata.get(SCENE_ID, "")))

    def _frame(self, request: sensorsim_pb2.RGBRenderRequest, call: Call, field: str) -> DriveFrame:
        limits = self._tenants.of(call).limits
        return frame_of(request, self._catalog, limits, field, self._metrics.unknown_tracks.inc)

    def _scan(self, request: sensorsim_pb2.LidarRenderRequest, field: str) -> DriveFrame:
        return scan_of(request, self._catalog, field, self._metrics.unknown_tracks.inc)

    def _rendered(self, frames: Sequence[DriveFrame], call: Call) -> list[bytes]:
        """Return the pictures of frames and the points of scans; raises the first error of any frame."""
        replies = []
        for outcome in self._renderer.render(frames, self._tenants.of(call), call):
            if isinstance(outcome, Exception):
                raise outcome
            call.record.bytes_sent += len(outcome)
            replies.append(outcome)
        return replies


class FrameService:
    """The methods of `lumigrad.drive.v1.FrameService`."""

    def __init__(self, tenants: Tenants, catalog: Catalog) -> None:
        self._tenants = tenants
        self._catalog = catalog

    def Describe(self, request: sensorsim_pb2.RGBRenderRequest, call: Call) -> frame_pb2.FrameDescription:
        """Describe a frame as a request to RenderService."""
        runtime = self._tenants.of(call)
        frame = frame_of(request, self._catalog, runtime.limits, "", lambda: None)
        stored = named_scene(runtime, call, frame.scene.scene_id)
        spec = frame.spec(frame.origin, stored.content_hash)
        try:
            gaussian_plan(spec, stored.outline.shapes, runtime.limits, "spec")
        except InvalidArgumentError as error:
            raise error_about(frame, error) from None
        return frame_pb2.FrameDescription(spec=spec, origin=frame.origin.tolist(), count=stored.content.count)


def _is_preloaded(scene: NamedScene, runtime: Runtime, until: float) -> bool:
    """Read a scene, trying at least once; False if there was too little memory until a time (monotonic clock).

    Raises ConfigError if the scene cannot be read.
    """
    while True:
        try:
            read_named(runtime, scene, runtime.transfer.allocate)
            return True
        except (BusyError, DeviceMemoryError, MemoryError) as error:
            pause = _RETRY_SECONDS if isinstance(error, MemoryError) else error.retry_seconds
            if pause is None:
                raise _not_read(error, scene) from error
            if time.monotonic() + pause > until:
                what = "started without a scene, which its first call will read"
                logs.event(what, logging.WARNING, scene=scene.name, why=answer_to(error, scene.name).text)
                return False
            logs.event("waiting for memory for a scene", logging.WARNING, scene=scene.name, seconds=pause)
        except Exception as error:
            raise _not_read(error, scene) from error
        time.sleep(pause)


def _not_read(error: Exception, scene: NamedScene) -> ConfigError:
    return ConfigError(f"--sensorsim-preload: {answer_to(error, scene.name).text}")


def _is_loaded(scene: NamedScene, runtime: Runtime) -> bool:
    """Return whether a scene is in memory; does not mark it as used."""
    known = scene.content_hash
    return bool(known) and any(stored.content_hash == known for stored in runtime.scenes.all())


def _message(error: Exception, call: Call) -> str:
    """Return the error message of one item: the code, and the text that a call would get."""
    answer = answer_to(error, call.record.request_id)
    return f"{answer.code.name}: {answer.text}"
