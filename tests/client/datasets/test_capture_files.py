"""Names of photographs, masks and points in data sets, as other machines write them, and files that are missing."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import InvalidArgument
from lumigrad.client.datasets import Capture
from lumigrad.client.fitting.shot import shots_of
from support.files.dataset_files import shots, transforms, write_cameras_json, write_colmap

SIZE = (64, 48)
TOP = {"w": 64, "h": 48, "fl_x": 50.0}
LENS = [50.0, 50.0, 32.0, 24.0]


def picture(path: Path, level: int = 0) -> Path:
    """Saves a picture of one grey level, by which tests recognize it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", SIZE, level).save(path)
    return path


def levels(capture: Capture) -> list[int]:
    return [int(np.asarray(Image.open(view.image))[0, 0]) for view in capture.views]


def write_frames(folder: Path, files: list[str], **top: object) -> Path:
    """Writes a transforms.json with exactly these names of photographs."""
    values = transforms(shots(len(files)), **TOP, **top)
    for frame, file in zip(values["frames"], files, strict=True):
        frame["file_path"] = file
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "transforms.json").write_text(json.dumps(values))
    return folder


def name_masks(folder: Path, name: str) -> None:
    """Names the mask of each photograph in the transforms.json, by its number."""
    values = json.loads((folder / "transforms.json").read_text())
    for k, frame in enumerate(values["frames"]):
        frame["mask_path"] = name.format(k)
    (folder / "transforms.json").write_text(json.dumps(values))


def write_reconstruction(folder: Path, files: list[str], place: str = "sparse/0", binary: bool = True) -> Path:
    taken = shots(len(files))
    for shot, file in zip(taken, files, strict=True):
        shot.file = file
    write_colmap(folder / place, taken, "PINHOLE", LENS, SIZE, binary=binary)
    return folder


FORMS = {"transforms": write_frames, "colmap": write_reconstruction}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("images", [None, "images"])
def test_separators_of_windows_are_those_of_paths(tmp_path: Path, form: str, images: str | None):
    for k in range(3):
        picture(tmp_path / "images" / "left" / f"v{k}.png", 10 * k)
    prefix = "" if form == "colmap" else "images\\"
    capture = Capture.load(FORMS[form](tmp_path, [f"{prefix}left\\v{k}.png" for k in range(3)]), images=images)
    assert levels(capture) == [0, 10, 20] and [view.name for view in capture.views] == ["v0", "v1", "v2"]


def test_masks_and_points_have_such_names_too(tmp_path: Path):
    for k in range(2):
        picture(tmp_path / "images" / f"v{k}.png")
        picture(tmp_path / "masks" / f"m{k}.png", 255)
    axes = "".join(f"property float {axis}\n" for axis in "xyz")
    (tmp_path / "points.ply").write_text(f"ply\nformat ascii 1.0\nelement vertex 1\n{axes}end_header\n1 2 3")
    write_frames(tmp_path, ["images\\v0.png", "images\\v1.png"], ply_file_path=".\\points.ply")
    name_masks(tmp_path, ".\\masks\\m{}.png")
    capture = Capture.load(tmp_path)
    assert [view.mask for view in capture.views] == [tmp_path / "masks" / f"m{k}.png" for k in range(2)]
    assert capture.points is not None and capture.points.positions.tolist() == [[1, 2, 3]]
    np.testing.assert_array_equal(capture.points.colors, [[0.5] * 3])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_have_two_forms(tmp_path: Path, form: str, written: str, stored: str):
    names = ["Küche/Bär.png", "Küche/é à.png"]
    for k, name in enumerate(names):
        picture(tmp_path / "images" / unicodedata.normalize(stored, name), 10 * k)
    prefix = "" if form == "colmap" else "images/"
    capture = Capture.load(FORMS[form](tmp_path, [prefix + unicodedata.normalize(written, name) for name in names]))
    assert levels(capture) == [0, 10]


