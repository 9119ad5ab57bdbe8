"""Numbers that are sizes are refused when they are huge; other numbers may have any value, and cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lumigrad.protos.service import Method
from lumigrad.v1 import scene_pb2, training_pb2
from support.calls.raw_calls import RawClient
from support.calls.raw_messages import CALLERS_FAULT, status_of
from support.calls.raw_training import start_of
from support.calls.valid_requests import FRAME_OF, METHODS, request_kinds, valid_distance_requests, valid_requests
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess

Code = grpc.StatusCode
MOST = {
    FieldDescriptor.CPPTYPE_INT32: (1 << 31) - 1,
    FieldDescriptor.CPPTYPE_INT64: (1 << 63) - 1,
    FieldDescriptor.CPPTYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.CPPTYPE_UINT64: (1 << 64) - 1,
}
# Numbers that are allocated, iterated over, or used as an index.
SIZES = {
    *("Camera.height", "Camera.width", "DistanceSettings.samples", "FieldRequest.environment"),
    *("GaussianSettings.sh_degree", "GaussianSettings.tile_size", "McmcStrategy.cap", "Obstacle.environment"),
    "GaussianSettings.max_gaussians",
    *(
        "SliceTransform.begin",
        "SliceTransform.end",
        "Span.length",
        "Span.offset",
        "SphereSettings.n_track",
        "Step.batch",
        "Step.count",
    ),
    *("World.environments", "DistanceBackwardRequest.payload_bytes", "TrainRequest.payload_bytes"),
    *(f"{name}Request.payload_bytes" for name in ("Put", "Update", "Render", "RenderBatch", "Backward", "Query")),
}
# Numbers of steps, versions, seeds, holders and calibrations, and counts beyond which nothing is added or reserved.
NO_SIZES = {
    *("DensityControl.max_count", "SphereSettings.max_hits"),
    *(
        f"DefaultStrategy.{name}"
        for name in ("every", "pause_after_reset", "reset_every", "screen_stop", "start", "stop")
    ),
    *(
        "McmcStrategy.every",
        "McmcStrategy.start",
        "McmcStrategy.stop",
        "Rate.steps",
        "Step.number",
        "StepGradients.number",
    ),
    *("Loss.surface_start", "TrainingSpec.seed", "TrainingSpec.sh_degree_every", "TrainingSpec.snapshot_every"),
    *("TrainingStart.at_step", "TrainingStart.holder", "TrainingStart.undelivered", "TrainingView.calibration"),
    *("ListRequest.page_size", "TrainingSpec.pool_bytes"),
    *("Obstacle.mesh_version", "SceneRef.version", "UpdateRequest.expected_version"),
    *("FrameRequest.number", "FrameRequest.timeout_ms"),
}
# Numbers that other tests cover: of peers, which are always refused; of shared memory (tests of lanes), of JPEG (tests
# of formats), and of scenes with levels (their tests).
ELSEWHERE = {
    *("Peers.rank", "Peers.size", "RegionSpan.length", "RegionSpan.offset", "RegionSpan.region"),
    "OutputFormat.quality",
    "GaussianLevels.sh_degree",
}
# Fields of driving simulators, which tests/faults/test_sensorsim.py covers.
DRIVING = {
    *("CameraSpec.resolution_h", "CameraSpec.resolution_w", "CameraSpec.trajectory_idx"),
    *("LidarRenderRequest.frame_end_us", "LidarRenderRequest.frame_start_us"),
    *(f"RGBRenderRequest.{name}" for name in ("frame_end_us", "frame_start_us", "resolution_h", "resolution_w")),
}


def training(client: RawClient, density: dict[str, Any]) -> tuple[Method, list[bytes]]:
    """A training of one step, with a new scene, since a scene has one training."""
    start = start_of(client, density={**density, "extent": 1})
    requests = training_pb2.TrainRequest(start=start), training_pb2.TrainRequest(step={"batch": 1})
    return METHODS["TrainingService/Train"], [request.SerializeToString() for request in requests]


def numbers(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """The integers of a message and its nested messages, unset ones included."""
    for field in message.DESCRIPTOR.fields:
        value: Any = getattr(message, field.name)
        if field.message_type is None:
            if not field.is_repeated and field.cpp_type in MOST:
                yield message, field
        elif field.message_type.GetOptions().map_entry:
            for one in value.values():
                yield from numbers(one)
        elif field.is_repeated:
            for one in value[:1]:
                yield from numbers(one)
        elif message.HasField(field.name):
            yield from numbers(value)


def name_of(field: FieldDescriptor) -> str:
    return f"{field.containing_type.name}.{field.name}"


def test_every_number_of_a_request_is_a_size_or_not() -> None:
    found = {
        name_of(field)
        for kind in request_kinds().values()
        for field in kind.fields
        if not field.is_repeated and field.cpp_type in MOST
    }
    assert found == SIZES | NO_SIZES | ELSEWHERE | DRIVING
    assert not SIZES & NO_SIZES


def calls(client: RawClient) -> Iterator[Callable[[], tuple[Method, list[bytes]]]]:
    """Functions that return calls that succeed: a method, and its messages."""
    for method, header, payload in (*valid_requests(client), *valid_distance_requests(client)):
        frames = [FRAME_OF[method.path](data=payload).SerializeToString()] if payload else []
        yield lambda call=(method, [header, *frames]): call
    listed = scene_pb2.ListRequest(page_size=1).SerializeToString()
    yield lambda: (METHODS["SceneService/List"], [listed])
    for density in ({"adaptive": {"start": 2}}, {"mcmc": {"cap": 40}}):
        yield lambda density=density: training(client, density)


def test_huge_sizes_are_refused_and_other_numbers_may_be_anything(process: WorkerProcess, client: RawClient) -> None:
    tried: set[tuple[str, str]] = set()
    with unharmed_after(process, client):
        for make in calls(client):
            method, requests = make()
            assert status_of(client.channel, method, requests) == Code.OK
            for index, request in enumerate(requests):
                message = GetMessageClass(method.request).FromString(request)
                for place, (_, field) in enumerate(numbers(message)):
                    name = name_of(field)
                    if (method.path, name) not in tried:
                        tried.add((method.path, name))
                        code = status_of(client.channel, method, with_huge(*make(), index, place))
                        assert code in ((Code.INVALID_ARGUMENT,) if name in SIZES else CALLERS_FAULT), name
    assert {name for _, name in tried} == (SIZES | NO_SIZES) - {"StepGradients.number"}


def with_huge(method: Method, requests: list[bytes], index: int, place: int) -> list[bytes]:
    """The messages, with one integer set to its largest value."""
    message = GetMessageClass(method.request).FromString(requests[index])
    holder, field = list(numbers(message))[place]
    setattr(holder, field.name, MOST[field.cpp_type])
    return [*requests[:index], message.SerializeToString(), *requests[index + 1 :]]
