"""Messages and calls of a driving simulator's client, built from field numbers, without the worker's messages."""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

NAMES = ("nre.grpc.protos.sensorsim.SensorsimService", "nurec.grpc.protos.sensorsim.SensorsimService")
# Numbers of enums.
GLOBAL, TOP_TO_BOTTOM, LEFT_TO_RIGHT, BOTTOM_TO_TOP, RIGHT_TO_LEFT = 5, 1, 2, 3, 4
PNG, JPEG, JPEG2000, PLANAR, AVC = 1, 2, 3, 4, 5
BACKWARD, FORWARD = 1, 2

_MESSAGES = """
Empty:
Vec3: float x 1, float y 2, float z 3
Quat: float w 1, float x 2, float y 3, float z 4
Pose: Vec3 vec 1, Quat quat 2
PoseAtTime: Pose pose 1, fixed64 timestamp_us 2
Trajectory: PoseAtTime* poses 1
AABB: float size_x 1, float size_y 2, float size_z 3
ApiVersion: uint32 major 1, uint32 minor 2, uint32 patch 3
VersionId: string version_id 1, string git_hash 2, ApiVersion grpc_api_version 3
Scenes: string* scene_ids 1
SceneRequest: string scene_id 1
LoadedScene: string scene_id 1, uint64 loaded_instance_count 2, uint64 reusable_instance_count 3
LoadedScenes: LoadedScene* scenes 1, uint64 loaded_instance_capacity 2
EgoMaskId: string camera_logical_id 1, string rig_config_id 2
EgoMask: EgoMaskId ego_mask_id 1
EgoMasks: EgoMask* ego_mask_metadata 1
LinearCde: double linear_c 1, double linear_d 2, double linear_e 3
Ftheta: double principal_point_x 1, double principal_point_y 2, int32 reference_poly 3,
  double* pixeldist_to_angle_poly 4, double* angle_to_pixeldist_poly 5, double max_angle 6, LinearCde linear_cde 7
Pinhole: double principal_point_x 1, double principal_point_y 2, double focal_length_x 3, double focal_length_y 4,
  double* radial_coeffs 5, double* tangential_coeffs 6, double* thin_prism_coeffs 7
Fisheye: double principal_point_x 1, double principal_point_y 2, double focal_length_x 3, double focal_length_y 4,
  double* radial_coeffs 5, double max_angle 6
Windshield: int32 reference_poly 1, double* horizontal_poly 2, double* vertical_poly 3,
  double* horizontal_poly_inverse 4, double* vertical_poly_inverse 5
CameraSpec: Ftheta ftheta_param 2, Pinhole opencv_pinhole_param 3, Fisheye opencv_fisheye_param 4, string logical_id 5,
  uint32 resolution_h 7, uint32 resolution_w 8, int32 shutter_type 9, Windshield bivariate_windshield_model_param 10
PosePair: Pose start_pose 1, Pose end_pose 2
DynamicObject: string track_id 1, PosePair pose_pair 2
Frame: string scene_id 1, uint32 resolution_h 2, uint32 resolution_w 3, CameraSpec camera_intrinsics 4,
  fixed64 frame_start_us 5, fixed64 frame_end_us 6, PosePair sensor_pose 7, DynamicObject* dynamic_objects 8,
  int32 image_format 9, float image_quality 10, bool insert_ego_mask 11, EgoMaskId ego_mask_id 12
Picture: bytes image_bytes 1
BatchItem: string camera_name 1, Frame request 2
Batch: BatchItem* items 1
BatchReplyItem: string camera_name 1, Picture result 2, bool success 3, string error_message 4
BatchReply: BatchReplyItem* items 1
LidarSpec: int32 lidar_type 2
LidarFrame: string scene_id 1, LidarSpec lidar_config 2, fixed64 frame_start_us 3, fixed64 frame_end_us 4,
  PosePair sensor_pose 5, DynamicObject* dynamic_objects 6
LidarPoints: float* point_xyzs 1, float* point_intensities 2, uint32 num_points 3, bytes point_xyzs_buffer 4,
  bytes point_intensities_buffer 5
Aggregate: Frame* rgb_requests 1, LidarFrame* lidar_requests 2
AggregateReply: Picture* rgb_returns 1, LidarPoints* lidar_returns 2, bytes driver_data 3
Camera: CameraSpec intrinsics 1, Pose rig_to_camera 2, string logical_id 3
Cameras: Camera* available_cameras 1
RigMotion: uint32 trajectory_idx 1, Trajectory trajectory 2
RigMotions: RigMotion* available_trajectories 1
Track: string id 1, string semantic_class 2, Trajectory trajectory 3, AABB object_size 4, string asset_id 5
Tracks: Track* dynamic_objects 1
Assets: string* track_ids 1
ConfigEntry: string key 1, string value 2
Config: ConfigEntry* server_config 1
Edited: bool success 1, string message 2
"""
METHODS = {
    "render_rgb": ("Frame", "Picture"),
    "batch_render_rgb": ("Batch", "BatchReply"),
    "render_aggregated": ("Aggregate", "AggregateReply"),
    "render_lidar": ("LidarFrame", "LidarPoints"),
    "get_version": ("Empty", "VersionId"),
    "get_available_scenes": ("Empty", "Scenes"),
    "get_loaded_scenes": ("Empty", "LoadedScenes"),
    "get_available_cameras": ("SceneRequest", "Cameras"),
    "get_available_trajectories": ("SceneRequest", "RigMotions"),
    "get_available_ego_masks": ("Empty", "EgoMasks"),
    "get_dynamic_objects": ("SceneRequest", "Tracks"),
    "get_external_asset_objects": ("SceneRequest", "Assets"),
    "get_server_config": ("Empty", "Config"),
    "edit_assets": ("SceneRequest", "Edited"),
    "restore_model_parameters": ("SceneRequest", "Empty"),
    "shut_down": ("Empty", "Empty"),
}
# Simulators ask for this; pictures may be larger than gRPC's default of 4 MiB.
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


