"""Scans of driving simulators: points are where `Client.render` sees the scene with a lidar of the same table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from scipy.spatial import cKDTree

from lumigrad.client import Camera, Client, InvalidArgument, SpinningLidar
from support.driving.fixtures import driving_client_fixture, street_fixture, street_worker_fixture
from support.driving.scenes import FRONT, SCENE, Street, frame, matrix_of, moved, pose
from support.driving.stubs import MESSAGES, TOP_TO_BOTTOM, DrivingClient
from support.workers.worker import WorkerProcess, worker

DEVICES = {"PANDAR128": 0, "AT128": 1}
AT_US = 1_500_000

place, simulator = street_fixture(), driving_client_fixture()
process = street_worker_fixture()


def request_of(device: str, start: Any = None, end: Any = None, **fields: Any) -> Any:
    start = pose((0, 0, 1.9)) if start is None else start
    given = {
        "scene_id": SCENE,
        "lidar_config": {"lidar_type": DEVICES[device]},
        "frame_start_us": AT_US,
        "frame_end_us": AT_US,
        "sensor_pose": MESSAGES["PosePair"](start_pose=start, end_pose=end or start),
    }
    return MESSAGES["LidarFrame"](**{**given, **fields})


def points_of(reply: Any) -> np.ndarray:
    points = np.frombuffer(reply.point_xyzs_buffer, "<f4").reshape(-1, 3)
    assert len(points) == reply.num_points == len(reply.point_intensities_buffer) // 4
    return points


def view(message: Any, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """World to lidar of a lidar-to-local pose, with the local frame moved to `origin`."""
    matrix = matrix_of(message)
    matrix[:3, 3] -= origin
    inverse = np.linalg.inv(matrix)
    return inverse[:3, :3], inverse[:3, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_points_lie_where_a_lidar_of_that_table_sees_the_scene(
    simulator: DrivingClient, process: WorkerProcess, device: str
) -> None:
    start, end = pose((0, 0.2, 1.9), (0, 0, 0.1, np.sqrt(0.99))), pose((0.8, 0.2, 1.9))
    points = points_of(simulator.call("render_lidar", request_of(device, start, end)))
    lidar = SpinningLidar.device(device)
    with Client(process.target) as client:
        # The frame is that of the lidar's start, about which motion is interpolated.
        picture = frame(FRONT, at=(0, 0.2, 1.9), frame_start_us=AT_US, frame_end_us=AT_US)
        scene = client.drive_frame(picture.SerializeToString())
        ends = dict(zip(("end_rotation", "end_translation"), view(end, scene.origin), strict=True))
        scan = Camera.sensor(lidar, *view(start, scene.origin), *lidar.size, shutter="left_to_right", **ends)
        outputs = ("alpha", "expected_hit_distance")
        seen = client.render(scene.scene, scan, transforms=scene.transforms, outputs=outputs)
    azimuths = lidar.column_azimuths[None] + lidar.row_azimuth_offsets[:, None]
    level = np.cos(lidar.row_elevations)[:, None]
    height = np.broadcast_to(np.sin(lidar.row_elevations)[:, None], azimuths.shape)
    rays = np.stack([np.cos(azimuths) * level, np.sin(azimuths) * level, height], -1)
    hit = seen.alpha > 0.5
    assert hit.sum() > 1000
    # Rounding decides where a beam is as likely stopped as not: the worker renders in a frame near the lidar.
    assert abs(len(points) - hit.sum()) <= 1e-3 * hit.sum()
    away, _ = cKDTree(rays[hit] * seen.expected_hit_distance[hit, None]).query(points)
    assert np.quantile(away, 0.999) < 1e-3


def test_a_scan_that_no_reply_may_have_names_the_lidar(place: Street) -> None:
    options = ("--max-payload-mib", "1", "--sensorsim", str(place.folder))
    with worker("--device", "cpu", *options) as small, DrivingClient(small.target) as simulator:
        with pytest.raises(grpc.RpcError) as refused:
            simulator.call("render_lidar", request_of("PANDAR128"))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("lidar_config: expected at most 1048576 bytes of reply")


def test_scans_of_a_car_that_a_request_moves_follow_it(simulator: DrivingClient) -> None:
    def near(where: float) -> int:
        objects = [moved("car", pose((0, where, 1.6)))]
        points = points_of(simulator.call("render_lidar", request_of("PANDAR128", dynamic_objects=objects)))
        return int((np.abs(points - [0, where, -0.3]) < [2.5, 1.5, 1.5]).all(axis=1).sum())

    # Nothing but the car is behind x = 3.
    assert near(-6.0) > 100
    assert near(6.0) > 100


def test_pictures_and_scans_come_together(simulator: DrivingClient) -> None:
    requests = {"rgb_requests": [frame(FRONT)], "lidar_requests": [request_of("AT128"), request_of("PANDAR128")]}
    reply = simulator.call("render_aggregated", **requests)
    assert len(reply.rgb_returns) == 1
    single = [points_of(simulator.call("render_lidar", request_of(device))) for device in ("AT128", "PANDAR128")]
    for scan, alone in zip(reply.lidar_returns, single, strict=True):
        np.testing.assert_array_equal(points_of(scan), alone)


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"lidar_config": {"lidar_type": 7}}, grpc.StatusCode.INVALID_ARGUMENT, "lidar_config.lidar_type"),
        ({"scene_id": "elsewhere"}, grpc.StatusCode.NOT_FOUND, "scene_id"),
        ({"frame_end_us": AT_US - 1}, grpc.StatusCode.INVALID_ARGUMENT, "frame_end_us"),
        ({"frame_start_us": 1, "frame_end_us": 1}, grpc.StatusCode.OUT_OF_RANGE, "frame_start_us"),
        ({"sensor_pose": {}}, grpc.StatusCode.INVALID_ARGUMENT, "sensor_pose.start_pose.quat"),
    ],
)
def test_what_is_wrong_with_a_scan_is_named(
    simulator: DrivingClient, changes: dict[str, Any], code: grpc.StatusCode, field: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        simulator.call("render_lidar", request_of("AT128", **changes))
    assert (refused.value.code(), refused.value.details().split(":")[0]) == (code, field)
    with pytest.raises(grpc.RpcError) as refused:
        simulator.call("render_aggregated", lidar_requests=[request_of("AT128", **changes)])
    assert refused.value.details().startswith(f"lidar_requests[0].{field}: ")


def test_tables_have_the_fields_of_view_of_the_manuals() -> None:
    pandar, at = SpinningLidar.device("PANDAR128"), SpinningLidar.device("AT128")
    for lidar, top, bottom, columns in ((pandar, 14.436, -25.016, 1800), (at, 12.93, -12.47, 1200)):
        assert lidar.size == (columns, 128)
        degrees = np.degrees(lidar.row_elevations)
        np.testing.assert_allclose([degrees[0], degrees[-1]], [top, bottom], atol=1e-9)
        assert (np.diff(degrees) < 0).all()
    np.testing.assert_allclose(-np.diff(np.degrees(pandar.column_azimuths)), 0.2)
    np.testing.assert_allclose(-np.diff(np.degrees(at.column_azimuths)), 0.1)
    np.testing.assert_allclose(np.degrees(np.abs(pandar.row_azimuth_offsets).max()), 7.811)
    tables = "row_elevations float64 [128], column_azimuths float64 [1200], row_azimuth_offsets float64 [128]"
    assert repr(at) == f"SpinningLidar({tables}, direction 'clockwise')"
    with pytest.raises(InvalidArgument, match=r'^name: expected one of "PANDAR128", "AT128", got '):
        SpinningLidar.device("VLP16")


def _numbers(message: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, message and field of every float in a message; a repeated field of floats counts once."""
    for field, value in message.ListFields():
        if field.message_type is None:
            if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
                yield f"{path}{field.name}", message, field
            continue
        for index, each in enumerate(value if field.is_repeated else [value]):
            yield from _numbers(each, f"{path}{field.name}{f'[{index}]' if field.is_repeated else ''}.")


