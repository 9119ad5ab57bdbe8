"""Reconstructions that place all cameras, but wrongly."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera
from lumigrad.client.cli import main
from lumigrad.client.datasets import Capture, View, colmap_run
from lumigrad.client.datasets.doubts import LEAST_AGREEMENT, DoubtfulCameras, agreement
from lumigrad.client.datasets.view import Track
from lumigrad.client.errors import InvalidArgument

COUNT, POINTS = 36, 300


def cameras(step_degrees: float = 10.0) -> dict[int, Camera]:
    """Cameras on a circle, by image id."""
    orbit = {"width": 64, "height": 48, "fov_degrees": 50}
    return {k + 5: Camera.orbit((0, 0, 0), 4.0, step_degrees * k, 20.0, **orbit) for k in range(COUNT)}


def tracks(seed: int = 0) -> list[Track]:
    """Points, each seen by most of the photographs from within 25 degrees of a direction."""
    rng = np.random.default_rng(seed)
    rows = [[k % COUNT for k in range(first - 2, first + 3)] for first in rng.integers(0, COUNT, POINTS)]
    return [Track(rng.uniform(-0.5, 0.5, 3), np.array(row)[rng.random(5) < 0.8] + 5) for row in rows]


def folded() -> dict[int, Camera]:
    """Each third of the circle on top of the first, as for a subject that looks alike from three sides."""
    right = cameras()
    return {key: right[5 + (key - 5) % (COUNT // 3)] for key in right}


def write(folder: Path, placed: dict[int, Camera]) -> Path:
    """Writes a reconstruction; `Capture.save` writes all of it but the tracks."""
    Capture(tuple(View(f"p{key}", camera) for key, camera in placed.items())).save(folder, form="colmap")
    lines = []
    for number, track in enumerate(tracks(), 1):
        seen = (value for key in track.image_ids for value in (key - 4, 0))
        lines.append(" ".join(map(str, (number, *track.place, 9, 9, 9, 0.5, *seen))))
    (folder / "sparse" / "0" / "points3D.txt").write_text("\n".join(lines))
    return folder


def test_photographs_that_were_put_on_top_of_each_other_disagree() -> None:
    right, wrong = agreement(tracks(), cameras()), agreement(tracks(), folded())
    assert right is not None and wrong is not None
    assert wrong < LEAST_AGREEMENT - 0.1 < LEAST_AGREEMENT + 0.1 < right


def test_any_number_of_far_or_hidden_cameras_does_not_count() -> None:
    placed, found = cameras(), tracks()
    expected = agreement(found, placed)
    behind = {100 + k: Camera.look_at((0, 0, 9 + k), (0, 0, 20), width=64, height=48) for k in range(9)}
    assert agreement(found, {**placed, **behind}) == expected
    shuffled = [replace(track, image_ids=np.tile(track.image_ids[::-1], 2)) for track in found]
    assert agreement(shuffled, placed) == expected


def test_nothing_is_said_without_evidence() -> None:
    assert agreement([], cameras()) is None
    assert agreement([Track(np.zeros(3), np.zeros(0, np.int64))] * 500, cameras()) is None
    # Photographs 30 degrees apart, of which none is near another.
    assert agreement(tracks(), cameras(30.0) | {key: cameras()[5] for key in range(900, 902)}) is not None
    apart = {key: camera for key, camera in cameras().items() if key % 3 == 0}
    assert agreement(tracks(), apart) is None


def test_a_data_set_warns_of_cameras_that_are_probably_wrong(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Capture.load(write(tmp_path / "right", cameras()))) == COUNT
    with pytest.warns(DoubtfulCameras, match="the cameras are probably wrong: only"):
        Capture.load(write(tmp_path / "wrong", folded()))


def test_commands_say_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "wrong", folded())
    assert main(["fit", str(folder), "-o", str(tmp_path / "scene.ply"), "--target", "localhost:1"]) != 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "probably wrong" in line]
    assert lines and all(line.startswith("lumigrad: ") for line in lines)


@pytest.mark.parametrize("image_id", ["1.5", "x", "9" * 30])
def test_tracks_that_name_no_photograph_are_an_error_of_the_file(tmp_path: Path, image_id: str) -> None:
    points = write(tmp_path, cameras()) / "sparse" / "0" / "points3D.txt"
    points.write_text(f"1 0 0 0 9 9 9 0.5 {image_id} 0\n")
    with pytest.raises(InvalidArgument, match=r"points3D\.txt: expected .* pairs of IMAGE_ID POINT2D_IDX: "):
        Capture.load(tmp_path)


def test_the_command_ends_with_an_error_and_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, photographs, output = tmp_path / "made", tmp_path / "photographs", tmp_path / "garden"
    write(made, folded())
    photographs.mkdir()
    for key in folded():
        Image.new("RGB", (64, 48)).save(photographs / f"p{key}.png")

    def run(lines: object, folder: Path, say: object) -> None:
        shutil.copytree(made / "sparse", folder / "colmap" / "sparse")

    monkeypatch.setattr(colmap_run, "run", run)
    monkeypatch.chdir(tmp_path)
    assert main(["capture", "photographs", "-o", "garden"]) == 1
    said = capsys.readouterr()
    assert "the cameras are probably wrong" in said.err and "next:" not in said.out
    assert f"; to use them nevertheless: lumigrad fit garden --images {photographs}" in said.err
    assert not (output / "transforms.json").exists()
    with pytest.warns(DoubtfulCameras):
        assert len(Capture.load(output, images=photographs)) == COUNT
