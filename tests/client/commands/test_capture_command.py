"""`lumigrad capture` with programs and packages that stand in for COLMAP."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from lumigrad.client import Camera
from lumigrad.client.cli import main
from lumigrad.client.datasets import Capture, Points, View, colmap_run

# The mapper copies the reconstruction that lies beside the program.
_PROGRAM = """\
#!{python}
import pathlib, shutil, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as file:
    print(*sys.argv[1:], file=file)
if sys.argv[1:] == ["help"]:
    print("COLMAP 3.8 (Commit Unknown on Unknown without CUDA)")
elif sys.argv[-1] == "-h":
    print({{"feature_extractor": "--SiftExtraction.use_gpu", "mapper": ""}}.get(sys.argv[1], "--SiftMatching.use_gpu"))
elif sys.argv[1] == "mapper":
    if (here / "broken").exists():
        sys.exit("no good initial pair")
    if (here / "sparse").exists():
        shutil.copytree(here / "sparse" / "0", pathlib.Path(sys.argv[-1]) / "0")
"""
_PACKAGE = """\
import pathlib, shutil
class CameraMode:
    SINGLE, AUTO = "SINGLE", "AUTO"
here = pathlib.Path(__file__).parent
def note(*words):
    with (here / "calls").open("a") as file:
        print(*words, file=file)
def extract_features(database, photographs, camera_mode):
    note("extract", database, photographs, camera_mode)
def match_sequential(database):
    note("sequential", database)
def incremental_mapping(database, photographs, output):
    note("map", database, photographs)
    shutil.copytree(here / "sparse" / "0", pathlib.Path(output) / "0")
