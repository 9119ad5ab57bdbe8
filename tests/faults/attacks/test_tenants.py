"""Two tenants of one worker: neither gets in without a token or learns anything about the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad import client as lumigrad
from lumigrad.client import Client
from lumigrad.client.errors import Unauthenticated
from lumigrad.client.training import Trainer
from lumigrad.protos.lanes import pack_hello
from lumigrad.protos.wire import Frame
from lumigrad.v1 import errors_pb2, render_pb2, scene_pb2, worker_pb2, world_pb2
from support.calls import lane_calls
from support.calls.distance_calls import mesh_arrays
from support.calls.lane_calls import MIB
from support.calls.raw_calls import RawClient, color_gradient, detail, failure, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_lane import RawLane, connect, is_closed, offer_of
from support.calls.raw_messages import send
from support.calls.valid_requests import ALL_METHODS
from support.meshes.shapes import torus
from support.training.scenes import gaussian_lesson
from support.workers.slow_render import wait_for
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker

Code = grpc.StatusCode
ALICE, BOB, CAROL = (f"{name}-0123456789abcdef" for name in ("alice", "bob", "carol"))
NEVER = "0123456789abcdef0123456789abcdef"
CAMERA = opencv_camera(16, 16)


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu", tokens={"alice": ALICE, "bob": BOB}) as started:
        yield started
    for token in (ALICE, BOB):
        assert token not in started.log


@pytest.fixture(scope="module")
def people(process: WorkerProcess) -> Iterator[SimpleNamespace]:
    with process.channel() as channel:
        yield SimpleNamespace(alice=tenant_client(channel, ALICE), bob=tenant_client(channel, BOB))


def told(call: Callable[[], object], name: str) -> tuple[Any, ...]:
    """The whole error that a caller receives, without the name that the caller used."""
    error = failure(call)
    parts = error.details(), *(value for key, value in error.trailing_metadata() if key != "x-request-id")
    return error.code(), *(str(part).replace(name, "NAME") for part in parts)


def spheres(color: float = 0.5, count: int = 20, seed: int = 0) -> dict[str, Any]:
    cloud = sphere_cloud(count, seed=seed)
    return {**cloud, "colors": np.full_like(cloud["colors"], color)}


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ((), 'expected a bearer token, as metadata "authorization: Bearer TOKEN"'),
        ((("authorization", f"Bearer {ALICE}"), ("authorization", f"Bearer {BOB}")), "expected a bearer token"),
        ((("authorization", f"Basic {ALICE}"),), 'expected "authorization" of the form "Bearer TOKEN"'),
        ((("authorization", "Bearer"),), 'expected "authorization" of the form|the token is not valid here'),
        ((("authorization", f"Bearer {ALICE[:-1]}"),), "the token is not valid here"),
        ((("authorization", f"Bearer {ALICE}x"),), "the token is not valid here"),
    ],
)
def test_no_method_is_open_to_strangers(
    process: WorkerProcess, metadata: tuple[tuple[str, str], ...], text: str
) -> None:
    before = process.metric("lumigrad_rejections_total", reason="unauthenticated")
    with process.channel() as channel:
        for method in ALL_METHODS:
            error = failure(lambda method=method: send(channel, method, [b""], metadata=metadata))
            assert error.code() == Code.UNAUTHENTICATED, method.path
            assert any(part in error.details() for part in text.split("|")), error.details()
    assert process.metric("lumigrad_rejections_total", reason="unauthenticated") == before + len(ALL_METHODS)


def test_clients_pass_their_token_and_hear_what_is_wrong_with_it(process: WorkerProcess) -> None:
    with Client(process.target, token=ALICE) as client:
        assert client.info().device == "cpu"
    with Client(process.target, token="wrong") as client, pytest.raises(lumigrad.Unauthenticated) as error:
        client.info()
    assert "the token is not valid here; pass token=… to Client" in str(error.value)


def test_a_foreign_scene_is_one_that_does_not_exist(people: SimpleNamespace) -> None:
    scene = people.alice.put(spheres(seed=1)).scene
    bob: RawClient = people.bob

    def delete(scene_id: str) -> object:
        return bob.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene_id), timeout=60)

    attempts: list[Callable[[str], object]] = [
        lambda scene_id: bob.get(scene_id=scene_id),
        lambda scene_id: bob.update(scene_id, 1, {"radii": np.ones(20, np.float32)}),
        lambda scene_id: bob.render(spec_of(CAMERA, scene_id=scene_id)),
        delete,
    ]
    for attempt in attempts:
        foreign = told(lambda attempt=attempt: attempt(scene.scene_id), scene.scene_id)
        assert foreign[0] == Code.NOT_FOUND
        assert foreign == told(lambda attempt=attempt: attempt(NEVER), NEVER)
    by_hash = [failure(lambda digest=digest: bob.get(content_hash=digest)) for digest in (scene.content_hash, "0" * 64)]
    assert by_hash[0].code() == by_hash[1].code() == Code.NOT_FOUND
    assert by_hash[0].details() == by_hash[1].details()
    assert people.alice.get(scene_id=scene.scene_id)[0].info.version == 1


def test_a_foreign_mesh_cannot_be_shown_by_a_world(people: SimpleNamespace) -> None:
    mesh_id = people.alice.put(mesh_arrays(torus(6, 4))).scene.scene_id

    def put(name: str) -> object:
        world = world_pb2.World(obstacles=[world_pb2.Obstacle(name="one", mesh_id=name)])
        return people.bob.scene_stub.Put(
            iter([Frame(scene_pb2.PutRequest(scene=scene_pb2.Scene(world=world)))]), timeout=60
        )

    foreign = told(lambda: put(mesh_id), mesh_id)
    assert foreign == told(lambda: put(NEVER), NEVER)
    assert foreign[0] == Code.NOT_FOUND


def test_a_foreign_forward_state_is_one_that_was_lost(people: SimpleNamespace) -> None:
    gradient = {"color": color_gradient(1, 16, 16, 3)}
    context_id = people.alice.render(spec_of(CAMERA), cloud=spheres(), retain=True).header.context_id
    for release in (False, True):
        error = failure(lambda release=release: people.bob.backward(gradient, context_id=context_id, release=release))
        assert error.code() == Code.FAILED_PRECONDITION
        assert detail(error, errors_pb2.ContextLost).context_id == context_id
    foreign = told(lambda: people.bob.backward(gradient, context_id=context_id), context_id)
    assert foreign == told(lambda: people.bob.backward(gradient, context_id=NEVER), NEVER)
    people.bob.render_stub.Release(render_pb2.ReleaseRequest(context_id=context_id), timeout=60)
    assert people.alice.backward(gradient, context_id=context_id).arrays


def test_the_same_content_is_two_scenes(people: SimpleNamespace) -> None:
    cloud = spheres(seed=2)
    mine = people.alice.put(cloud)
    theirs = people.bob.put(cloud, content_hash=mine.scene.content_hash)
    assert not theirs.existed, "a hash tells nothing of what others have"
    before = people.bob.render(spec_of(CAMERA, scene_id=theirs.scene.scene_id)).arrays["color"]
    people.alice.update(mine.scene.scene_id, 1, {"colors": np.ones((20, 3), np.float32)})
    after = people.bob.render(spec_of(CAMERA, scene_id=theirs.scene.scene_id)).arrays["color"]
    assert before.tobytes() == after.tobytes()
    people.bob.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=theirs.scene.scene_id), timeout=60)
    assert people.alice.get(scene_id=mine.scene.scene_id)[0].info.version == 2


def test_nobody_is_told_what_others_have(people: SimpleNamespace) -> None:
    scene_id = people.alice.put(spheres(seed=3)).scene.scene_id
    listed = {
        client: client.scene_stub.List(scene_pb2.ListRequest(), timeout=60).scenes for client in vars(people).values()
    }
    assert scene_id in {scene.scene_id for scene in listed[people.alice]}
    assert scene_id not in {scene.scene_id for scene in listed[people.bob]}
    info = people.bob.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60)
    assert info.scenes == len(listed[people.bob]) < len(listed[people.alice])


def test_calls_are_counted_by_tenant(process: WorkerProcess, people: SimpleNamespace) -> None:
    before = process.metric("lumigrad_tenant_calls_total", tenant="bob")
    people.bob.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=(("x-request-id", "by-bob"),))
    process.wait_for_log("by-bob")
    assert process.metric("lumigrad_tenant_calls_total", tenant="bob") == before + 1
    line = next(line for line in process.log.splitlines() if "by-bob" in line)
    assert "tenant=bob" in line


def test_a_token_that_is_taken_away_is_not_valid_any_more(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice: {ALICE}\n")
    with worker("--device", "cpu", "--tokens-file", str(tokens)) as process, process.channel() as channel:
        alice, carol = tenant_client(channel, ALICE), tenant_client(channel, CAROL)
        scene_id = alice.put(spheres()).scene.scene_id
        assert failure(lambda: carol.get(scene_id=scene_id)).code() == Code.UNAUTHENTICATED
        (tmp_path / "new").write_text(f"# a new token for the same tenant\nalice: {CAROL}\n")
        os.replace(tmp_path / "new", tokens)
        assert carol.get(scene_id=scene_id)[0].info.scene_id == scene_id
        assert failure(lambda: alice.get(scene_id=scene_id)).code() == Code.UNAUTHENTICATED
        tokens.write_text("alice\n")
        assert carol.get(scene_id=scene_id)
        process.wait_for_log("the previous tokens stay valid")


def test_a_training_whose_token_is_taken_away_ends_and_waits_for_its_tenant(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice: {ALICE}\nbob: {BOB}\n")

    def begun(client: Client, seed: int = 0) -> Trainer:
        lesson = gaussian_lesson(count=30, seed=seed)
        trainer = client.trainer(lesson.scene, lesson.cameras, lesson.target_images(client))
        assert len(list(trainer.steps(1))) == 1
        return trainer

    with (
        worker("--device", "cpu", "--tokens-file", str(tokens)) as process,
        Client(process.target, token=ALICE) as alice,
        Client(process.target, token=BOB) as bob,
        Client(process.target, token=CAROL) as carol,
    ):
        busy, idle, other = begun(alice), begun(alice, seed=1), begun(bob)
        (tmp_path / "new").write_text(f"alice: {CAROL}\nbob: {BOB}\n")
        os.replace(tmp_path / "new", tokens)
        until = time.monotonic() + 150
        with pytest.raises(Unauthenticated):
            while time.monotonic() < until:
                assert len(list(busy.steps(1))) == 1
        # The other training has ended at its next check, with a request or without.
        wait_for(process, "lumigrad_account_taken", 1, resource="open_trainings")
        assert len(list(other.steps(1))) == 1
        other.close()
        for lost in (busy, idle):
            with carol.resume_trainer(lost.training_id, lost.lease) as kept:
                assert len(list(kept.steps(1))) == 1
            lost.close(finish=False)


def test_a_lane_whose_token_is_taken_away_is_closed_and_leaves_the_results_that_it_has_brought(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice: {ALICE}\nalice: {CAROL}\nbob: {BOB}\n")
    options = ("--device", "cpu", "--lane-mib", "64", "--tokens-file", str(tokens))
    with worker(*options) as process, process.channel() as channel:
        revoked, same, other = (tenant_client(channel, token) for token in (ALICE, CAROL, BOB))
        lanes = [RawLane(client) for client in (revoked, same, other)]
        frames = lane_calls.render(revoked, lanes[0], 1)
        held = lanes[0].arrays(frames)["color"]
        lanes[0].place(np.ones(MIB, np.float32), 2)
        offer = offer_of(revoked)
        (tmp_path / "new").write_text(f"alice: {CAROL}\nbob: {BOB}\n")
        os.replace(tmp_path / "new", tokens)
        assert is_closed(lanes[0].link)
        with connect(offer) as link:
            link.send(pack_hello(offer.token))
            assert is_closed(link)
        assert np.array_equal(lanes[0].arrays(frames)["color"], held) and held.any()
        wait_for(process, "lumigrad_lanes", 2)
        assert process.metric("lumigrad_lane_bytes") < MIB
        for client, lane in ((same, lanes[1]), (other, lanes[2])):
            assert lane_calls.location(lane_calls.render(client, lane, 1)) == "region"
        for lane in lanes:
            lane.close()


def test_who_fills_their_share_loses_their_own_scenes_and_states_first() -> None:
    options = ["--max-payload-mib", "1", "--scene-mib", "3", "--tenant-scene-mib", "1"]
    contexts = ["--context-mib", "3", "--tenant-context-mib", "1"]
    with (
        worker("--device", "cpu", *options, *contexts, tokens={"alice": ALICE, "bob": BOB}) as process,
        process.channel() as channel,
    ):
        alice, bob = tenant_client(channel, ALICE), tenant_client(channel, BOB)
        kept = bob.put(spheres()).scene.scene_id
        # 0.4 MiB each, two of which fit into a share.
        stored = [alice.put(spheres(count=15_000, seed=seed)).scene.scene_id for seed in range(1, 5)]
        assert {scene.scene_id for scene in alice.scene_stub.List(scene_pb2.ListRequest(), timeout=60).scenes} == set(
            stored[2:]
        )
        assert bob.get(scene_id=kept)
        state = bob.render(spec_of(CAMERA), cloud=spheres(), retain=True).header.context_id
        for seed in range(8):
            alice.render(spec_of(opencv_camera(128, 128)), cloud=spheres(seed=seed), retain=True)
        assert process.metric("lumigrad_evictions_total", store="contexts", reason="room") > 0
        assert bob.backward({"color": color_gradient(1, 16, 16, 3)}, context_id=state).arrays
