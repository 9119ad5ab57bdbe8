"""The bound of each field of a request that repeats or has a size; `request_check.py` holds requests against them."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor import FieldDescriptor

# Names, hashes and tokens.
_NAME = 256
# Outputs of a call, and whatever there is one of for each of them.
_OUTPUTS = 64
# Numbers of a matrix or a vector and sizes of a tensor, whose exact counts are checked where they are read. They are as
# many as leave a message of 256 bytes, as most cameras and obstacles are, no room for anything that is over a bound.
_MATRIX = 64
_DIMENSIONS = 256
_VIEWS = 1 << 16
# Numbers that are compared or kept and never counted to.
_NUMBER = (1 << 64) - 1
# Sizes that count in a product or within something else, which is checked where that is known: the pixels of all
# cameras, the obstacles of a world, the Gaussians of a scene.
_WITH_OTHERS = (1 << 64) - 1

# Of repeated fields and maps, how many; of strings and bytes, how many bytes; of integers, the largest. Texts name a
# limit of the worker.
BOUNDS: Mapping[str, int | str] = {
    "BackwardRequest.data": "payload_bytes",
    "BackwardRequest.payload_bytes": "payload_bytes",
    "BackwardSpec.context_id": _NAME,
    "BackwardSpec.output_gradients": _OUTPUTS,
    "BackwardSpec.wanted": _OUTPUTS,
    "Camera.height": _WITH_OTHERS,
    "Camera.width": _WITH_OTHERS,
    "Cuboid.size": _MATRIX,
    "DefaultStrategy.every": _NUMBER,
    "DefaultStrategy.pause_after_reset": _NUMBER,
    "DefaultStrategy.reset_every": _NUMBER,
    "DefaultStrategy.screen_stop": _NUMBER,
    "DefaultStrategy.start": _NUMBER,
    "DefaultStrategy.stop": _NUMBER,
    "DeleteRequest.scene_id": _NAME,
    "DensityControl.max_count": _WITH_OTHERS,
    "DistanceBackwardRequest.data": "payload_bytes",
    "DistanceBackwardRequest.payload_bytes": "payload_bytes",
    "DistanceBackwardSpec.context_id": _NAME,
    "DistanceBackwardSpec.output_gradients": _OUTPUTS,
    "DistanceBackwardSpec.wanted": _OUTPUTS,
    "DistanceSettings.samples": _WITH_OTHERS,
    "DistanceSpec.outputs": _OUTPUTS,
    "EncodedImages.lengths": "cameras",
    "FieldRequest.environment": _WITH_OTHERS,
    "FieldRequest.size": _MATRIX,
    "GaussianSettings.background": "channels",
    "GaussianSettings.sh_degree": _WITH_OTHERS,
    "GaussianSettings.transforms": "obstacles",
    "GetRequest.content_hash": _NAME,
    "GetRequest.scene_id": _NAME,
    "InriaCamera.full_projection": _MATRIX,
    "InriaCamera.position": _MATRIX,
    "InriaCamera.view_matrix": _MATRIX,
    "McmcStrategy.cap": _WITH_OTHERS,
    "McmcStrategy.every": _NUMBER,
    "McmcStrategy.start": _NUMBER,
    "McmcStrategy.stop": _NUMBER,
    "NamedTensor.name": _NAME,
    "Obstacle.environment": _WITH_OTHERS,
    "Obstacle.mesh_id": _NAME,
    "Obstacle.mesh_version": _NUMBER,
    "Obstacle.name": _NAME,
    "ObstacleUpdate.name": _NAME,
    "OpenCVCamera.distortion": _MATRIX,
    "OpenCVCamera.rotation": _MATRIX,
    "OpenCVCamera.translation": _MATRIX,
    "Optimizer.rates": _OUTPUTS,
    "OutputFormat.name": _NAME,
    "OutputFormat.quality": _NUMBER,
    "Peers.group": _NAME,
    "Peers.rank": _NUMBER,
    "Peers.rendezvous": _NAME,
    "Peers.size": _WITH_OTHERS,
    "Pose.values": _MATRIX,
    "PulsarCamera.parameters": _MATRIX,
    "PutRequest.content_hash": _NAME,
    "PutRequest.data": "payload_bytes",
    "PutRequest.payload_bytes": "payload_bytes",
    "QueryRequest.data": "payload_bytes",
    "QueryRequest.payload_bytes": "payload_bytes",
    "Rate.steps": _NUMBER,
    "RatesEntry.key": _NAME,
    "RegionSpan.length": _WITH_OTHERS,
    "RegionSpan.offset": _WITH_OTHERS,
    "RegionSpan.region": _NUMBER,
    "ReleaseRequest.context_id": _NAME,
    "RenderRequest.data": "payload_bytes",
    "RenderRequest.formats": _OUTPUTS,
    "RenderRequest.payload_bytes": "payload_bytes",
    "RenderSpec.cameras": "cameras",
    "RenderSpec.outputs": _OUTPUTS,
    "SceneRef.scene_id": _NAME,
    "SceneRef.version": _NUMBER,
    "SliceTransform.begin": _WITH_OTHERS,
    "SliceTransform.end": _WITH_OTHERS,
    "SliceTransform.matrix": _MATRIX,
    "Span.length": _WITH_OTHERS,
    "Span.offset": _WITH_OTHERS,
    "SphereSettings.background": "channels",
    "SphereSettings.max_hits": _WITH_OTHERS,
    "SphereSettings.n_track": _WITH_OTHERS,
    "Step.batch": _WITH_OTHERS,
    "Step.number": _NUMBER,
    "Step.outputs": _OUTPUTS,
    "Step.views": "cameras",
    "StepGradients.number": _NUMBER,
    "StepGradients.output_gradients": _OUTPUTS,
    "Tensor.inline": "payload_bytes",
    "Tensor.shape": _DIMENSIONS,
    "TrainRequest.data": "payload_bytes",
    "TrainRequest.payload_bytes": "payload_bytes",
    "TrainingSpec.seed": _NUMBER,
    "TrainingSpec.sh_degree_every": _NUMBER,
    "TrainingSpec.snapshot_every": _NUMBER,
    "TrainingStart.at_step": _NUMBER,
    "TrainingStart.holder": _NUMBER,
    "TrainingStart.lease": _NAME,
    "TrainingStart.start_id": _NAME,
    "TrainingStart.training_id": _NAME,
    "TrainingStart.undelivered": _NUMBER,
    "TrainingStart.views": _VIEWS,
    "TrainingView.target": _NAME,
    "UpdateRequest.data": "payload_bytes",
    "UpdateRequest.expected_version": _NUMBER,
    "UpdateRequest.obstacles": "obstacles",
    "UpdateRequest.payload_bytes": "payload_bytes",
    "UpdateRequest.scene_id": _NAME,
    "UpdateRequest.tensors": _OUTPUTS,
    "UpdateRequest.update_id": _NAME,
    "World.environments": _WITH_OTHERS,
    "World.obstacles": "obstacles",
}

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


def needs_bound(field: FieldDescriptor) -> bool:
    """Whether a field repeats or has a size, and so must stand in `BOUNDS`."""
    return bool(field.is_repeated) or field.cpp_type in _INTEGERS | {FieldDescriptor.CPPTYPE_STRING}