"""


def photographs(folder: Path, count: int = 6, suffix: str = ".jpg", focal: float | IFDRational | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    exif = Image.Exif()
    if focal is not None:
        exif.get_ifd(0x8769)[0x920A] = focal
    for k in range(count):
        Image.new("RGB", (64, 48)).save(folder / f"p{k}{suffix}", exif=exif)
    return folder


def reconstruction(folder: Path, count: int) -> Capture:
    """A reconstruction of the first photographs."""
    cameras = [Camera.orbit((0, 0, 0), 4.0, 40.0 * k, 20.0, width=64, height=48) for k in range(count)]
    views = tuple(View(f"p{k}", camera, folder / "images" / f"p{k}.jpg") for k, camera in enumerate(cameras))
    capture = Capture(views, Points(np.eye(3), np.full((3, 3), 0.5)))
    capture.save(folder, form="colmap")
    return capture


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with the program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "colmap").write_text(_PROGRAM.format(python=sys.executable))
    (folder / "colmap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def without_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def test_photographs_get_cameras_and_become_a_data_set(tmp_path: Path, program: Path, capsys):
    source, expected = photographs(tmp_path / "holiday"), reconstruction(program, 5)
    assert main(["capture", str(source), "-o", str(tmp_path / "out" / "garden")]) == 0
    out, err = capsys.readouterr()
    assert f"{tmp_path}/out/garden: cameras of 5 of 6 photographs, 3 points\nnext: lumigrad fit {tmp_path}" in out
    assert "6 photographs of one camera\n" in err and "step 2 of 3: matches photographs\n" in err
    assert "1 of 6 photographs has no camera, the first is p5.jpg: each thing has to be sharp in three" in err
    found = Capture.load(tmp_path / "out" / "garden")
    assert [view.image.resolve() for view in found.views] == [source / f"p{k}.jpg" for k in range(5)]
    for view, other in zip(found.views, expected.views, strict=True):
        np.testing.assert_allclose(view.camera.view_matrix, other.camera.view_matrix, atol=1e-6)
    calls = [
        line for line in (program / "calls").read_text().splitlines() if line != "help" and not line.endswith("-h")
    ]
    database = f"--database_path {tmp_path}/out/garden/colmap/database.db"
    assert calls[0].startswith(f"feature_extractor {database} --image_path {source} --ImageReader.single_camera 1")
    assert calls[0].endswith(" --SiftExtraction.use_gpu 0") and calls[2].startswith(f"mapper {database}")
    assert calls[1] == f"exhaustive_matcher {database} --SiftMatching.use_gpu 0"


def test_lenses_that_differ_are_several_cameras(tmp_path: Path, program: Path, capsys):
    reconstruction(program, 5)
    source = photographs(tmp_path / "holiday", focal=4.2)
    photographs(source, 3, ".tif", focal=1.5)
    assert main(["capture", str(source), "-o", str(tmp_path / "garden")]) == 0
    assert "9 photographs of several cameras or focal lengths" in capsys.readouterr().err
    assert "--ImageReader.single_camera 0" in (program / "calls").read_text()


def test_photographs_of_equal_names_are_told_apart(tmp_path: Path, program: Path, capsys):
    source = tmp_path / "holiday"
    source.mkdir()
    for folder in ("left", "right"):
        photographs(source / folder, 3)
    taken = reconstruction(tmp_path / "taken", 4)
    files = ["left/p0.jpg", "left/p1.jpg", "left/p2.jpg", "right/p0.jpg"]
    views = [replace(view, image=program / "images" / file) for view, file in zip(taken.views, files, strict=True)]
    Capture(tuple(views), taken.points).save(program, form="colmap")
    assert main(["capture", str(source), "-o", str(tmp_path / "garden")]) == 0
    assert "2 of 6 photographs have no camera, the first is right/p1.jpg: each" in capsys.readouterr().err


def test_a_focal_length_that_is_no_number_is_none(tmp_path: Path, program: Path, capsys):
    reconstruction(program, 6)
    source = photographs(tmp_path / "holiday", focal=IFDRational(0, 0))
    assert main(["capture", str(source), "-o", str(tmp_path / "garden")]) == 0
    assert "6 photographs of one camera\n" in capsys.readouterr().err


def test_the_package_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_program: None):
    (tmp_path / "pycolmap.py").write_text(_PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = photographs(tmp_path / "frames")
    reconstruction(tmp_path, 6)
    assert main(["capture", str(source), "-o", str(tmp_path / "walk"), "--sequential"]) == 0
    database = tmp_path / "walk" / "colmap" / "database.db"
    lines = [f"extract {database} {source} SINGLE", f"sequential {database}", f"map {database} {source}"]
    assert (tmp_path / "calls").read_text().splitlines() == lines
    assert len(Capture.load(tmp_path / "walk")) == 6


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_program: None, capsys):
    def said(source: Path) -> str:
        assert main(["capture", str(source), "-o", str(tmp_path / "out")]) in (1, 2)
        return capsys.readouterr().err

    monkeypatch.setattr(colmap_run, "find_spec", lambda name: None)
    source = photographs(tmp_path / "holiday")
    assert 'needs COLMAP; install it with: pip install "lumigrad[capture]", or as a program' in said(source)
    assert "got a video; ffmpeg -i walk.mp4 -vf fps=2" in said(Path("walk.mp4"))
    (tmp_path / "phone").mkdir()
    (tmp_path / "phone" / "IMG_1.HEIC").write_bytes(b"")
    assert "at least 3 photographs" in (text := said(tmp_path / "phone")) and "1 in HEIC; convert to JPEG" in text
    assert main(["fit", str(source), "-o", str(tmp_path / "a.ply")]) == 1
    assert "photographs alone have no cameras: `lumigrad capture` finds them" in capsys.readouterr().err


def test_photographs_that_colmap_does_not_read_are_counted(tmp_path: Path, program: Path, capsys):
    source, _ = photographs(tmp_path / "holiday"), reconstruction(program, 6)
    for name in ("a.heic", "b.HEIC", "c.avif", "d.dng", "notes.txt", "._p0.jpg"):
        (source / name).write_bytes(b"")
    assert main(["capture", str(source), "-o", str(tmp_path / "out")]) == 0
    said = "leaves out what COLMAP does not read: 1 in AVIF, 1 in DNG, 2 in HEIC; convert to JPEG\n"
    assert said in (err := capsys.readouterr().err) and "lumigrad: 6 photographs" in err


@pytest.mark.parametrize("broken", [True, False])
def test_a_failure_of_colmap_is_told(tmp_path: Path, program: Path, broken: bool, capsys):
    if broken:
        (program / "broken").touch()
    assert main(["capture", str(photographs(tmp_path / "holiday")), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    ended = "colmap mapper ended with exit status 1: no good initial pair"
    assert (ended if broken else "COLMAP found no cameras for") in said
    assert not (tmp_path / "out" / "transforms.json").exists()


def test_another_data_set_is_not_overwritten(tmp_path: Path, program: Path, capsys):
    reconstruction(program, 6)
    source, output = photographs(tmp_path / "holiday"), tmp_path / "garden"
    for _ in range(2):
        assert main(["capture", str(source), "-o", str(output)]) == 0
    (output / "colmap" / "log.txt").unlink()
    kept = (output / "transforms.json").read_bytes()
    assert main(["capture", str(source), "-o", str(output)]) == 2
    assert "--output: expected a new folder, or one that this command made" in capsys.readouterr().err
    assert (output / "transforms.json").read_bytes() == kept and (output / "colmap" / "sparse").is_dir()
    reconstruction(tmp_path / "other", 6)
    assert main(["capture", str(source), "-o", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other" / "transforms.json").exists()