def _described() -> dict[str, Any]:
    file = FileDescriptorProto(name="foreign.proto", package="foreign", syntax="proto3")
    lines = re.sub(r",\n +", ", ", _MESSAGES.strip()).splitlines()
    for line in lines:
        name, _, fields = line.partition(":")
        message: DescriptorProto = file.message_type.add(name=name)
        for field in filter(None, fields.strip().split(", ")):
            kind, label, number = field.split()
            scalar = f"TYPE_{kind.rstrip('*').upper()}"
            added = message.field.add(name=label, number=int(number))
            added.label = added.LABEL_REPEATED if kind.endswith("*") else added.LABEL_OPTIONAL
            if scalar in dict(FieldDescriptorProto.Type.items()):
                added.type = FieldDescriptorProto.Type.Value(scalar)
            else:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".foreign.{kind.rstrip('*')}"
    pool = DescriptorPool()
    pool.Add(file)
    return {
        each.name: GetMessageClass(pool.FindMessageTypeByName(f"foreign.{each.name}")) for each in file.message_type
    }


# Classes of the messages by their names above.
MESSAGES = _described()


class DrivingClient:
    """Calls a worker as AlpaSim does: no metadata, plain text, a new channel for each rollout."""

    def __init__(self, target: str, service: str = NAMES[0]) -> None:
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._service = service

    def __enter__(self) -> DrivingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(
        self, method: str, request: Any = None, *, timeout: float = 60.0, metadata: Any = None, **fields: Any
    ) -> Any:
        """Call a method with a request, or one of these fields."""
        takes, gives = METHODS[method]
        message = MESSAGES[takes](**fields) if request is None else request
        return self._channel.unary_unary(
            f"/{self._service}/{method}", lambda it: it.SerializeToString(), MESSAGES[gives].FromString
        )(message, timeout=timeout, wait_for_ready=True, metadata=metadata)
