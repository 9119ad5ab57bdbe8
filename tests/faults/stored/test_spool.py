"""Scenes outlive their worker in a spool: nothing is sent again, and changed or deleted content does not come back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, Mesh, Obstacle, SceneHandle, SceneNotFound, VersionMismatch, World
from lumigrad.client.workers import scene_store
from support.gaussians.clouds import post
from support.meshes import shapes as mesh_shapes
from support.workers.client_load import CAMERA, client_fixture, cloud
from support.workers.spooling import PROBES, files, kill, shown, spooling, wait_until_written, without_copy
from support.workers.worker import WorkerProcess, worker

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
ASIDE = (3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
ALICE, BOB = (f"{name}-0123456789abcdef" for name in ("alice", "bob"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[WorkerProcess]:
    # Crashes are soon forgotten, so the next worker need not wait.
    with spooling(folder, "--crash-seconds", "0.1") as started:
        yield started


client = client_fixture("process", retry_s=60)


def several(client: Client) -> list[SceneHandle]:
    """Scenes of all kinds, as they were put and updated."""
    spheres, gaussians = client.put(cloud()), client.put(post())
    mesh = client.put(Mesh(BOX.vertices, BOX.faces))
    deformed = client.put(Mesh(BOX.vertices * 1.5, BOX.faces))
    world = client.put(World([Obstacle(mesh), Obstacle(deformed, ASIDE, "other"), Obstacle(Mesh(**open_box()))]))
    other = client.put(cloud(100))
    for _ in range(2):
        other = client.update(other, colors=np.random.default_rng(3).random((100, 3)))
    return [
        spheres,
        gaussians,
        mesh,
        client.update(deformed, vertices=BOX.vertices * 0.75),
        client.update(world, poses={"other": (0, 3, 0, 1, 0, 0, 0)}),
        other,
        client.update(client.put(bright(post())), opacities=np.full(len(post()), 0.5)),
    ]


def open_box() -> dict[str, np.ndarray]:
    shape = mesh_shapes.open_box()
    return {"vertices": shape.vertices, "faces": shape.faces}


def bright(scene: Gaussians) -> Gaussians:
    return Gaussians(**{**scene.tensors, "scales": scene.tensors["scales"] * 2})


def test_a_killed_workers_scenes_are_there_without_being_sent_again(
    process: WorkerProcess, client: Client, folder: Path
) -> None:
    scenes = several(client)
    expected = [shown(client, scene) for scene in scenes]
    handles = [without_copy(client, scene) for scene in scenes]
    wait_until_written(process)
    listed = {handle.scene_id: handle for handle in client.list()}
    for _ in range(2):
        kill(process)
        assert {handle.scene_id: handle for handle in client.list()} == listed
        assert process.metric("lumigrad_scenes") == 0
        assert process.metric("lumigrad_spool_files") == len(files(folder))
        with Client(process.target, retry_s=60) as other:
            assert other.put(cloud()) == scenes[0]
        with ThreadPoolExecutor(6) as pool:
            images = list(pool.map(lambda handle: shown(client, handle), handles * 3))
        for handle, image, before in zip(handles * 3, images, expected * 3, strict=True):
            assert np.array_equal(image, before), handle
        for scene, before in zip(scenes, expected, strict=True):
            assert np.array_equal(shown(client, scene), before), scene
            now = client.get(scene.scene_id)
            assert (now.version, now.content_hash) == (scene.version, scene.content_hash)
        # Nothing was stored again.
        for method in ("Put", "Update"):
            name = f"SceneService.{method}"
            assert process.metric("lumigrad_calls_total", method=name, code="OK") == 0
        # Each scene was read once, however many asked. The eighth is the mesh of the world, which has no handle here.
        assert process.metric("lumigrad_spool_reads_total", kind="scene", result="read") == 8
    updated = client.update(handles[5], colors=np.zeros((100, 3)))
    assert updated.version == scenes[5].version + 1


def test_an_update_is_in_the_spool_when_its_reply_comes(process: WorkerProcess, client: Client) -> None:
    scene = cloud(2000)
    first = client.put(scene)
    wait_until_written(process)
    for value in (0.0, 0.5):
        mine = client.update(first, colors=np.full_like(scene.colors, value))
        kill(process)
        with Client(process.target, retry_s=60) as other:
            assert other.get(first.scene_id).version == mine.version
            expected = client.render(mine.scene, CAMERA, max_depth=10).color
            assert np.array_equal(shown(other, without_copy(other, mine)), expected)
            # Replaced content is no longer found.
            theirs = other.update(other.put(scene), colors=np.ones_like(scene.colors))
            assert theirs.scene_id != mine.scene_id
            assert not np.array_equal(shown(other, theirs), expected)
            other.delete(theirs)
            assert np.array_equal(shown(client, mine), expected)
        first = mine


def test_scenes_that_come_faster_than_the_disk_are_all_there(tmp_path: Path) -> None:
    # 8 KiB each, besides their tensors: fewer than 128 fit into memory.
    options = ("--scene-mib", "1", "--max-payload-mib", "1", "--transit-mib", "64")
    # On a busy disk, a call waits long for its turn to be written.
    with spooling(tmp_path, *options) as process, Client(process.target, retry_s=60, timeout_s=300) as client:
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda seed: client.put(cloud(20 + seed)).scene_id, range(240)))
            assert process.health() == 1
        for scene_id in ids:
            assert client.get(scene_id).version == 1
        wait_until_written(process)
        updated = list(map(client.get, ids[:5]))
        for handle in updated:
            client.update(handle, colors=np.zeros((handle.count, 3)))
        kill(process)
        assert {handle.scene_id for handle in client.list()} == set(ids)
        for handle in updated:
            assert client.get(handle.scene_id).version == 2


def test_worlds_find_their_meshes_unless_those_were_deleted(process: WorkerProcess, client: Client) -> None:
    mesh, deleted = (client.put(Mesh(BOX.vertices * size, BOX.faces)) for size in (1.1, 1.2))
    travels = World([Obstacle(mesh)])
    stored = client.put(World([Obstacle(deleted)]))
    expected = [client.query(world, PROBES).distance for world in (travels, stored)]
    client.delete(deleted)
    named = without_copy(client, stored)
    assert np.array_equal(shown(client, named), expected[1])
    wait_until_written(process)
    kill(process)
    assert np.array_equal(client.query(travels, PROBES).distance, expected[0])
    assert process.metric("lumigrad_calls_total", method="DistanceService.Query", code="NOT_FOUND") == 0
    with pytest.raises(SceneNotFound) as lost:
        shown(client, named)
    assert lost.value.scene_id == stored.scene_id
    assert np.array_equal(shown(client, stored), expected[1])


def test_deleted_scenes_stay_deleted(process: WorkerProcess, client: Client) -> None:
    scenes = several(client)
    wait_until_written(process)
    kill(process)
    # Only the first two have been loaded.
    for scene in scenes[:2]:
        shown(client, scene)
    for scene in scenes:
        client.delete(scene)
    fresh = client.put(cloud(300))
    client.delete(fresh)
    for _ in range(2):
        for scene in (*scenes, fresh):
            with pytest.raises(SceneNotFound):
                client.get(scene.scene_id)
        kill(process)
    assert not {scene.scene_id for scene in scenes} & {scene.scene_id for scene in client.list()}


def test_what_memory_has_no_room_for_comes_back_from_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--scene-mib", "2", "--max-payload-mib", "1", "--spool-mib", "8")
    with spooling(tmp_path, *options) as process, Client(process.target, retry_s=60) as client:
        # 0.7 MiB each, two of which fit.
        handles = []
        for count in range(25_000, 25_004):
            handles.append(without_copy(client, client.put(cloud(count))))
            wait_until_written(process)
        for _ in range(2):
            for handle in handles:
                assert client.render(handle, CAMERA, max_depth=10).color.any()
        assert process.metric("lumigrad_scenes") == 2
        assert process.metric("lumigrad_spool_files") == 4
        assert len(client.list()) == 4
        # Two of them are only in files.
        monkeypatch.setattr(scene_store, "_LISTED", 1)
        assert {handle.scene_id for handle in client.list()} == {handle.scene_id for handle in handles}


def test_a_foreign_scene_in_the_spool_is_one_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"alice: {ALICE}\nbob: {BOB}\n")
    options = ("--tokens-file", str(tmp_path / "tokens"))
    scene = cloud(5000)
    with (
        spooling(tmp_path / "spool", *options) as process,
        Client(process.target, token=ALICE, retry_s=60) as alice,
        Client(process.target, token=BOB, retry_s=60) as bob,
    ):
        handle = alice.put(scene)
        wait_until_written(process)
        kill(process)
        with pytest.raises(SceneNotFound):
            bob.get(handle.scene_id)
        with pytest.raises(SceneNotFound):
            bob.delete(handle.scene_id)
        assert bob.list() == ()
        # The scene is not even found by its hash: its bytes are sent.
        assert bob.put(scene).scene_id != handle.scene_id
        assert process.metric("lumigrad_payload_bytes_total", method="SceneService.Put", direction="received") > 0
        assert process.metric("lumigrad_spool_reads_total", kind="scene", result="read") == 0
        assert alice.list() == (handle,)
        # The folders' names do not reveal the tenants.
        assert not [path for path in (tmp_path / "spool").rglob("*") if "alice" in str(path.relative_to(tmp_path))]


def test_workers_of_one_supervisor_have_a_spool_each(tmp_path: Path) -> None:
    with worker("--device", "cpu,cpu", "--spool", str(tmp_path), supervised=True) as both:
        both.wait_for_log("INFO serving", count=2)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_worker_that_is_stopped_writes_what_it_has(tmp_path: Path) -> None:
    scene = cloud()
    with spooling(tmp_path, supervised=False) as process, Client(process.target, retry_s=60) as client:
        updated = client.update(client.put(scene), colors=np.zeros_like(scene.colors))
        expected = shown(client, updated)
    with spooling(tmp_path, supervised=False) as process, Client(process.target, retry_s=60) as client:
        handle = without_copy(client, updated)
        assert handle.version == 2
        assert np.array_equal(shown(client, handle), expected)
        with pytest.raises(VersionMismatch):
            client.render(SceneHandle(handle.scene_id, 1, "", "spheres", 200, 0), CAMERA, max_depth=10)
