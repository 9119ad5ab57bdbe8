"""Repeated queries are answered as first ones: bit for bit, errors included, however their requests are encoded.

A worker may keep what queries of one kind have in common, and read only the spheres of later ones.

Each test runs for LUMIGRAD_FUZZ_SECONDS, by default a fifth of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from lumigrad.protos.service import MESSAGE_BYTES
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, world_pb2
from support.backends import emulation
from support.calls.answers import ENCODINGS, UNKNOWN, Answer, Asker
from support.calls.distance_calls import DistanceClient, cuboid, pose_of, world_of
from support.calls.distance_worlds import OPEN, TORUS, stored, ways
from support.calls.raw_calls import RawClient
from support.calls.repeats import BATCH, assert_same, damaged, repeat
from support.workers.slow_render import wait_for, wait_until
from support.workers.worker import WorkerProcess, worker

METHOD = "DistanceService/Query"
SEEDS = st.integers(0, 1 << 32)
OUTPUTS = ("cost", "gradient", "exhausted", "distance", "normal", "closest", "face", "obstacle", "beyond")
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"activation_distance": 0.125, "max_distance": 0.25},
    {"activation_distance": 0.125, "sweep": True, "weight": 0.3},
    {"activation_distance": 0.125, "sweep": True, "speed_metric": True, "time_step": 0.25},
    {"activation_distance": 0.125, "reduction": 2, "weight": -2.0},
    {"activation_distance": 0.125, "semantics": 2, "sweep": True, "samples": 4},
    {"semantics": 3},
    {"activation_distance": -1.0},
)
ODD = (float("nan"), float("inf"), -float("inf"), 3e38, -0.0, 1e-45)


@pytest.fixture(scope="module", params=["cpu", "emulation"])
def process(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    is_emulated = request.param == "emulation"
    if is_emulated:
        emulation.load("_emulation")
    with worker("--device", "cpu", emulated=is_emulated) as started:
        yield started


@pytest.fixture(scope="module")
def scenes(client: RawClient) -> list[str]:
    distances = DistanceClient(client)
    payload = PayloadWriter()
    boxes = world_of(cuboid(0.5, 0.25, 0.75), cuboid(1, 1, 0.1, pose=pose_of(0, 0.2, -1)))
    mesh = client.put(TORUS).scene.scene_id
    return [stored(client, distances), mesh, distances.put(boxes, payload).scene.scene_id]


@dataclass(frozen=True)
class Kind:
    """Queries of one scene that differ in their spheres."""

    scene_id: str
    settings: dict[str, Any]
    outputs: tuple[str, ...]
    sizes: tuple[int, int, int]
    has_environments: bool
    options: dict[str, Any]

    def at(self, seed: int, odd: float | None = None) -> distance_pb2.QueryRequest:
        """Returns a query of random spheres, one number of which may be odd."""
        random, payload = np.random.default_rng(seed), PayloadWriter()
        spheres = ways(*self.sizes, seed=seed)
        if odd is not None and spheres.size:
            spheres.reshape(-1)[random.integers(spheres.size)] = odd
        spec = distance_pb2.DistanceSpec(
            scene_ref={"scene_id": self.scene_id}, outputs=self.outputs, spheres=payload.add(spheres), **self.options
        )
        spec.settings.CopyFrom(distance_pb2.DistanceSettings(**self.settings))
        if self.has_environments:
            # Only the first scene has a second environment.
            spec.environments.CopyFrom(payload.add(random.integers(0, 2, self.sizes[0]).astype(np.int32)))
        data = b"".join(payload.buffers)
        return distance_pb2.QueryRequest(spec=spec, payload_bytes=payload.length, data=data)


def kinds(scenes: list[str]) -> st.SearchStrategy[Kind]:
    return st.builds(
        Kind,
        st.sampled_from(scenes),
        st.sampled_from(SETTINGS),
        st.lists(st.sampled_from((*OUTPUTS, "nonsense")), max_size=4, unique=True).map(tuple),
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from((0, 1, 7, 30))),
        st.booleans(),
        st.sampled_from(({}, {}, {}, {"per_obstacle": True})),
    )


def test_any_query_answers_as_the_same_request_in_other_bytes(asker: Asker, scenes: list[str]) -> None:
    codes: Counter[str] = Counter()

    @BATCH
    @given(kinds(scenes), st.lists(SEEDS, min_size=2, max_size=4), st.data())
    def run(kind: Kind, seeds: list[int], data: st.DataObject) -> None:
        way = data.draw(st.sampled_from(Asker.WAYS))
        for seed in seeds:
            request = kind.at(seed, data.draw(st.sampled_from((None, None, *ODD))))
            raw = request.SerializeToString()
            metadata = data.draw(st.sampled_from(({}, {MESSAGE_BYTES: "3000000"}, {MESSAGE_BYTES: "100"})))
            found = asker.ask(raw, way, METHOD, metadata)
            encoding = data.draw(st.sampled_from(sorted(ENCODINGS)))
            assert_same(found, asker.ask(ENCODINGS[encoding](request), way, METHOD, metadata), raw)
            codes[found.code] += 1

    repeat(run)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT"}
    assert codes["OK"]


def test_damaged_bytes_are_refused_as_in_a_first_call(asker: Asker, scenes: list[str]) -> None:
    codes: Counter[str] = Counter()

    @BATCH
    @given(kinds(scenes), SEEDS, st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def run(kind: Kind, seed: int, ways: list[int]) -> None:
        raw = kind.at(seed).SerializeToString()
        asker.ask(raw, method=METHOD)
        for number, way in enumerate(ways):
            bad = damaged(raw, np.random.default_rng(seed + number), way)
            found = asker.ask(bad, method=METHOD)
            assert_same(found, asker.ask(UNKNOWN + bad, method=METHOD), bad)
            codes[found.code] += 1

    repeat(run)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
    assert codes["INVALID_ARGUMENT"]


def small(scene_id: str, seed: int = 0) -> distance_pb2.QueryRequest:
    return Kind(scene_id, SETTINGS[1], ("cost", "distance", "face"), (2, 3, 10), False, {}).at(seed)


def compared(asker: Asker, request: distance_pb2.QueryRequest) -> Answer:
    raw = request.SerializeToString()
    found = asker.ask(raw, method=METHOD)
    assert_same(found, asker.ask(ENCODINGS["reversed"](request), method=METHOD), raw)
    return found


def test_queries_at_the_same_time_answer_as_one_after_the_other(asker: Asker, scenes: list[str]) -> None:
    requests = [small(scenes[0], seed) for seed in range(12)]
    expected = [asker.ask(ENCODINGS["reversed"](request), method=METHOD) for request in requests]
    with ThreadPoolExecutor(6) as threads:
        found = threads.map(lambda request: asker.ask(request.SerializeToString(), method=METHOD), requests * 4)
        for index, answer in enumerate(found):
            assert_same(answer, expected[index % len(requests)], b"")


def test_a_repeated_query_is_of_the_world_as_it_is(client: RawClient, asker: Asker) -> None:
    distances = DistanceClient(client)
    mesh = client.put(OPEN).scene
    world = distances.put(world_of(world_pb2.Obstacle(mesh_id=mesh.scene_id, name="box"), cuboid(0.1, 0.1, 0.1))).scene
    request = small(world.scene_id)
    before = [compared(asker, request) for _ in range(3)][-1]
    # The mesh of the world moves, without a new version of the world.
    client.update(mesh.scene_id, mesh.version, {"vertices": OPEN["vertices"] * np.float32(1.5)})
    after = compared(asker, request)
    assert after.is_ok and after.values != before.values
    assert compared(asker, request) == after
    # The world itself changes.
    moved = world_pb2.ObstacleUpdate(name="box", pose=pose_of(0.5, 0, 0))
    distances.update(world.scene_id, world.version, moved)
    last = [compared(asker, request) for _ in range(2)][-1]
    assert last.is_ok and last.values != after.values
    client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=world.scene_id), timeout=60)
    assert compared(asker, request).code == "NOT_FOUND"


def test_no_query_sees_a_mesh_of_before_while_another_is_given_the_new_one(tmp_path: Path) -> None:
    hold, begun = tmp_path / "hold", tmp_path / "begun"
    before = f"""
