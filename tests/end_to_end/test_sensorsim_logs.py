"""Logs of driving simulators: `lumigrad sensorsim` checks scenes and replays logs, and an example learns from one."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lumigrad.client import Client
from lumigrad.client.formats import read_scene, save_scene
from support.driving.fixtures import street_fixture, street_worker_fixture
from support.driving.scenes import FORWARD, FRONT, WIDE, Street, camera_spec, frame, matrix_of, pose
from support.driving.stubs import JPEG, MESSAGES, TOP_TO_BOTTOM
from support.workers.client_load import client_fixture
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess, worker

EXAMPLES = Path(__file__).parents[2] / "examples"

place = street_fixture()
process = street_worker_fixture()
client = client_fixture("process", scope="module")


def log_of(path: Path, *entries: Any) -> Path:
    """A log as AlpaSim writes it: a frame, a batch, and entries of other kinds."""
    raw = b""
    for number, message in entries:
        body = message.SerializeToString()
        length = b""
        size = len(body)
        while size >= 128:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        # The tag of field 21 or 30 takes two bytes.
        tag = number << 3 | 2
        head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
        entry = head + length + bytes([size]) + body
        raw += len(entry).to_bytes(4, "big") + entry
    path.write_bytes(raw)
    return path


def test_the_command_checks_scenes_and_replays_logs(process: WorkerProcess, place: Street, tmp_path: Path) -> None:
    done = lumigrad("sensorsim", "check", str(place.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == [
        "street-1: 1000000 to 3000000 us",
        "  world.ply: 400 Gaussians",
        "  car.ply: 60 Gaussians of track car, automobile",
        "  camera_front_wide_120fov: 160x120, ftheta, GLOBAL",
    ]
    # Two tracks may have the same file.
    copied = shutil.copytree(place.folder, tmp_path / "copied")
    (manifest,) = copied.glob("**/scene.json")
    content = json.loads(manifest.read_text())
    content["tracks"].append({**content["tracks"][0], "track_id": "second"})
    manifest.write_text(json.dumps(content))
    shared = lumigrad("sensorsim", "check", str(copied)).stdout
    assert shared.count("car.ply") == 1 and "of track car, automobile; track second, automobile\n" in shared
    # Doubts go to standard error, here from the check, and to the log of a worker.
    content["trajectories"][0]["poses"] = [[0, 0, 0, 1, 0, 0, 0], [20, 0, 0, 1, 0, 0, 0]]
    manifest.write_text(json.dumps(content))
    doubted = lumigrad("sensorsim", "check", str(copied))
    doubt = "trajectories[0].poses: the rig is upside down: its z axis points down"
    assert doubted.returncode == 0 and f"lumigrad: {manifest}: {doubt}" in doubted.stderr
    with worker("--device", "cpu", "--sensorsim", str(copied)) as other:
        assert other.log.count(doubt) == 1
    # The files themselves may ask for what frames of simulators do not have.
    world = read_scene(manifest.with_name("world.ply"))
    save_scene(replace(world, antialiased=True), manifest.with_name("world.ply"))
    car = read_scene(manifest.with_name("car.ply"))
    save_scene(replace(car, scales=car.scales * np.float32([1, 1, 0])), manifest.with_name("car.ply"))
    doubted = lumigrad("sensorsim", "check", str(copied)).stderr
    assert "world.ply was trained with antialiasing, and is drawn without it" in doubted
    assert "car.ply has surfels, which are drawn as volumes" in doubted
    batch = MESSAGES["Batch"](items=[{"request": frame(WIDE)}, {"request": frame(scene_id="nowhere")}])
    aggregate = MESSAGES["Aggregate"](rgb_requests=[frame(FRONT, image_format=JPEG)])
    entries = ((1, MESSAGES["Empty"]()), (3, frame(FRONT)), (30, batch), (21, aggregate))
    log = log_of(tmp_path / "rollout.asl", *entries)
    pictures = tmp_path / "pictures"
    options = ("--pictures", str(pictures), "--target", process.target)
    replayed = lumigrad("sensorsim", "replay", str(log), *options)
    assert replayed.returncode == 1
    lines = replayed.stdout.splitlines()
    assert lines[0].endswith("NOT_FOUND: items[1].request.scene_id: expected one of street-1, got nowhere")
    assert lines[1].startswith("3 calls, 4 frames, 1 error; ")
    assert sorted(path.suffix for path in pictures.iterdir()) == [".jpg", ".png", ".png"]
    log.write_bytes(log.read_bytes()[:-5])
    cut = lumigrad("sensorsim", "replay", str(log), *options)
    assert "but it is cut off" in cut.stderr
    log.write_text("scene_id: street-1\n")
    other = lumigrad("sensorsim", "replay", str(log), *options)
    assert "expected a log of AlpaSim's requests, got a file that begins with no whole entry" in other.stderr
    wrong = lumigrad("sensorsim", "replay", str(log), "--timeout", "-1")
    assert "--timeout" in wrong.stderr
    empty = tmp_path / "scene.json"
    refused = lumigrad("sensorsim", "check", str(empty))
    assert (refused.returncode, "expected a folder" in refused.stderr) == (1, True)


def test_the_example_finds_a_camera_that_was_moved(
    process: WorkerProcess,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = camera_spec(WIDE, shutter_type=TOP_TO_BOTTOM)
    # x right, y down, z forward of the camera; then rotations about them, degrees.
    moved_by, turned_by = np.array([0.04, -0.03, 0.05]), np.array([0.6, -0.4, 0.3])
    wrong = np.eye(4)
    wrong[:3, :3] = Rotation.from_rotvec(turned_by, degrees=True).as_matrix()
    wrong[:3, 3] = moved_by
    requests: dict[str, list[Any]] = {"right": [], "wrong": []}
    for x in (1.5, 3.0):
        ends = [matrix_of(pose((x + more, 0.1, 1.4), FORWARD)) for more in (0.0, 0.4)]
        for name, correction in (("right", np.eye(4)), ("wrong", wrong)):
            poses = [end @ np.linalg.inv(correction) for end in ends]
            start, end = (pose(it[:3, 3], Rotation.from_matrix(it[:3, :3]).as_quat()) for it in poses)
            size = {"resolution_w": 80, "resolution_h": 60}
            requests[name].append(frame(WIDE, at=start, end=end, camera_intrinsics=spec, **size))
    for number, picture in enumerate(client.drive_pictures(requests["right"])):
        (tmp_path / f"{number:06d}-{WIDE}.png").write_bytes(picture.image)
    log = log_of(tmp_path / "rollout.asl", *((3, request) for request in requests["wrong"]))
    monkeypatch.setenv("LUMIGRAD_TARGET", process.target)
    options = [str(log), "--pictures", str(tmp_path), "--iterations", "140"]
    monkeypatch.setattr(sys, "argv", ["refine_extrinsics.py", *options])
    runpy.run_path(str(EXAMPLES / "refine_extrinsics.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    found, end = ([float(it) for it in re.findall(r"[+-][0-9.]+", line)] for line in lines[-2:])
    assert np.linalg.norm(found[:3] - moved_by) < 0.25 * np.linalg.norm(moved_by)
    assert np.linalg.norm(found[3:] - turned_by) < 0.2 * np.linalg.norm(turned_by)
    assert np.abs(end[:3]).max() < 0.02
    monkeypatch.setattr(sys, "argv", ["refine_extrinsics.py", str(log), "--pictures", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="none: expected PNG pictures, named as"):
        runpy.run_path(str(EXAMPLES / "refine_extrinsics.py"), run_name="__main__")
