"""Scenes by address: only those below the folder that the operator serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.driving.scenes import FRONT, frame, street
from support.driving.stubs import DrivingClient
from support.workers.worker import worker

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scene, beside one that is not served."""
    root = tmp_path_factory.mktemp("files")
    street(root / "scenes")
    street(root / "private", "secret")
    return root


@pytest.fixture(scope="module")
def simulator(folder: Path) -> Iterator[DrivingClient]:
    with (
        worker("--device", "cpu", "--sensorsim", str(folder / "scenes")) as process,
        DrivingClient(process.target) as client,
    ):
        # Files that were there when the worker started are the operator's own.
        (folder / "scenes" / "link").symlink_to(folder / "private" / "secret")
        yield client


def headers(url: object, scene_id: str = "") -> list[tuple[str, str]]:
    return [("x-nre-scene-url", str(url)), *([("x-nre-scene-id", scene_id)] if scene_id else [])]


def refusal(simulator: DrivingClient, metadata: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        simulator.call("get_available_scenes", metadata=metadata)
    return refused.value.code(), refused.value.details()


def test_a_scene_that_came_after_the_worker_is_found_by_its_address(simulator: DrivingClient, folder: Path) -> None:
    street(folder / "scenes" / "nested", "later one", seed=9)
    place = folder / "scenes" / "nested" / "later one"
    with pytest.raises(grpc.RpcError, match="expected one of street-1"):
        simulator.call("render_rgb", frame(FRONT, scene_id="later one"))
    for url in (place.as_uri(), (place / "scene.json").as_uri(), f"file://localhost{place.as_posix()}"):
        reply = simulator.call("render_rgb", frame(FRONT, scene_id="later one"), metadata=headers(url, "later one"))
        assert reply.image_bytes
    # The scene is known from then on, even to calls without the address.
    assert list(simulator.call("get_available_scenes").scene_ids) == ["street-1", "later one"]
    assert simulator.call("get_available_cameras", scene_id="later one").available_cameras
    loaded = simulator.call("get_loaded_scenes").scenes
    assert [scene.scene_id for scene in loaded] == ["later one"]


def test_what_is_hardly_meant_in_a_scene_that_came_later_is_in_the_log(tmp_path: Path) -> None:
    street(tmp_path)
    with worker("--device", "cpu", "--sensorsim", str(tmp_path)) as process:
        place = street(tmp_path / "later", "upside down")
        place.write(trajectories=[{"timestamps_us": [1_000_000], "poses": [[0, 0, 0, 1, 0, 0, 0]]}])
        with DrivingClient(process.target) as client:
            for _ in range(2):
                client.call("get_available_scenes", metadata=headers(place.file.as_uri()))
        process.wait_for_log("the rig is upside down")
        assert process.log.count("the rig is upside down") == 1


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/street.usdz",
        "s3://bucket/street-1",
        "street-1",
        "/etc",
        "file:street-1",
        "file://elsewhere/{root}/scenes/street-1",
        "file://{root}/private/secret",
        "file://{root}/scenes/../private/secret",
        "file://{root}/scenes/%2e%2e/private/secret",
        "file://{root}/scenes/link",
        "file://{root}/scenes/street-1?x=1",
        "file://{root}/scenes/street-1%00",
        "file://{root}/scenes-2",
        "file://[",
        "file:///proc/self",
    ],
)
def test_every_other_address_is_refused_by_name(simulator: DrivingClient, folder: Path, address: str) -> None:
    url = address.replace("{root}", str(folder))
    code, text = refusal(simulator, headers(url))
    assert code == Code.INVALID_ARGUMENT
    assert text.startswith("x-nre-scene-url: expected the file: address of a folder with a scene.json")


def test_what_is_wrong_with_a_scene_is_told_without_paths(simulator: DrivingClient, folder: Path) -> None:
    scenes = folder / "scenes"
    code, text = refusal(simulator, headers((scenes / "nothing").as_uri()))
    assert code == Code.NOT_FOUND and text.startswith("x-nre-scene-url: ")
    code, text = refusal(simulator, headers((scenes / ("long" * 100)).as_uri()))
    assert code == Code.NOT_FOUND
    code, text = refusal(simulator, headers((scenes / "street-1").as_uri(), "another"))
    assert (code, text) == (
        Code.INVALID_ARGUMENT,
        "x-nre-scene-id: expected street-1, as its manifest says, got another",
    )
    made = street(scenes, "broken")
    made.write(gaussians=[{"file": "missing.ply"}])
    code, text = refusal(simulator, headers((scenes / "broken").as_uri()))
    assert code == Code.FAILED_PRECONDITION
    assert text.startswith("x-nre-scene-url: scene.json: gaussians[0].file") and str(folder) not in text
    unmasked = street(scenes, "unmasked")
    mask = {"camera_logical_id": "roof", "rig_config_id": "rig-2"}
    unmasked.write(ego_masks=[{**mask, "image": "hood.png"}, {**mask, "rig_config_id": "rig-3", "image": "scene.json"}])
    code, text = refusal(simulator, headers((scenes / "unmasked").as_uri()))
    assert code == Code.FAILED_PRECONDITION
    assert "ego_masks: scene.json: expected a picture" in text and str(folder) not in text
    masks = simulator.call("get_available_ego_masks").ego_mask_metadata
    assert "roof" not in [known.ego_mask_id.camera_logical_id for known in masks]
    copy = street(scenes / "nested", "street-2", seed=3)
    copy.file.write_text(json.dumps({**copy.manifest, "scene_id": "street-1"}))
    code, text = refusal(simulator, headers(copy.file.as_uri()))
    assert code == Code.INVALID_ARGUMENT and "that of another folder" in text
    assert next(iter(simulator.call("get_available_scenes").scene_ids)) == "street-1"
