"""Scenes on a real worker: stored once, changed with versions, and put again when a worker lost them."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Client, InvalidArgument, SceneHandle, SceneNotFound, Spheres, VersionMismatch
from support.ports import reserved_port
from support.workers.worker import worker

CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), width=32, height=24)


def cloud(seed: int, count: int = 30, opacities: bool = False) -> Spheres:
    generator = np.random.default_rng(seed)
    return Spheres(
        generator.uniform(-1, 1, (count, 3)),
        generator.random((count, 3)),
        0.1 + 0.2 * generator.random(count),
        generator.random(count) if opacities else None,
    )


def test_a_scene_is_uploaded_once(client, worker_process):
    scene = cloud(100, count=5000, opacities=True)
    first = client.put(scene)
    assert (first.version, first.kind, first.count, first.nbytes) == (1, "spheres", 5000, scene.nbytes)
    assert first.scene is scene
    puts = worker_process.metric("lumigrad_calls_total", method="SceneService.Put", code="OK")
    again = client.put(Spheres(**scene.tensors))
    assert again == first
    assert worker_process.metric("lumigrad_calls_total", method="SceneService.Put", code="OK") == puts


def test_get_list_and_delete(client):
    handle = client.put(cloud(102, opacities=True))
    assert client.get(handle.scene_id) == handle
    assert client.get(handle.scene_id).scene is None
    downloaded = client.get(handle.scene_id, with_tensors=True).scene
    for name, array in handle.scene.tensors.items():
        np.testing.assert_array_equal(downloaded.tensors[name], array)
    assert handle in client.list()
    client.delete(handle)
    assert handle not in client.list()
    with pytest.raises(SceneNotFound) as lost:
        client.get(handle.scene_id)
    assert lost.value.scene_id == handle.scene_id
    with pytest.raises(SceneNotFound):
        client.delete(handle.scene_id)


def test_update_replaces_tensors_and_counts_versions(client):
    first = client.put(cloud(103))
    colors = np.zeros((30, 3))
    second = client.update(first, colors=colors)
    assert (second.scene_id, second.version) == (first.scene_id, 2)
    assert second.content_hash == ""
    np.testing.assert_array_equal(second.scene.colors, colors)
    expected = client.render(second.scene, CAMERA, max_depth=8).color
    np.testing.assert_array_equal(client.render(second, CAMERA, max_depth=8).color, expected)
    third = client.update(second, positions=first.scene.positions + 0.5, radii=np.full(30, 0.05))
    assert third.version == 3
    stored = client.get(third.scene_id, with_tensors=True).scene
    np.testing.assert_array_equal(stored.positions, first.scene.positions + np.float32(0.5))
    np.testing.assert_array_equal(stored.colors, 0)


def test_an_old_handle_is_refused(client):
    first = client.put(cloud(104))
    second = client.update(first, colors=np.ones((30, 3)))
    for call in (lambda: client.render(first, CAMERA), lambda: client.update(first, colors=np.zeros((30, 3)))):
        with pytest.raises(VersionMismatch) as refused:
            call()
        assert (refused.value.expected, refused.value.actual) == (1, 2)
    assert client.get(second.scene_id).version == 2


def test_updates_are_checked(client):
    handle = client.put(cloud(105))
    with pytest.raises(InvalidArgument, match=r"^tensors: expected at least one"):
        client.update(handle)
    with pytest.raises(InvalidArgument, match=r"^colors: expected shape \[30, K\], got \[29, 3\]"):
        client.update(handle, colors=np.zeros((29, 3)))
    with pytest.raises(InvalidArgument, match="shape"):
        client.update(client.get(handle.scene_id), colors=np.zeros((29, 3)))
    assert client.get(handle.scene_id).version == 1


def test_a_lost_scene_is_put_again_unnoticed(client):
    handle = client.put(cloud(106))
    before = client.render(handle, CAMERA).color
    client.delete(handle)
    np.testing.assert_array_equal(client.render(handle, CAMERA).color, before)
    restored = client.put(handle.scene)
    assert restored.scene_id != handle.scene_id and restored in client.list()
    # The old handle names the restored scene, for every call.
    client.delete(handle)
    assert restored not in client.list()


def test_a_lost_scene_without_a_copy_is_an_error(client):
    handle = client.get(client.put(cloud(107)).scene_id)
    client.delete(handle)
    with pytest.raises(SceneNotFound):
        client.render(handle, CAMERA, max_depth=8)


def test_what_a_restarted_worker_lost_is_put_again_updates_included():
    with reserved_port() as port, worker("--device", "cpu", port=port) as process:
        client = Client(process.target, retry_s=60)
        first = client.put(cloud(108))
        second = client.update(first, colors=np.zeros((30, 3)))
        untouched = client.put(cloud(110))
        expected = [client.render(handle, CAMERA).color for handle in (second, untouched)]
        process.process.kill()
        process.wait()
        with worker("--device", "cpu", port=port), Client(process.target) as other, client:
            # Another client stores the original content.
            assert other.put(first.scene).version == 1
            for handle, color in zip((second, untouched), expected, strict=True):
                np.testing.assert_array_equal(client.render(handle, CAMERA).color, color)
            # The handle still works, for updates as well.
            third = client.update(second, colors=np.full((30, 3), 0.5))
            color = client.render(third, CAMERA, background=0.5).color
            np.testing.assert_allclose(color, 0.5, atol=1e-6)


def test_handles_are_plain_values(client):
    handle = client.put(cloud(109))
    assert isinstance(handle, SceneHandle)
    assert "scene=" not in repr(handle)
    assert {handle: 1}[client.put(cloud(109))] == 1
