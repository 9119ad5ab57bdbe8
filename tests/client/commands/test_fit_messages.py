"""Messages of `lumigrad fit` before it needs a worker, and about its result: cameras that look away, colours, files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera
from lumigrad.client.cli import main
from lumigrad.client.commands.fit_messages import plan_text, say_axes, say_colours, say_few_points
from lumigrad.client.datasets import Capture, View
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.cameras import looking_away
from lumigrad.client.fitting.evaluation import Scores
from lumigrad.client.fitting.recipe import Recipe
from lumigrad.client.fitting.shot import divide, shots_of
from support.files.dataset_files import shots, transforms

TOP = {"w": 64, "h": 48, "fl_x": 50.0}


def write(folder: Path, count: int = 8, found: int | None = None, axes: Any = (1, 1, 1)) -> Path:
    """Writes a data set with the first `found` photographs; `axes` multiplies the axes of its matrices."""
    (folder / "images").mkdir()
    for k in range(count if found is None else found):
        Image.new("RGB", (64, 48)).save(folder / "images" / f"photo_{k}.jpg")
    values = transforms(shots(count), **TOP)
    for frame in values["frames"]:
        matrix = np.array(frame["transform_matrix"])
        matrix[:3, :3] *= axes
        frame["transform_matrix"] = matrix.tolist()
    (folder / "transforms.json").write_text(json.dumps(values))
    return folder


def fit(folder: Path, *options: str) -> int:
    """Runs a fit that ends when it needs a worker, since there is none."""
    return main(["fit", str(folder), "-o", str(folder / "scene.ply"), "--target", "127.0.0.1:1", *options])


def test_cameras_with_opencvs_axes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, axes=(1, -1, -1))
    assert fit(tmp_path) != 0
    said = capsys.readouterr().err
    assert f"lumigrad: 8 of 8 cameras of {tmp_path} look away from the point where their axes meet: perhaps" in said
    assert "OpenGL's (y up, z back)" in said


def test_the_plan_counts_masks_and_says_what_they_ignore(tmp_path: Path):
    write(tmp_path)
    (tmp_path / "masks").mkdir()
    content = json.loads((tmp_path / "transforms.json").read_text())

    def plan() -> str:
        capture = Capture.load(tmp_path)
        taken, _ = shots_of(capture, 64, "auto")
        return plan_text(Recipe(), capture, taken, *divide(taken, 4))

    assert "6 photographs to fit, 2 held out, 7,000 steps; background" in plan()
    mask = np.zeros((48, 64), np.uint8)
    mask[12:] = 255
    for number in range(1, 6):
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
        content["frames"][number]["mask_path"] = f"masks/{number}.png"
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    assert "; masks of 5 of 8 photographs: black or transparent is ignored, 25% of photo_1; background" in plan()
    # Grey is not ignored.
    mask[24:36] = 150
    Image.fromarray(mask).save(tmp_path / "masks" / "1.png")
    assert "; masks of 5 of 8 photographs: black or transparent is ignored, 25% of photo_1; background" in plan()


@pytest.mark.parametrize(
    ("count", "options", "said"),
    [
        (5, {}, "has 5 initial points: the fit has at most 15 Gaussians; --cap N allows more"),
        (5, {"given": {"cap"}}, ""),
        (5, {"strategy": "none"}, ""),
        (5, {"begin": Path("scene.ply")}, ""),
        (150, {}, ""),
    ],
)
def test_few_initial_points_are_told(
    capsys: pytest.CaptureFixture[str], count: int, options: dict[str, Any], said: str
):
    usual = {"dataset": Path("folder"), "begin": None, "strategy": "mcmc", "given": set()}
    say_few_points(argparse.Namespace(**{**usual, **options}), Recipe(cap=15), count)
    assert capsys.readouterr().err == (f"lumigrad: folder {said}\n" if said else "")
    say_few_points(argparse.Namespace(**usual), Recipe(kind="spheres"), count)
    assert capsys.readouterr().err == ""


def test_cameras_that_look_at_something_or_ahead_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    capture = Capture.load(write(tmp_path))
    assert looking_away(capture) == 0
    ahead = [Camera.opencv(50, 50, 32, 24, np.eye(3), [0.01 * k, 0.0, -float(k)], 64, 48) for k in range(9)]
    assert looking_away(Capture(tuple(View(str(k), camera) for k, camera in enumerate(ahead)))) == 0
    say_axes(argparse.Namespace(dataset=tmp_path), capture)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("before", "matched", "said"), [(26.0, 28.0, True), (26.0, 27.0, False), (16.3, 20.0, False), (19.0, 25.0, False)]
)
def test_colours_are_a_guess_about_good_fits(before: float, matched: float, said: bool, capsys):
    say_colours(Scores(before, 0.9, before, matched), Background())
    text = capsys.readouterr().err
    assert ("perhaps the photographs differ in exposure (--exposures)" in text) == said
    assert said or not text


def test_missing_photographs_are_told_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit(write(tmp_path, found=5))
    lines = capsys.readouterr().err.splitlines()
    said = "lumigrad: 3 of 8 photographs were not found, the first is images/photo_5.jpg; these views are left out"
    assert said in lines


def test_where_all_photographs_are_missing_the_first_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, found=0)
    values = json.loads((tmp_path / "transforms.json").read_text())
    for frame in values["frames"]:
        frame["file_path"] = "C:\\Users\\jo\\" + Path(frame["file_path"]).name
    (tmp_path / "transforms.json").write_text(json.dumps(values))
    assert fit(tmp_path) == 1
    said = capsys.readouterr().err
    assert r"found 0; the first that is missing is 'C:\\Users\\jo\\photo_0.jpg'; looked where" in said
    assert "--images DIR names another folder, also for paths of another machine" in said


def name_twice(folder: Path, number: int, shift: float) -> None:
    values = json.loads((folder / "transforms.json").read_text())
    again = json.loads(json.dumps(values["frames"][number]))
    again["transform_matrix"][0][3] += shift
    values["frames"].append(again)
    (folder / "transforms.json").write_text(json.dumps(values))


def test_a_photograph_that_is_named_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path)
    for number in (3, 5):
        name_twice(tmp_path, number, 0.0)
    fit(tmp_path)
    said = "lumigrad: 2 photographs are named twice, the first is images/photo_3.jpg; each counts once"
    assert said in capsys.readouterr().err.splitlines()
    with pytest.warns(UserWarning, match="2 photographs are named twice"):
        found, _ = shots_of(Capture.load(tmp_path), 64, "black")
    assert len(found) == 8


def test_a_photograph_that_has_two_cameras_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    name_twice(write(tmp_path), 3, 0.5)
    assert fit(tmp_path) == 1
    said = capsys.readouterr().err
    assert "dataset: images/photo_3.jpg is named twice, by 3_photo_3 and 8_photo_3, with different cameras" in said


def test_one_photograph_is_too_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert fit(write(tmp_path, count=1)) == 1
    assert f"dataset: expected at least two photographs, and {tmp_path} has one\n" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1", "-1", "-3", "2.5"])
def test_so_many_photographs_cannot_be_held_out(tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(fit(write(tmp_path), "--hold-out", number))
    assert ended.value.code == 2
    assert f"--hold-out: expected 0, or a whole number >= 2, got {number}\n" in capsys.readouterr().err


def test_a_sample_scene_is_no_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["fit", "sample:vase", "-o", str(tmp_path / "scene.ply")]))
    assert ended.value.code == 2
    assert "expected photographs, got sample:vase; `lumigrad sample capture DIR` makes some" in capsys.readouterr().err
