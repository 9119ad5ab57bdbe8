"""Queries that are refused before anything is allocated for them, and queries whose callers have gone."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import distance_pb2, tensor_pb2
from support.calls.distance_calls import DistanceClient, cuboid, mesh_arrays, mesh_obstacle, points, pose_of, world_of
from support.calls.raw_calls import Array, RawClient, assert_refused, failure, violation
from support.meshes.shapes import torus
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess, worker_fixture

WORLD = world_of(cuboid(1, 1, 1), cuboid(2, 1, 1))
ORIGIN = points((0, 0, 0))
OPTION = " (the worker's --max-payload-mib)"
process = worker_fixture("--max-rows", "20000", "--max-payload-mib", "1")


def spheres(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


BAD: list[tuple[Array, dict[str, Any], str, str]] = [
    (spheres(1, 1, 4), {}, "spheres.shape", "expected [B, H, S, 4], got [1, 1, 4]"),
    (spheres(1, 1, 1, 4, dtype=np.float16), {}, "spheres.dtype", "expected DTYPE_FLOAT32, got DTYPE_FLOAT16"),
    (spheres(1, 1, 20_001, 4), {}, "spheres", "expected at most 20000 spheres in all (the worker's --max-rows), got "),
    (spheres(1, 1, 1, 4) * np.nan, {}, "spheres", "expected finite values"),
    (ORIGIN, {"environments": np.zeros(2, np.int32)}, "environments.shape", "expected [1], got [2]"),
    (ORIGIN, {"environments": np.zeros(1, np.int64)}, "environments.dtype", "expected DTYPE_INT32, got DTYPE_INT64"),
    (ORIGIN, {"environments": np.ones(1, np.int32)}, "environments", "expected 0 to 0, the environments of the world"),
    (ORIGIN, {"outputs": ["depth"]}, "outputs", "expected one of cost, gradient, exhausted, distance"),
    (ORIGIN, {"outputs": ["instance"]}, "outputs", "expected one of cost, gradient, exhausted, distance"),
    (ORIGIN, {"semantics": 99}, "settings.semantics", "expected a known value, got 99"),
    (ORIGIN, {"reduction": 99}, "settings.reduction", "expected a known value, got 99"),
    (ORIGIN, {"activation_distance": -1}, "settings.activation_distance", "expected a finite value >= 0, metres"),
    (ORIGIN, {"max_distance": 0}, "settings.max_distance", "expected None or a finite value above 0"),
    (ORIGIN, {"samples": 3}, "settings.samples", "expected a power of two from 1 to 256"),
    (ORIGIN, {"speed_metric": True}, "settings.time_step", "expected a value, since speed_metric is on"),
    (ORIGIN, {"weight": np.inf}, "settings.weight", "expected a finite number"),
]


@pytest.mark.parametrize(("rows", "fields", "name", "text"), BAD, ids=[f"{case[2]} {case[3][9:40]}" for case in BAD])
def test_a_bad_query_is_refused_whichever_way_it_comes(
    distances: DistanceClient, rows: Array, fields: dict[str, Any], name: str, text: str
) -> None:
    assert_refused(lambda: distances.query(WORLD, rows, **fields), f"spec.{name}", text)
    payload = PayloadWriter()
    spec = distances.spec(WORLD, rows, payload, **fields)
    gradient = {"distance": np.ones(rows.shape[:3], np.float32)}
    error = failure(lambda: distances.backward(gradient, spec=spec, payload=payload))
    assert violation(error)[0] == f"spec.query.{name}"


def test_a_query_without_spheres_or_source_is_refused(distances: DistanceClient) -> None:
    def ask(spec: distance_pb2.DistanceSpec) -> tuple[str, str]:
        frames = iter([Frame(distance_pb2.QueryRequest(spec=spec))])
        return violation(failure(lambda: list(distances.stub.Query(frames, timeout=60))))

    assert ask(distance_pb2.DistanceSpec(scene=WORLD)) == ("spec.spheres", "expected a tensor, got none")
    assert ask(distance_pb2.DistanceSpec()) == ("spec", "expected scene_ref or scene, got neither")
    empty = distance_pb2.DistanceSpec(scene={})
    assert ask(empty) == ("spec.scene", "expected mesh or world, got none")


def test_a_reply_above_the_limit_is_refused_by_the_header(distances: DistanceClient) -> None:
    most = distances.query(WORLD, spheres(1, 20, 1000, 4), outputs=["normal", "closest", "face"])
    assert most.header.payload_bytes < 1 << 20
    header = distance_pb2.DistanceSpec(
        scene=WORLD,
        spheres=tensor_pb2.Tensor(dtype=1, shape=[1, 20, 1000, 4], payload={"length": 320_000}),
        outputs=["normal", "closest", "distance", "face"],
        per_obstacle=True,
    )
    # The payload is never sent.
    frames = [Frame(distance_pb2.QueryRequest(spec=header, payload_bytes=320_000))]
    error = failure(lambda: list(distances.stub.Query(iter(frames), timeout=60)))
    assert violation(error) == (
        "spec.outputs",
        f"expected at most {1 << 20} bytes of reply{OPTION}, got {32 * 2 * 20_000}",
    )


def test_a_field_above_the_limit_of_a_reply_is_refused(distances: DistanceClient) -> None:
    error = failure(lambda: distances.field(scene=WORLD, size=[1, 1, 1], voxel_size=0.01))
    assert violation(error) == (
        "voxel_size",
        f"expected voxels of at most {1 << 20} bytes of reply{OPTION}, got 4000000",
    )


def test_room_for_payloads_is_given_back(distances: DistanceClient, process: WorkerProcess) -> None:
    distances.query(WORLD, spheres(1, 20, 1000, 4), outputs=["normal"])
    failure(lambda: distances.query(WORLD, spheres(1, 1, 1, 4) * np.nan, outputs=["normal"]))
    # A call ends when its last byte has left, a moment after the caller has it.
    wait_for(process, "lumigrad_transit_bytes", 0)


def test_a_query_that_nobody_waits_for_ends(process: WorkerProcess) -> None:
    raw = RawClient(process.target)
    distances = DistanceClient(raw)
    mesh_id = raw.put(mesh_arrays(torus(200, 100))).scene.scene_id
    many = world_of(*[mesh_obstacle(mesh_id, pose=pose_of(0.001 * index, 0, 0)) for index in range(2000)])
    world_id = distances.put(many).scene.scene_id
    rows = np.random.default_rng(0).uniform(-1, 1, (20, 1, 1000, 4)).astype(np.float32)

    def ended() -> float:
        # The call is cancelled if the deadline passes while its request still arrives.
        labels = [{"method": "DistanceService.Query", "code": code} for code in ("DEADLINE_EXCEEDED", "CANCELLED")]
        return sum(process.metric("lumigrad_calls_total", **each) for each in labels)

    def is_ended(timeout: float) -> bool:
        before = ended()
        error = failure(lambda: distances.query(world_id, np.abs(rows), outputs=["cost"], timeout=timeout))
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert distances.query(WORLD, ORIGIN).arrays["distance"].item() == pytest.approx(-0.5)
        wait_for(process, "lumigrad_calls_in_progress", 0)
        return ended() == before + 1

    # A busy worker does not begin a call whose deadline has passed.
    assert any(map(is_ended, (0.3, 1.0, 2.0)))
    raw.close()
