"""Clients, the real Envoy with the configuration of deploy/envoy, and two workers behind it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lumigrad.client import Camera, Client, Mesh, Obstacle, SceneHandle, Spheres, World
from support.deploy.certificates import Authority
from support.deploy.envoy import Envoy, envoy
from support.workers.client_load import CAMERA, client_fixture, cloud
from support.workers.load import Load
from support.workers.worker import WorkerProcess, worker

SCENES = 12
LARGE = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=1920, height=1080)
TRIANGLE = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]])
POINT = [[0.2, 0.2, 0.5, 0.1]]


@pytest.fixture(scope="module")
def workers() -> Iterator[list[WorkerProcess]]:
    with worker("--device", "cpu") as first, worker("--device", "cpu") as second:
        yield [first, second]


@pytest.fixture
def front(workers: list[WorkerProcess], tmp_path: Path) -> Iterator[Envoy]:
    with envoy([process.target for process in workers], tmp_path) as running:
        yield running


client = client_fixture("front", timeout_s=120, retry_s=60)


def test_results_are_those_of_a_worker(client: Client, workers: list[WorkerProcess]) -> None:
    with Client(workers[0].target, lane="stream") as direct:
        results = []
        for each in (client, direct):
            frame = each.render(each.put(cloud(seed=1)), CAMERA, retain=True)
            gradients = frame.backward(color=np.ones_like(frame.color), wanted=("positions", "radii"))
            results.append((frame.color, gradients.positions, gradients.radii))
    for through, straight in zip(*results, strict=True):
        np.testing.assert_array_equal(through, straight)


def test_large_payloads_pass_both_ways_and_lanes_give_way_to_the_stream(client: Client) -> None:
    # 25 MB down, 25 MB up, and a scene of 17 MB up.
    scene = client.put(cloud(seed=2, count=600_000))
    assert scene.nbytes > 16 << 20
    small = client.put(cloud(seed=2))
    frame = client.render(small, LARGE, retain=True)
    gradients = frame.backward(color=np.ones_like(frame.color))
    assert frame.color.nbytes == 1920 * 1080 * 12 and np.abs(gradients.positions).sum() > 0
    assert client.lane == "stream"


def test_each_scene_stays_with_one_worker_and_all_workers_have_some(client: Client, front: Envoy) -> None:
    handles = [client.put(cloud(seed=seed)) for seed in range(SCENES)]
    for _ in range(3):
        for handle in handles:
            client.render(handle, CAMERA)
    front.wait_for_calls("Render", 3 * SCENES)
    workers = front.workers_of("Render")
    assert len(workers) == SCENES
    assert all(len(each) == 1 for each in workers.values())
    assert len(set().union(*workers.values())) == 2
    # No scene was sent twice.
    assert len(front.calls("Put")) <= SCENES


def test_a_scene_stays_where_it_is_when_it_is_updated_and_deleted(client: Client, front: Envoy) -> None:
    handle = client.put(cloud(seed=100))
    for step in range(4):
        handle = client.update(handle, radii=np.full(200, 0.1 + step / 100, "f4"))
        client.render(handle, CAMERA)
    client.delete(handle)
    front.wait_for_calls("Delete", 1)
    mine = [call for call in front.calls() if call["scene"] == handle.affinity]
    assert {call["path"].rpartition("/")[2] for call in mine} >= {"Put", "Update", "Render", "Delete"}
    assert len({call["worker"] for call in mine}) == 1


def test_forward_states_are_found_again(client: Client, front: Envoy) -> None:
    stored = [client.put(cloud(seed=seed)) for seed in range(4)]
    for scene in (*stored, *(cloud(seed=seed) for seed in range(4, 12))):
        frame = client.render(scene, CAMERA, retain=True)
        frame.backward(color=np.ones_like(frame.color), release=False)
        frame.release()
    front.wait_for_calls("Release", 12)
    calls = [call for call in front.calls() if "RenderService" in call["path"]]
    # No forward state was lost, or a Backward would have failed.
    assert {call["status"] for call in calls if "Backward" in call["path"]} == {"OK"}
    for name in {call["scene"] for call in calls}:
        assert len({call["worker"] for call in calls if call["scene"] == name}) == 1
    assert len({call["worker"] for call in calls}) == 2


def test_worlds_find_their_meshes(client: Client, front: Envoy) -> None:
    worlds = [client.put(World([Obstacle(TRIANGLE, pose=(x, 0, 0, 1, 0, 0, 0))])) for x in range(6)]
    found = [client.query(world, POINT, outputs=("distance",)).distance for world in worlds]
    assert len({float(distance.ravel()[0]) for distance in found}) > 1
    front.wait_for_calls("Query", len(worlds))
    assert len({call["worker"] for call in front.calls("Query")}) == 1


def test_a_training_runs_through_it(client: Client) -> None:
    views = [Camera.orbit((0, 0, 0), 6.0, azimuth, 10.0, width=32, height=24) for azimuth in (0, 120, 240)]
    photographs = [np.full((24, 32, 3), 128, np.uint8) for _ in views]
    with client.trainer(cloud(seed=3), views, photographs) as trainer:
        losses = [step.loss for step in trainer.steps(20)]
        assert losses[-1] < losses[0]
        assert isinstance(trainer.scene(), Spheres)


def test_only_what_clients_need_is_reachable(front: Envoy) -> None:
    with grpc.insecure_channel(front.target) as channel:
        status = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError) as error:
            list(reflection.ServerReflectionInfo(iter([request]), timeout=60))
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    # The listener speaks HTTP/2 only, and has no page of metrics.
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"http://{front.target}/metrics", timeout=60)


def test_tls_ends_at_it(workers: list[WorkerProcess], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.sign("envoy")
    with envoy([process.target for process in workers], tmp_path, identity) as front:
        # Envoy warns there of settings that it is going to drop.
        assert "deprecated" not in front.log.read_text().lower()
        with Client(front.target, tls=authority.certificate, timeout_s=120, retry_s=60) as client:
            assert client.render(client.put(cloud(seed=4)), CAMERA).color.shape == (48, 64, 3)
        with pytest.raises(ConnectionError), Client(front.target, retry_s=0) as client:
            client.info()


def uploads_meet_a_dead_worker(folder: Path) -> bool:
    """Puts and renders scenes just after a worker was killed; returns whether an upload went there first."""
    folder.mkdir()
    with (
        worker("--device", "cpu") as victim,
        worker("--device", "cpu") as other,
        envoy([victim.target, other.target], folder, calls_meet_dead_workers=True) as front,
        Client(front.target, timeout_s=120, retry_s=60) as client,
    ):
        scenes = [cloud(seed=seed, count=50_000) for seed in range(16)]
        victim.process.kill()
        victim.process.wait(100)
        handles = [client.put(scene) for scene in scenes]
        assert all(client.render(handle, CAMERA).color.any() for handle in handles)
        front.wait_for_calls("Put", len(scenes))
        assert {call["worker"] for call in front.calls("Put") if call["status"] == "OK"} == {other.target}
        return any(call["status"] == "Unavailable" for call in front.calls("Put"))


def test_uploads_too_large_for_its_buffer_survive_a_worker_that_was_just_killed(tmp_path: Path) -> None:
    # On a busy machine the front may have noticed the death before the first upload.
    met = any(uploads_meet_a_dead_worker(tmp_path / f"{attempt}") for attempt in range(5))
    assert met, "no upload met the dead worker"


def test_workers_that_are_killed_and_drained_under_load_cost_no_call(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        options = "--device", "cpu", "--lame-duck-seconds", "3"
        processes = list(pool.map(lambda _: WorkerProcess(*options), range(3)))
    try:
        with (
            ThreadPoolExecutor(1) as pool,
            envoy([process.target for process in processes], tmp_path) as front,
            Client(front.target, timeout_s=240, retry_s=120) as client,
            Load([renders(client, seed) for seed in range(SCENES)], rate=10) as load,
        ):
            scene = client.put(cloud(seed=5, count=100_000))
            orbit = [Camera.orbit((0, 0, 0), 5.0, azimuth, 10.0, width=640, height=480) for azimuth in range(24)]
            expected = client.render(scene, orbit).color
            victim = next(process for process in processes if process.target == worker_of(front, scene))
            killer = pool.submit(kill_at_work, front, victim)
            # On a busy machine a call may be over before the killer has seen it.
            while not killer.done():
                np.testing.assert_array_equal(client.render(scene, orbit).color, expected)
            killer.result()
            assert victim.process.wait() != 0
            front.wait_for_healthy(2)
            load.wait_for_progress(20)
            drained = next(process for process in processes if process is not victim)
            drained.signal()
            load.wait_for_progress(15)
            assert drained.wait() == 0
            load.wait_for_progress(15)
        assert load.failed == 0, load.failures
    finally:
        for process in processes:
            process.stop()


def worker_of(front: Envoy, scene: SceneHandle) -> str:
    """The worker that rendered a scene last."""
    front.wait_for(lambda: scene.affinity in front.workers_of("Render"), "the scene's rendering")
    (where,) = front.workers_of("Render")[scene.affinity]
    return where


def kill_at_work(front: Envoy, victim: WorkerProcess) -> None:
    """Kills a worker as soon as it is seen at a call."""
    try:
        # A single look decides: a worker whose calls are short is never seen at work many times in a row.
        front.wait_for(lambda: victim.metric("lumigrad_calls_in_progress") > 0, "a call that is under way")
    finally:
        victim.process.kill()


def renders(client: Client, seed: int) -> Callable[[], None]:
    """A call that renders a scene and its gradients, and checks the picture."""
    scene = client.put(cloud(seed=seed))
    expected = client.render(scene, CAMERA).color

    def call() -> None:
        frame = client.render(scene, CAMERA, retain=True)
        assert np.array_equal(frame.color, expected), "a wrong picture"
        frame.backward(color=np.ones_like(frame.color), wanted=("positions",))

    return call