import pathlib, time
from lumigrad.kernels.meshes import World

hold, begun, plain = pathlib.Path({str(hold)!r}), pathlib.Path({str(begun)!r}), World.__post_init__

def held(self):
    plain(self)
    while hold.exists():
        begun.touch()
        time.sleep(0.01)

World.__post_init__ = held
"""
    with (
        worker("--device", "cpu", before=(before,)) as process,
        RawClient(process.target) as client,
        closing(Asker(client)) as asker,
        ThreadPoolExecutor(2) as threads,
    ):
        mesh = client.put(OPEN).scene
        world = DistanceClient(client).put(world_of(world_pb2.Obstacle(mesh_id=mesh.scene_id))).scene
        request = small(world.scene_id)
        old = [compared(asker, request) for _ in range(3)][-1]
        client.update(mesh.scene_id, mesh.version, {"vertices": OPEN["vertices"] * np.float32(1.5)})
        # The first query after the update makes the world of the new mesh; the second comes meanwhile.
        hold.touch()
        first = threads.submit(asker.ask, ENCODINGS["reversed"](request), method=METHOD)
        wait_until(begun.exists, "a new world")
        second = threads.submit(asker.ask, request.SerializeToString(), method=METHOD)
        wait_for(process, "lumigrad_queue_depth", 1)
        hold.unlink()
        new = first.result()
        assert new.is_ok and new.values != old.values
        assert_same(second.result(), new, b"")


def test_repeated_queries_are_counted_as_others(process: WorkerProcess, asker: Asker, scenes: list[str]) -> None:
    request = small(scenes[2], seed=5)
    raws = [ENCODINGS["reversed"](request), *[request.SerializeToString()] * 2]
    asker.ask(raws[1], method=METHOD)
    changes = []
    for raw in raws:
        before = figures(process)
        assert asker.ask(raw, method=METHOD).is_ok
        changes.append({name: value - before[name] for name, value in figures(process).items()})
    assert changes[1] == changes[0] and changes[2] == changes[0]
    assert changes[0]["lumigrad_calls_total"] == 1


def figures(process: WorkerProcess) -> dict[str, float]:
    method = "DistanceService.Query"
    return {
        "lumigrad_calls_total": process.metric("lumigrad_calls_total", method=method, code="OK"),
        "lumigrad_batch_views_sum": process.metric("lumigrad_batch_views_sum"),
        "lumigrad_batch_views_count": process.metric("lumigrad_batch_views_count"),
        **{
            direction: process.metric("lumigrad_payload_bytes_total", method=method, direction=direction)
            for direction in ("received", "sent")
        },
        **{
            stage: process.metric("lumigrad_kernel_seconds_count", engine="meshes", op="forward", stage=stage)
            for stage in ("sort", "query")
        },
    }
