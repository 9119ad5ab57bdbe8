"""A damaged, full or unusable spool costs its content, but no call."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, SceneHandle, SceneNotFound
from lumigrad.client.errors import ResourceExhausted
from support.workers.client_load import CAMERA, cloud
from support.workers.forks import lumigrad
from support.workers.slow_render import wait_for
from support.workers.spooling import elsewhere, files, kill, shown, spooling, wait_until_written, without_copy


def test_a_damaged_file_is_a_scene_that_is_put_again(tmp_path: Path) -> None:
    with spooling(tmp_path) as process, Client(process.target, retry_s=60) as client:
        scene = client.put(cloud(1000))
        expected = shown(client, scene)
        wait_until_written(process)
        (path,) = files(tmp_path)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        kill(process)
        named = SceneHandle(scene.scene_id, 1, scene.content_hash, "spheres", scene.count, scene.nbytes)
        with pytest.raises(SceneNotFound):
            client.render(named, CAMERA, max_depth=10)
        assert process.metric("lumigrad_spool_reads_total", kind="scene", result="damaged") == 1
        process.wait_for_log("removing a damaged file from the spool")
        assert not path.exists()
        assert np.array_equal(shown(client, scene), expected)


def test_files_of_a_newer_version_are_left_alone_until_one_that_reads_them_is_back(tmp_path: Path) -> None:
    with spooling(tmp_path) as process, Client(process.target) as client:
        scene = client.put(cloud(1000))
        expected = shown(client, scene)
        wait_until_written(process)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    newer = content.replace(b"lumigrad spool 1", b"lumigrad spool 2", 1)
    path.write_bytes(newer)
    named = SceneHandle(scene.scene_id, 1, scene.content_hash, "spheres", scene.count, scene.nbytes)
    for count in range(2):
        with spooling(tmp_path) as process, Client(process.target, retry_s=0.0) as client:
            told = f"a newer version wrote files of the spool, which stay and are not served files=1 bytes={len(newer)}"
            process.wait_for_log(told)
            assert len(client.list()) == count
            with pytest.raises(SceneNotFound):
                client.render(named, CAMERA, max_depth=10)
            # The same content is stored again, beside the file.
            assert np.array_equal(shown(client, client.put(scene.scene)), expected)
            wait_until_written(process)
        assert path.read_bytes() == newer
    path.write_bytes(content)
    with spooling(tmp_path) as process, Client(process.target) as client:
        assert len(client.list()) == 2
        assert np.array_equal(shown(client, named), expected)


def test_a_scene_too_large_for_a_new_device_is_refused_and_kept(tmp_path: Path) -> None:
    # A scene of 4 MiB.
    scene = cloud(150_000)
    with spooling(tmp_path, supervised=False) as process, Client(process.target) as client:
        large, small = client.put(scene), client.put(cloud())
        expected = shown(client, small)
        wait_until_written(process)
    with (
        spooling(tmp_path, "--device-memory-mib", "3", supervised=False) as process,
        Client(process.target, retry_s=0.0) as client,
    ):
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match=r"--device-memory-mib.*, of which it can have at most 3145728"):
                client.get(large.scene_id)
            with pytest.raises(ResourceExhausted, match="of which it can have at most 3145728"):
                client.render(large, CAMERA, max_depth=10)
            assert np.array_equal(shown(client, small), expected)
        for name in ("lumigrad_predicted_bytes", "lumigrad_transit_bytes"):
            wait_for(process, name, 0)
        assert " ERROR " not in process.log
    with spooling(tmp_path, supervised=False) as process, Client(process.target) as client:
        assert client.get(large.scene_id).nbytes == large.nbytes


def test_a_full_disk_costs_the_spool_and_nothing_else(tmp_path: Path) -> None:
    before = elsewhere(f"mount -t tmpfs -o size=2m tmpfs {tmp_path}")
    with spooling(tmp_path / "spool", before=before) as process, Client(process.target, retry_s=60) as client:
        # 0.7 MiB each, two of which fit.
        handles = []
        for count in range(25_000, 25_003):
            handles.append(client.put(cloud(count)))
            wait_until_written(process)
        large = client.put(cloud(100_000))
        wait_until_written(process)
        for handle in (*handles, large):
            assert shown(client, handle).any()
        process.wait_for_log(f"cannot write to the spool kind=scene spool={tmp_path}/spool")
        assert process.metric("lumigrad_spool_writes_total", kind="scene", result="failed") == 1
        # Older files made way for newer ones, as far as that helped.
        assert process.metric("lumigrad_spool_writes_total", kind="scene", result="written") == 3
        kill(process)
        assert len(client.list()) <= 2
        for handle in (*handles, large):
            assert shown(client, handle).any()


@pytest.mark.parametrize("kind", ["ramfs", "tmpfs -o size=0"])
def test_a_file_system_that_does_not_tell_its_size_keeps_scenes(tmp_path: Path, kind: str) -> None:
    before = elsewhere(f"mount -t {kind} none {tmp_path}")
    with spooling(tmp_path / "spool", before=before) as process, Client(process.target, retry_s=60) as client:
        scene = client.put(cloud())
        expected = shown(client, scene)
        wait_until_written(process)
        kill(process)
        assert np.array_equal(shown(client, without_copy(client, scene)), expected)


def test_names_end_with_the_machines_start_and_content_does_not(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("another start\n")
    before = elsewhere(f"mount --bind {tmp_path / 'boot_id'} /proc/sys/kernel/random/boot_id")
    with spooling(tmp_path / "spool", supervised=False) as process, Client(process.target, retry_s=60) as client:
        scene, changed = client.put(cloud()), client.put(cloud(100))
        changed = client.update(changed, colors=np.zeros((100, 3)))
    with (
        spooling(tmp_path / "spool", supervised=False, before=before) as process,
        Client(process.target, retry_s=60) as client,
    ):
        # An acknowledged update may have been lost with the power, so nobody may make that version again.
        assert client.list() == ()
        for handle in (scene, changed):
            with pytest.raises(SceneNotFound):
                client.get(handle.scene_id)
        again = client.put(scene.scene)
        assert again.scene_id != scene.scene_id and again.content_hash == scene.content_hash
        assert process.metric("lumigrad_calls_total", method="SceneService.Put", code="OK") == 0
        wait_until_written(process)
        assert client.list() == (again,)


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return lumigrad("serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", *options)


def test_a_spool_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    used, file = tmp_path / "spool", tmp_path / "file"
    file.touch()
    with spooling(used, supervised=False):
        for place, why in ((used, "another worker uses it"), (file, "expected a folder, got a file")):
            done = serve("--spool", str(place), "--no-supervisor")
            assert done.returncode == 2, done.stderr
            assert f"--spool: cannot use {place}/0: {why}" in done.stderr
    assert "--spool-mib: expected at least --max-payload-mib = 1024" in serve("--spool", "x", "--spool-mib", "9").stderr


def test_a_spool_that_can_be_used_no_more_does_not_keep_a_worker_from_serving(tmp_path: Path) -> None:
    with spooling(tmp_path / "spool") as process, Client(process.target, retry_s=60) as client:
        scene = client.put(cloud())
        expected = shown(client, scene)
        wait_until_written(process)
        shutil.rmtree(tmp_path / "spool")
        (tmp_path / "spool").touch()
        kill(process)
        assert np.array_equal(shown(client, scene), expected)
        process.wait_for_log("scenes are kept in memory only")