def requests_with_numbers() -> dict[str, Any]:
    """A request whose numbers all differ from 0, for each way in which some of them are not used."""
    turned = pose((1.5, 0.1, 1.4), (0.5, 0.5, 0.5, 0.5))
    objects = [moved(name, turned, turned) for name in ("car", "unknown")]
    still = frame(FRONT, at=turned, end=turned, dynamic_objects=objects, image_quality=0.5)
    rolling = frame(FRONT, at=turned, end=turned, dynamic_objects=objects)
    rolling.camera_intrinsics.shutter_type = TOP_TO_BOTTOM
    return {"global": still, "rolling": rolling, "scan": request_of("AT128", turned, turned, dynamic_objects=objects)}


@pytest.mark.parametrize("kind", ["global", "rolling", "scan"])
def test_a_number_that_is_none_is_refused_even_if_it_is_not_used(simulator: DrivingClient, kind: str) -> None:
    method = "render_lidar" if kind == "scan" else "render_rgb"
    accepted = []
    for path, _, _ in list(_numbers(requests_with_numbers()[kind])):
        request = requests_with_numbers()[kind]
        _, message, field = next(found for found in _numbers(request) if found[0] == path)
        if field.is_repeated:
            getattr(message, field.name)[0] = float("nan")
        else:
            setattr(message, field.name, float("nan"))
        try:
            simulator.call(method, request)
            accepted.append(path)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()
            assert error.details().split(":")[0].split("[")[0] in path or path.startswith(
                error.details().split(":")[0].rsplit("[", 1)[0]
            ), error.details()
    assert not accepted
