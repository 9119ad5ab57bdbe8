"""Manifests of driving scenes that calls name by address are only read again when they have changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc import StatusCode

from lumigrad.protos.drive.manifest import Manifest, read_manifest
from lumigrad.server.core.errors import InvalidArgumentError, SceneFilesError
from lumigrad.server.rpc.status import answer_to
from lumigrad.server.sensorsim import catalog
from support.driving.scenes import street


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def reading(file: Path) -> Manifest:
        names.append(file.parent.name)
        return read_manifest(file)

    monkeypatch.setattr(catalog, "read_manifest", reading)
    return names


def test_a_manifest_is_read_once_until_it_changes(tmp_path: Path, read: list[str]) -> None:
    scenes = catalog.Catalog([], lambda path: None, tmp_path)
    made = street(tmp_path, "one")
    for _ in range(3):
        scenes.admit(made.file.as_uri(), "one")
        scenes.admit(made.file.parent.as_uri(), "")
    assert (read, list(scenes.scenes)) == (["one"], ["one"])
    with pytest.raises(InvalidArgumentError):
        scenes.admit(made.file.as_uri(), "two")
    made.file.write_text(json.dumps({**made.manifest, "version": 0}))
    for _ in range(2):
        with pytest.raises(SceneFilesError):
            scenes.admit(made.file.as_uri(), "one")
    assert len(read) == 3


def test_what_is_refused_is_not_remembered(tmp_path: Path, read: list[str]) -> None:
    scenes = catalog.Catalog([], lambda path: None, tmp_path)
    scenes.admit(street(tmp_path, "one").file.as_uri(), "")
    copy = street(tmp_path / "nested", "two")
    copy.file.write_text(json.dumps({**copy.manifest, "scene_id": "one"}))
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="another folder"):
            scenes.admit(copy.file.as_uri(), "one")
    assert len(read) == 3


def test_another_attempt_can_help_where_files_have_changed(tmp_path: Path) -> None:
    scene = catalog.DriveScene(read_manifest(street(tmp_path, "one").file), lambda path: None)
    with pytest.raises(SceneFilesError, match="its files have changed since they were read; try again") as changed:
        scene.slices("another content")
    answer = answer_to(changed.value, "id")
    assert (answer.code, len(answer.details)) == (StatusCode.UNAVAILABLE, 1)
    assert isinstance(answer.details[0], RetryInfo)