@pytest.mark.parametrize("form", FORMS)
def test_letters_may_be_small_where_they_are_written_large(tmp_path: Path, form: str):
    for k in range(2):
        picture(tmp_path / "images" / "Left" / f"img_{k}.jpg", 10 * k)
    prefix = "" if form == "colmap" else "images/"
    FORMS[form](tmp_path, [f"{prefix}left/IMG_{k}.JPG" for k in range(2)])
    assert levels(Capture.load(tmp_path)) == pytest.approx([0, 10], abs=1)
    # Two names differ in case alone, so neither is taken.
    picture(tmp_path / "images" / "Left" / "Img_0.jpg")
    assert [view.image is None for view in Capture.load(tmp_path).views] == [True, False]
    picture(tmp_path / "images" / "Left" / "IMG_0.JPG", 50)
    assert levels(Capture.load(tmp_path)) == pytest.approx([50, 10], abs=1)


@pytest.mark.parametrize("prefix", ["/home/jo/scan/images/", "C:\\Users\\jo\\scan\\images\\", "../scan/images/"])
def test_photographs_of_another_machine_are_found_in_a_folder_that_is_named(tmp_path: Path, prefix: str):
    for k in range(2):
        picture(tmp_path / "set" / "images" / f"v{k}.png", 10 * k)
        # The user's folder takes precedence over the one that the file names.
        picture(tmp_path / "scan" / "images" / f"v{k}.png", 99)
    write_frames(tmp_path / "set", [f"{prefix}v{k}.png" for k in range(2)])
    assert levels(Capture.load(tmp_path / "set", images="images")) == [0, 10]


@pytest.mark.parametrize("form", FORMS)
def test_cameras_of_a_rig_keep_their_photographs_in_another_folder(tmp_path: Path, form: str):
    names = ["left/0.png", "left/1.png", "right/0.png", "right/1.png"]
    for folder, offset in (("images", 0), ("images_2", 100)):
        for k, name in enumerate(names):
            picture(tmp_path / folder / name, offset + 10 * k)
    prefix = "" if form == "colmap" else "images/"
    FORMS[form](tmp_path, [prefix + name for name in names])
    assert levels(Capture.load(tmp_path)) == [0, 10, 20, 30]
    assert levels(Capture.load(tmp_path, images="images_2")) == [100, 110, 120, 130]
    for k in range(2):
        picture(tmp_path / "flat" / f"{k}.png", k)
    flat = Capture.load(tmp_path, images="flat")
    with pytest.raises(InvalidArgument, match=r"flat/0\.png would be the photograph of .*left/0 and .*right/0;"):
        shots_of(flat, 99, "black")


@pytest.mark.parametrize("form", [*FORMS, "inria"])
def test_photographs_that_are_missing_are_counted_and_the_first_is_named(tmp_path: Path, form: str):
    for k in range(2):
        picture(tmp_path / "images" / f"photo_{k}.jpg")
    if form == "inria":
        write_cameras_json(tmp_path / "cameras.json", shots(5), *SIZE, (50.0, 50.0))
    else:
        prefix = "" if form == "colmap" else "images/"
        FORMS[form](tmp_path, [f"{prefix}photo_{k}.jpg" for k in range(5)])
    with pytest.warns(UserWarning, match=r"3 of 5 photographs were not found, the first is (images/)?photo_2.*left"):
        found, _ = shots_of(Capture.load(tmp_path), 99, "black")
    assert len(found) == 2


def test_masks_that_are_named_but_missing_are_an_error(tmp_path: Path):
    for k in range(4):
        picture(tmp_path / "images" / f"v{k}.png")
    picture(tmp_path / "masks" / "m1.png", 255)
    write_frames(tmp_path, [f"images/v{k}.png" for k in range(4)])
    name_masks(tmp_path, "masks/m{}.png")
    capture = Capture.load(tmp_path)
    assert capture.views[0].mask == tmp_path / "masks" / "m0.png"
    with pytest.raises(InvalidArgument, match=r"dataset: 3 of 4 masks were not found, the first is .*masks/m0\.png"):
        shots_of(capture, 99, "black")


