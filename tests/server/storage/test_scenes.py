"""SceneService: scenes are found by content, have versions, and stay within a byte budget."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import BusyError
from lumigrad.server.rpc import scenes as scene_service
from lumigrad.server.scenes.clouds import KeptTensors
from lumigrad.server.storage.named import NamedScenes
from lumigrad.v1 import errors_pb2, scene_pb2
from support.calls.raw_calls import (
    SECONDS,
    RawClient,
    detail,
    failure,
    hash_of,
    scene_of,
    spec_of,
    sphere_cloud,
    violation,
)
from support.models.account_machine import Caller
from support.workers.worker import WorkerProcess, worker

FIELDS = ("positions", "colors", "radii", "opacities")


def delete(client: RawClient, scene_id: str) -> None:
    client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene_id), timeout=60)


def test_a_scene_is_described_by_its_content(client: RawClient) -> None:
    cloud = {**sphere_cloud(50, 7, seed=1), "opacities": np.full(50, 0.5, np.float32)}
    reply = client.put(cloud)
    assert not reply.existed
    assert reply.scene.version == 1
    assert reply.scene.content_hash == hash_of(cloud, FIELDS)
    assert reply.scene.kind == "spheres"
    assert reply.scene.count == 50
    assert reply.scene.bytes == 50 * (3 + 7 + 1 + 1) * 4


def test_the_same_content_has_the_same_name_as_long_as_it_is_there(client: RawClient) -> None:
    cloud = sphere_cloud(seed=2)
    first = client.put(cloud)
    again = client.put(cloud, content_hash=hash_of(cloud, FIELDS))
    assert again.existed
    assert again.scene == first.scene
    delete(client, first.scene.scene_id)
    returned = client.put(cloud)
    assert not returned.existed
    assert returned.scene.scene_id != first.scene.scene_id


def test_a_known_hash_is_answered_without_the_bytes(client: RawClient, shared_worker: WorkerProcess) -> None:
    cloud = sphere_cloud(100_000, seed=3)
    scene = client.put(cloud).scene
    received = {"method": "SceneService.Put", "direction": "received"}
    before = shared_worker.metric("lumigrad_payload_bytes_total", **received)
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(cloud, payload), content_hash=scene.content_hash)
    header.payload_bytes = payload.length
    reply = client.scene_stub.Put(iter([Frame(header)]), timeout=60)
    assert reply.existed
    assert reply.scene == scene
    assert shared_worker.metric("lumigrad_payload_bytes_total", **received) == before


def test_a_hash_that_is_not_the_contents_is_refused(client: RawClient) -> None:
    cloud = sphere_cloud(seed=5)
    error = failure(lambda: client.put(cloud, content_hash="0" * 64))
    assert violation(error) == (
        "content_hash",
        f"expected the hash of the content, {hash_of(cloud, FIELDS)}, got {'0' * 64}",
    )
    assert violation(failure(lambda: client.put(cloud, content_hash="ABC")))[0] == "content_hash"


def test_two_uploads_of_one_content_at_once_make_one_scene(client: RawClient) -> None:
    cloud = sphere_cloud(20_000, seed=6)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: client.put(cloud), range(4)))
    assert sum(not reply.existed for reply in replies) == 1
    assert len({reply.scene.scene_id for reply in replies}) == 1


def test_tensors_come_back_as_they_went(client: RawClient) -> None:
    cloud = {**sphere_cloud(30_000, seed=7), "opacities": np.linspace(0, 1, 30_000, dtype=np.float32)}
    scene = client.put(cloud).scene
    for key in ({"scene_id": scene.scene_id}, {"content_hash": scene.content_hash}):
        header, tensors = client.get(with_tensors=True, **key)
        assert header.info == scene
        assert {name: array.tobytes() for name, array in tensors.items()} == {
            name: array.tobytes() for name, array in cloud.items()
        }
    header, tensors = client.get(scene_id=scene.scene_id)
    assert (header.info, tensors) == (scene, {})


def test_an_update_makes_the_next_version(client: RawClient) -> None:
    cloud = sphere_cloud(seed=8)
    scene = client.put(cloud).scene
    moved = cloud["positions"] + np.float32(0.25)
    updated = client.update(scene.scene_id, 1, {"positions": moved}).scene
    assert (updated.scene_id, updated.version, updated.content_hash) == (scene.scene_id, 2, "")
    assert updated.bytes == scene.bytes
    _, tensors = client.get(scene_id=scene.scene_id, with_tensors=True)
    assert tensors["positions"].tobytes() == moved.tobytes()
    assert tensors["colors"].tobytes() == cloud["colors"].tobytes()
    twice = client.update(scene.scene_id, 2, {"colors": cloud["colors"] / 2, "radii": cloud["radii"] * 2}).scene
    assert twice.version == 3
    assert client.render(spec_of(scene_id=scene.scene_id)).header.scene.version == 3


def test_an_update_of_another_version_is_refused(client: RawClient) -> None:
    cloud = sphere_cloud(seed=10)
    scene_id = client.put(cloud).scene.scene_id
    client.update(scene_id, 1, {"radii": cloud["radii"]})
    error = failure(lambda: client.update(scene_id, 1, {"radii": cloud["radii"]}))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    mismatch = detail(error, errors_pb2.VersionMismatch)
    assert (mismatch.scene_id, mismatch.expected, mismatch.actual) == (scene_id, 1, 2)
    assert violation(failure(lambda: client.update(scene_id, 0, {"radii": cloud["radii"]})))[0] == "expected_version"


def test_of_two_updates_at_once_one_wins(client: RawClient) -> None:
    cloud = sphere_cloud(50_000, seed=11)
    scene_id = client.put(cloud).scene.scene_id

    def attempt(value: float) -> bool:
        try:
            client.update(scene_id, 1, {"colors": np.full_like(cloud["colors"], value)})
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(attempt, (0.1, 0.2, 0.3, 0.4))) == 1
    assert client.get(scene_id=scene_id)[0].info.version == 2


def test_an_update_that_is_repeated_is_made_once(client: RawClient) -> None:
    cloud = sphere_cloud(seed=19)
    scene_id = client.put(cloud).scene.scene_id

    def update(version: int, update_id: str) -> scene_pb2.SceneInfo:
        return client.update(scene_id, version, {"radii": cloud["radii"] * (version + 1)}, update_id).scene

    made = [update(version, f"update {version}") for version in range(1, 18)]
    assert [info.version for info in made] == list(range(2, 19))
    assert made[-1].update_id == "update 17"
    # The worker recognises the last 16 updates, whatever others have made of the scene since.
    for version in (2, 9, 17):
        assert update(version, f"update {version}") == made[version - 1]
    _, tensors = client.get(scene_id=scene_id, with_tensors=True)
    assert tensors["radii"].tobytes() == (cloud["radii"] * 18).tobytes()
    for version, update_id in ((1, "update 1"), (17, "another"), (17, "")):
        error = failure(lambda version=version, update_id=update_id: update(version, update_id))
        assert detail(error, errors_pb2.VersionMismatch).actual == 18
    assert violation(failure(lambda: update(18, "x" * 65)))[0] == "update_id"


def test_an_update_that_is_repeated_before_it_is_made_is_made_once(client: RawClient) -> None:
    cloud = sphere_cloud(50_000, seed=20)
    scene_id = client.put(cloud).scene.scene_id
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: client.update(scene_id, 1, {"radii": cloud["radii"]}, "one"), range(4)))
    assert {reply.scene.version for reply in replies} == {2}
    assert client.get(scene_id=scene_id)[0].info.version == 2


def test_a_render_may_insist_on_a_version(client: RawClient) -> None:
    scene_id = client.put(sphere_cloud(seed=12)).scene.scene_id
    spec = spec_of(scene_id=scene_id)
    spec.scene_ref.version = 1
    assert client.render(spec).header.scene.version == 1
    spec.scene_ref.version = 2
    error = failure(lambda: client.render(spec))
    assert detail(error, errors_pb2.VersionMismatch).actual == 1


@pytest.mark.parametrize(
    ("name", "shape", "field"),
    [
        ("positions", (199, 3), "tensors[0].shape"),
        ("positions", (200, 2), "tensors[0].shape"),
        ("opacities", (200,), "tensors[0].name"),
        ("normals", (200, 3), "tensors[0].name"),
        ("radii", (200,), "tensors.radii"),
    ],
)
def test_an_update_must_fit_what_is_stored(client: RawClient, name: str, shape: tuple[int, ...], field: str) -> None:
    scene_id = client.put(sphere_cloud(seed=13)).scene.scene_id
    error = failure(lambda: client.update(scene_id, 1, {name: np.zeros(shape, np.float32)}))
    assert violation(error)[0] == field
    assert client.get(scene_id=scene_id)[0].info.version == 1


def test_content_that_was_updated_away_is_stored_anew_under_another_name(client: RawClient) -> None:
    cloud = sphere_cloud(seed=15)
    first = client.put(cloud).scene
    client.update(first.scene_id, 1, {"radii": cloud["radii"] * 2})
    second = client.put(cloud)
    assert not second.existed
    assert second.scene.scene_id != first.scene_id


def test_a_deleted_scene_is_gone(client: RawClient) -> None:
    scene = client.put(sphere_cloud(seed=16)).scene
    delete(client, scene.scene_id)
    for call in (
        lambda: delete(client, scene.scene_id),
        lambda: client.get(scene_id=scene.scene_id),
        lambda: client.render(spec_of(scene_id=scene.scene_id)),
        lambda: client.update(scene.scene_id, 1, {"radii": np.ones(200, np.float32)}),
    ):
        error = failure(call)
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert detail(error, errors_pb2.SceneNotFound).scene_id == scene.scene_id
    assert failure(lambda: client.get(content_hash=scene.content_hash)).code() == grpc.StatusCode.NOT_FOUND
    listed = client.scene_stub.List(scene_pb2.ListRequest(), timeout=60).scenes
    assert scene.scene_id not in {entry.scene_id for entry in listed}


def test_get_wants_one_key(client: RawClient) -> None:
    assert violation(failure(client.get)) == ("scene_id", "expected scene_id, content_hash or name, got none")
    assert violation(failure(lambda: client.get(scene_id="a", content_hash="b")))[0] == "scene_id"


def test_the_least_recently_used_scene_makes_room() -> None:
    with worker("--device", "cpu", "--scene-mib", "2", "--max-payload-mib", "1") as process:
        client = RawClient(process.target)
        # The clouds have 0.7 MiB each, so two of them fit.
        clouds = [sphere_cloud(26_000, seed=seed) for seed in range(3)]
        ids = [client.put(cloud).scene.scene_id for cloud in clouds[:2]]
        client.render(spec_of(scene_id=ids[0]))
        ids.append(client.put(clouds[2]).scene.scene_id)
        listed = {scene.scene_id for scene in client.scene_stub.List(scene_pb2.ListRequest(), timeout=60).scenes}
        assert listed == {ids[0], ids[2]}
        assert process.metric("lumigrad_evictions_total", store="scenes", reason="room") == 1
        assert process.metric("lumigrad_scenes") == 2
        # The content can be put again, because the eviction removed its hash too.
        assert not client.put(clouds[1]).existed
        client.close()


def test_a_scene_of_unaligned_or_inline_tensors_is_the_same_scene(client: RawClient) -> None:
    cloud = sphere_cloud(10, seed=17)
    expected = client.put(cloud).scene
    scene = scene_pb2.Scene()
    data = b"\0"
    for name in ("positions", "colors"):
        tensor = getattr(scene.spheres, name)
        tensor.dtype = 1
        tensor.shape.extend(cloud[name].shape)
        tensor.payload.offset, tensor.payload.length = len(data), cloud[name].nbytes
        data += cloud[name].tobytes()
    scene.spheres.radii.dtype = 1
    scene.spheres.radii.shape.append(10)
    scene.spheres.radii.inline = cloud["radii"].tobytes()
    request = scene_pb2.PutRequest(scene=scene, payload_bytes=len(data))
    reply = client.scene_stub.Put(iter([Frame(request, memoryview(data))]), timeout=SECONDS)
    assert reply.existed
    assert reply.scene == expected


def test_an_empty_scene_can_be_stored(client: RawClient) -> None:
    scene = client.put(sphere_cloud(0)).scene
    assert (scene.count, scene.bytes) == (0, 0)
    assert client.render(spec_of(scene_id=scene.scene_id)).arrays["color"].min() == 1


def test_frames_of_any_size_make_a_payload(client: RawClient) -> None:
    cloud = sphere_cloud(20, seed=18)
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(cloud, payload), payload_bytes=payload.length)
    whole = b"".join(payload.buffers)
    pieces = [Frame(None, memoryview(whole[i : i + 7])) for i in range(0, len(whole), 7)]
    reply = client.scene_stub.Put(iter([Frame(header), Frame(None), *pieces]), timeout=SECONDS)
    assert reply.scene.content_hash == hash_of(cloud, FIELDS)


def test_an_update_counts_what_it_copies() -> None:
    kept = KeptTensors.of({name: torch.zeros(count) for name, count in (("a", 10), ("b", 20), ("c", 30))})
    for names, expected in ((["a"], 200), (["b", "c"], 40), (["a", "b", "c"], 0)):
        before = dict(kept.by_name)
        assert kept.copied_bytes(names) == expected
        after = kept.replaced({name: torch.ones(4) for name in names})
        copied = [name for name in before if name not in names and after.by_name[name] is not before[name]]
        assert sum(before[name].nbytes for name in copied) == expected
        # Each tensor has memory of its own now.
        assert after.copied_bytes(["c"]) == 0 or len(names) > 1


def test_an_update_whose_copies_find_no_memory_changes_nothing() -> None:
    sizes = ("--scene-mib", "32", "--max-payload-mib", "32", "--transit-mib", "64", "--lane-mib", "0")
    with worker("--device", "cpu", "--device-memory-mib", "48", *sizes) as process, RawClient(process.target) as client:
        cloud = sphere_cloud(1_000_000)
        scene = client.put(cloud).scene
        # The update has 4 MB, and the tensors that share its buffer have 24 MB.
        error = failure(lambda: client.update(scene.scene_id, 1, {"radii": cloud["radii"] * 2}))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        short = detail(error, errors_pb2.DeviceMemoryShort)
        assert short.asked_bytes == scene.bytes > short.available_bytes
        (listed,) = client.scene_stub.List(scene_pb2.ListRequest(), timeout=60).scenes
        assert listed == scene and process.metric("lumigrad_predicted_bytes") == 0


def pages_of(list_scenes: Any, page_size: int) -> list[list[str]]:
    """Returns the scene ids of each page of a list."""
    pages, token = [], ""
    while not pages or token:
        reply = list_scenes(scene_pb2.ListRequest(page_size=page_size, page_token=token))
        pages.append([info.scene_id for info in reply.scenes])
        token = reply.next_page_token
    return pages


def test_a_list_comes_in_pages_that_together_have_each_scene_once(client: RawClient) -> None:
    ids = [client.put(sphere_cloud(3, seed=900 + seed)).scene.scene_id for seed in range(7)]
    whole = [info.scene_id for info in client.scene_stub.List(scene_pb2.ListRequest(), timeout=SECONDS).scenes]
    assert set(ids) <= set(whole) and len(set(whole)) == len(whole)
    for page_size in (1, 3, len(whole), 1000):
        pages = pages_of(lambda request: client.scene_stub.List(request, timeout=SECONDS), page_size)
        assert [scene_id for page in pages for scene_id in page] == whole
        assert max(map(len, pages)) <= page_size
    for scene_id in ids:
        delete(client, scene_id)


def test_a_list_that_one_reply_cannot_hold_is_refused_or_split(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = [scene_pb2.SceneInfo(scene_id=f"{number:032x}", kind="spheres") for number in range(50)]
    stored = [SimpleNamespace(scene_id=info.scene_id, content_hash="", info=lambda info=info: info) for info in infos]
    runtime = SimpleNamespace(spool=None, scenes=SimpleNamespace(all=lambda: stored[::-1]), named=NamedScenes())
    tenants: Any = SimpleNamespace(of=lambda _: runtime)
    call = Call("Test.Call", Caller())

    def list_scenes(request: scene_pb2.ListRequest) -> scene_pb2.ListReply:
        try:
            return scene_service.SceneService(tenants).List(request, call)
        finally:
            # A turn changes how often the threads of the process switch, so it is given back.
            call.turn.give()

    assert pages_of(list_scenes, 0) == [[info.scene_id for info in infos]]
    monkeypatch.setattr(scene_service, "_MOST_LISTED_BYTES", 1000)
    pages = pages_of(list_scenes, 40)
    assert [scene_id for page in pages for scene_id in page] == [info.scene_id for info in infos]
    assert 1 < len(pages) < 10
    with pytest.raises(BusyError, match=r"50 scenes.*page_size"):
        list_scenes(scene_pb2.ListRequest())
