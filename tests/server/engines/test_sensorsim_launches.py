"""How frames of driving simulators are grouped into launches, and what is kept for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import CancelledError
from lumigrad.server.core.limits import Limits
from lumigrad.server.sensorsim import renders
from lumigrad.server.sensorsim.catalog import Catalog
from lumigrad.server.sensorsim.frames import DriveFrame, frame_of
from support.driving.scenes import WIDE, frame, street

HASH = "content"
LIMITS = Limits.of(Config())


class Stored:
    content_hash = HASH


class Patient:
    """A call that ends after a number of checks."""

    def __init__(self, checks: int = 1 << 30) -> None:
        self.left = checks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CancelledError


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    place = street(tmp_path_factory.mktemp("scenes"))
    made = Catalog.open(str(place.folder))
    scene = next(iter(made.scenes.values()))
    _, reader = scene.load(lambda nbytes: memoryview(bytearray(nbytes)), lambda _: None)
    scene.stored(HASH, reader)
    return made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DriveFrame]]:
    """The frames for which whole requests were made."""
    made: list[DriveFrame] = []
    whole = DriveFrame.spec

    def spec(self: DriveFrame, *arguments: Any) -> Any:
        made.append(self)
        return whole(self, *arguments)

    monkeypatch.setattr(DriveFrame, "spec", spec)
    yield made


def checked(catalog: Catalog, **fields: Any) -> DriveFrame:
    request = sensorsim_pb2.RGBRenderRequest.FromString(frame(**fields).SerializeToString())
    return frame_of(request, catalog, LIMITS, "", lambda: None)


def grouped(frames: list[DriveFrame], limits: Limits | None = None, call: Any = None) -> list[list[DriveFrame]]:
    found = renders._launches(frames, Stored(), limits or LIMITS, call or Patient())  # type: ignore[arg-type]
    return [launch.frames for launch in found]


def test_frames_at_different_times_are_launches_of_their_own_and_each_is_described_once(
    catalog: Catalog, built: list[DriveFrame]
) -> None:
    frames = [checked(catalog, frame_start_us=1_500_000 + i, frame_end_us=1_500_000 + i) for i in range(200)]
    assert [len(launch) for launch in grouped(frames)] == [1] * 200
    assert built == frames


def test_cameras_of_one_moment_share_a_launch_as_far_as_they_are_near_and_alike(
    catalog: Catalog, built: list[DriveFrame]
) -> None:
    near = [checked(catalog, at=(0.1 * i, 0.0, 1.4)) for i in range(20)]
    far = [checked(catalog, at=(1000.0 + i, 0.0, 1.4)) for i in range(2)]
    wide = [checked(catalog, name=WIDE) for _ in range(2)]
    later = checked(catalog, frame_start_us=2_000_000, frame_end_us=2_000_000)
    mixed = [near[0], far[0], wide[0], later, *near[1:], far[1], wide[1]]
    assert grouped(mixed) == [near, far, wide, [later]]
    assert len(built) == 4


def test_launches_have_at_most_as_many_cameras_as_the_engine_takes(catalog: Catalog) -> None:
    frames = [checked(catalog) for _ in range(7)]
    assert [len(launch) for launch in grouped(frames, dataclasses.replace(LIMITS, cameras=3))] == [3, 3, 1]


def test_a_launch_is_the_request_that_its_frames_have_alone(catalog: Catalog) -> None:
    frames = [checked(catalog, at=(0.5 * i, 0.2, 1.4)) for i in range(3)]
    (launch,) = renders._launches(frames, Stored(), LIMITS, Patient())  # type: ignore[arg-type]
    alone = [each.spec(launch.origin, HASH) for each in frames]
    assert all(spec.gaussians == launch.spec.gaussians for spec in alone)
    assert [spec.cameras[0] for spec in alone] == list(launch.spec.cameras)


def test_grouping_ends_with_the_call(catalog: Catalog, built: list[DriveFrame]) -> None:
    frames = [checked(catalog, frame_start_us=1_500_000 + i, frame_end_us=1_500_000 + i) for i in range(20)]
    with pytest.raises(CancelledError):
        grouped(frames, call=Patient(5))
    assert len(built) == 5


def test_tenants_that_read_files_at_different_times_get_the_slices_of_what_they_read(tmp_path: Path) -> None:
    place = street(tmp_path)
    (scene,) = Catalog.open(str(place.folder)).scenes.values()

    def read(content_hash: str) -> list[int]:
        _, reader = scene.load(lambda nbytes: memoryview(bytearray(nbytes)), lambda _: None)
        scene.stored(content_hash, reader)
        return [end - begin for begin, end in scene.slices(content_hash)]

    before = read("old")
    # The two files are exchanged, so that the number of Gaussians stays the same.
    world, car = (place.file.parent / name for name in ("world.ply", "car.ply"))
    place.car.save(world)
    place.world.save(car)
    assert read("new") == before[::-1]
    assert [end - begin for begin, end in scene.slices("old")] == before


def test_scaled_ego_masks_are_kept_up_to_a_bound_in_bytes(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    name = (WIDE, "rig-1")
    assert catalog.mask(name, 160, 120) is catalog.mask(name, 160, 120)
    for width in range(1000, 1040):
        mask = catalog.mask(name, width, 1000)
        assert mask.size == (width, 1000)
    assert sum(mask.width * mask.height * 4 for mask in catalog._scaled.values()) <= 32 << 20
    # A picture beyond the bound gets its mask, which is not kept.
    assert np.asarray(catalog.mask(name, 3000, 3000)).shape == (3000, 3000, 4)
    assert not catalog._scaled