def test_colmaps_masks_may_have_the_names_of_png_photographs(tmp_path: Path):
    write_reconstruction(tmp_path, ["a.png", "b.jpg", "c.jpg"])
    for name in ("a.png", "b.png", "c.jpg.png"):
        picture(tmp_path / "masks" / name, 255)
    masks = [view.mask for view in Capture.load(tmp_path).views]
    assert [mask.name for mask in masks if mask] == ["a.png", "b.png", "c.jpg.png"]
    (tmp_path / "masks" / "b.png").unlink()
    with pytest.warns(UserWarning, match=r"masks: 1 of 3 photographs has no mask, the first is b\.jpg, .* b\.jpg\.png"):
        assert [view.mask is None for view in Capture.load(tmp_path).views] == [False, True, False]


def test_masks_in_a_folder_of_another_name_are_missed(tmp_path: Path):
    write_reconstruction(tmp_path, ["a.png", "b.png"])
    for name in ("a.png", "b.png"):
        picture(tmp_path / "mask" / f"{name}.png", 255)
    text = r"mask: 2 of 2 photographs have no mask, the first is a\.png, whose mask would be masks/a\.png\.png"
    with pytest.warns(UserWarning, match=text):
        assert [view.mask for view in Capture.load(tmp_path).views] == [None, None]


def test_a_photograph_as_a_telephone_stores_it_is_found_to_be_named(tmp_path: Path):
    (tmp_path / "images").mkdir()
    for k in range(2):
        (tmp_path / "images" / f"v{k}.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    for suffix in ("jpg", "heic", "HEIC"):
        write_frames(tmp_path, [f"images/v{k}.{suffix}" for k in range(2)])
        with pytest.raises(InvalidArgument, match=r"v0\.HEIC: HEIC needs the package pillow-heif"):
            shots_of(Capture.load(tmp_path), 99, "black")
    # Converted photographs are found.
    for k in range(2):
        picture(tmp_path / "images" / f"v{k}.JPG", k)
        (tmp_path / "images" / f"v{k}.HEIC").unlink()
    assert levels(Capture.load(tmp_path)) == [0, 1]


@pytest.mark.parametrize("name", ["\\", ".", "/", "images/..", 400 * "a" + ".png", "images/\0.png"])
def test_names_that_are_none_are_refused_or_found_nowhere(tmp_path: Path, name: str):
    write_frames(tmp_path, [name, name])
    if len(name) > 1:
        assert [view.image for view in Capture.load(tmp_path).views] == [None, None]
        return
    with pytest.raises(InvalidArgument, match=r"frames\[0\]\.file_path: expected the path of a file"):
        Capture.load(tmp_path)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("parent", ["sparse", "colmap/sparse"])
def test_of_several_reconstructions_the_largest_is_read(tmp_path: Path, parent: str, binary: bool):
    for name, count in (("0", 2), ("1", 5), ("10", 3)):
        write_reconstruction(tmp_path, [f"v{k}.png" for k in range(count)], f"{parent}/{name}", binary)
    with pytest.warns(UserWarning, match=rf"{parent}/1, is read, with 5 images \(0 has 2, 10 has 3\)"):
        capture = Capture.load(tmp_path)
    assert len(capture) == 5
    assert len(Capture.load(tmp_path / parent / "10")) == 3


def test_nerfstudio_has_photographs_and_masks_beside_the_folder_of_colmap(tmp_path: Path):
    write_reconstruction(tmp_path, ["a.png", "b.png"], "colmap/sparse/0")
    for k, name in enumerate(("a.png", "b.png")):
        picture(tmp_path / "images" / name, 10 * k)
        picture(tmp_path / "masks" / f"{name}.png", 255)
    capture = Capture.load(tmp_path)
    assert levels(capture) == [0, 10] and all(view.mask for view in capture.views)
    for k, name in enumerate(("a.png", "b.png")):
        picture(tmp_path / "colmap" / "images" / name, 50 + 10 * k)
    assert levels(Capture.load(tmp_path)) == [50, 60]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.filterwarnings("error")
def test_points_of_which_there_are_none_are_no_points(tmp_path: Path, binary: bool):
    write_reconstruction(tmp_path, ["a.png", "b.png"], binary=binary)
    model = tmp_path / "sparse" / "0"
    assert Capture.load(tmp_path).points is not None
    if binary:
        (model / "points3D.bin").write_bytes(bytes(8))
    else:
        (model / "points3D.txt").write_bytes(b"# 3D point list with one line of data per point:\r\n")
    assert Capture.load(tmp_path).points is None
