"""The scene in the package, and the data set and the city that `lumigrad sample` writes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Gaussians, Mesh, Spheres, World
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.evaluation import psnr
from lumigrad.client.formats import read_scene, save_gaussians
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.sample import located
from lumigrad.client.formats.spz import write_spz
from lumigrad.client.robots.motion import Motion
from lumigrad.client.robots.robot import Robot
from lumigrad.client.robots.sphere_file import SphereFile
from lumigrad.client.samples import photographer, still_life
from lumigrad.client.samples.capture import views
from lumigrad.client.samples.city import _centre, write_city
from lumigrad.client.samples.photographer import photograph
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess


def composite(pixels: np.ndarray, background: float) -> np.ndarray:
    opacity = pixels[..., 3:] / 255
    return pixels[..., :3] / 255 * opacity + (1 - opacity) * background


def halved(picture: np.ndarray) -> np.ndarray:
    """The means of two by two pixels."""
    height, width, channels = picture.shape
    return picture.reshape(height // 2, 2, width // 2, 2, channels).mean(axis=(1, 3))


def test_the_sample_is_small_and_complete():
    path = located("sample:vase")
    assert path.stat().st_size < 2_000_000
    scene = Gaussians.load("sample:vase")
    assert len(scene) == 45_000 and scene.sh_degree == 1
    view = SceneView.load(path)
    assert view is not None and view.up == pytest.approx((0, 0, 1), abs=0.05)
    assert view.target == pytest.approx(still_life.FOCUS, abs=0.05)


@pytest.mark.parametrize(("azimuth", "elevation"), [(20.0, 12.0), (200.0, 40.0)])
def test_the_sample_looks_like_its_subject(client: Client, azimuth: float, elevation: float):
    """The views are not those that were fitted, and the backgrounds are black and white."""
    size = {"fov_degrees": 38.0, "width": 320, "height": 240}
    camera = Camera.orbit(still_life.FOCUS, 4.9, azimuth, elevation, still_life.UP, **size)
    scene, pixels = Gaussians.load("sample:vase"), photograph(camera).pixels
    for background in (0.0, 1.0):
        found = client.render(scene, camera, background=background).color.clip(0, 1)
        assert psnr(halved(found), halved(composite(pixels, background))) > 28


def test_the_sample_needs_no_other_file(worker_process: WorkerProcess, tmp_path: Path):
    options = ["-o", str(tmp_path / "vase.png"), "--size", "320x240", "--target", worker_process.target]
    done = lumigrad("render", "sample:vase", *options)
    assert done.returncode == 0, done.stderr
    picture = np.asarray(Image.open(tmp_path / "vase.png")).astype(float)
    rows, columns = np.nonzero(picture.max(axis=2) > 40)
    # The whole vase is shown, in the middle.
    assert rows.min() > 3 and rows.max() < 236 and rows.max() - rows.min() > 170
    assert columns.mean() == pytest.approx(160, abs=16)
    told = lumigrad("info", "sample:vase")
    assert told.returncode == 0 and "45,000 Gaussians\n" in told.stdout


def test_other_samples_are_refused_with_the_names_of_those_that_exist():
    with pytest.raises(InvalidArgument, match="expected one of the samples, sample:vase, got sample:vasse"):
        Gaussians.load("sample:vasse")
    with pytest.raises(InvalidArgument, match=r"sample:vase, got sample:\.\./samples/vase"):
        located("sample:../samples/vase")
    done = lumigrad("render", "sample:flower", "-o", "x.png")
    assert done.returncode == 1
    assert "expected one of the samples, sample:vase, got sample:flower" in done.stderr


READERS: list[Callable[[Any], Any]] = [
    *(Gaussians.load, Spheres.load, Points.load, Mesh.load, World.load, Capture.load),
    *(GaussianLevels.open, Motion.load, SphereFile.of),
    lambda path: Robot.load(path, {}),
    lambda path: Capture((View("v", Camera.look_at((0, 0, 3), (0, 0, 0))),)).save(path),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("path", ["", None, 7])
def test_what_is_no_path_is_refused_and_not_the_current_folder(read: Callable[[Any], Any], path: Any):
    with pytest.raises(
        InvalidArgument, match=rf"^(path|urdf|spheres|folder): expected the path of a file, got {path!r}$"
    ):
        read(path)


CONTENT = b"ply\nformat ascii 1.0\n"
COMPRESSED = [
    *(("scene.ply.gz", b"\x1f\x8b", "gunzip {}"), ("a.OBJ.XZ", b"", "unxz {}"), ("b.yml.zst", b"", "unzstd {}")),
    *(("c.tar.gz", b"", "tar xf {}"), ("d.7z", b"", "7z x {}")),
    ("scene.ply", gzip.compress(CONTENT), "gunzip < {} > NEW"),
    ("scene.ply", bz2.compress(CONTENT), "bunzip2 < {} > NEW"),
    ("scene.ply", lzma.compress(CONTENT), "unxz < {} > NEW"),
    ("scene.ply", b"\x28\xb5\x2f\xfd" + CONTENT, "unzstd < {} > NEW"),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("name", "content", "unpack"), COMPRESSED, ids=[unpack for *_, unpack in COMPRESSED])
def test_compressed_files_are_known_by_name_or_content_and_refused_with_what_unpacks_them(
    tmp_path: Path, read: Callable[[Any], Any], name: str, content: bytes, unpack: str
):
    path = tmp_path / name
    path.write_bytes(content)
    said = f"{path}: expected an unpacked file: `{unpack.format(path)}` unpacks it"
    with pytest.raises(InvalidArgument, match=rf"^(path|urdf|spheres|folder): {re.escape(said)}$"):
        read(path)
    # A folder may have such a name, and a file that does not exist is reported as that.
    path.unlink()
    with pytest.raises((FileNotFoundError, InvalidArgument)) as caught:
        read(path)
        raise FileNotFoundError
    assert "unpacked" not in str(caught.value)


def test_gzip_streams_of_spz_are_read_whatever_they_are_called(tmp_path: Path):
    path = tmp_path / "scene.ply"
    write_spz(read_scene("sample:vase").reordered(np.arange(100)), path, version=3)
    # The header has the name of the file that was compressed.
    content = gzip.decompress(path.read_bytes())
    with gzip.open(path, "wb") as file:
        file.write(content)
    assert len(Gaussians.load(path)) == 100
    path.write_bytes(path.read_bytes()[:12])
    with pytest.raises(InvalidArgument, match=r"^path: .*scene\.ply: gzip stream: expected 16 bytes of header"):
        Gaussians.load(path)


def test_zip_files_are_opened_or_refused_with_the_advice_to_unzip_them(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("scene.ply", "ply")
    with pytest.raises(
        InvalidArgument, match=r"expected a member meta\.json .* got scene\.ply; unzip what is no \.sog$"
    ):
        Gaussians.load(tmp_path / "a.zip")
    with pytest.raises(InvalidArgument, match=r"expected a data set: .*; unzip it first$"):
        Capture.load(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["scene.ply", "scene.sog", "folder"])
def test_scenes_are_no_data_sets_and_what_takes_them_is_named(tmp_path: Path, name: str):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "lod-meta.json").write_text("{}")
    else:
        save_gaussians(Gaussians.load("sample:vase")[:100], path)
    with pytest.raises(InvalidArgument) as caught:
        Capture.load(path)
    said = "expected a data set: a folder of photographs with their poses, or its .json file, got a scene; "
    taken = "`lumigrad render` and `lumigrad info` read it, and `lumigrad fit DATASET --begin"
    assert str(caught.value) == f"path: {path}: {said}{taken} {path}` begins with it"


def test_a_folder_with_a_meta_json_of_another_program_is_no_scene(tmp_path: Path):
    (tmp_path / "meta.json").write_text('{"frames": []}')
    with pytest.raises(InvalidArgument, match="photographs alone have no cameras: `lumigrad capture` finds them"):
        Capture.load(tmp_path)
    (tmp_path / "meta.json").write_text('{"means": {}}')
    with pytest.raises(InvalidArgument, match="got a scene"):
        Capture.load(tmp_path)


def test_a_scene_that_begins_almost_like_a_compressed_file_is_read(tmp_path: Path):
    """A coordinate of a .splat has no rule but that it is finite."""
    rows = np.zeros(1, np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("color", "u1", 4), ("rotation", "u1", 4)]))
    rows["mean"][0, 0] = np.frombuffer(b"BZh?", "<f4")[0]
    rows["scale"], rows["color"], rows["rotation"] = 0.1, 255, 255
    (tmp_path / "scene.splat").write_bytes(rows.tobytes())
    assert len(Gaussians.load(tmp_path / "scene.splat")) == 1


def test_a_capture_is_a_data_set_and_always_the_same(tmp_path: Path):
    for name in ("one", "two"):
        done = lumigrad("sample", "capture", str(tmp_path / name), "--photographs", "3", "--size", "48x36")
        assert done.returncode == 0, done.stderr
        assert "3 photographs" in done.stdout and "lumigrad fit" in done.stdout
        # The default capture takes half a minute, and a file or a pipe gets no progress bar.
        told = [f"photographing: {number} of 3 photographs" for number in (1, 2, 3)]
        assert done.stderr.splitlines() == ["lumigrad: computing 3 photographs of 48x36 on this machine", *told]
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    capture = Capture.load(tmp_path / "one")
    assert capture.points is not None and len(capture) == 3
    for view, planned in zip(capture.views, views(3, 48, 36), strict=True):
        assert view.image is not None and (view.camera.width, view.camera.height) == (48, 36)
        np.testing.assert_allclose(view.camera.model.rotation, planned.camera.model.rotation, atol=1e-12)
        np.testing.assert_allclose(view.camera.model.translation, planned.camera.model.translation, atol=1e-12)
        assert view.camera.model.fx == planned.camera.model.fx
    # Apart from their noise, the points lie on the surfaces.
    free, _ = still_life.distances(capture.points.positions.astype(np.float64))
    assert np.abs(free).max() < 0.04
    assert np.square(capture.focus - still_life.FOCUS).sum() < 1e-6


def test_a_capture_over_another_one_is_told(tmp_path: Path):
    options = ["sample", "capture", str(tmp_path / "vase"), "--photographs", "3", "--size", "16x12"]
    assert "not empty" not in lumigrad(*options).stderr
    again = lumigrad(*options)
    assert again.returncode == 0 and f"{tmp_path / 'vase'} is not empty: replaces" in again.stderr


def test_a_photograph_that_is_not_wanted_any_more_ends_after_a_part_of_it(monkeypatch: pytest.MonkeyPatch):
    (view,) = views(1, 480, 360)
    stopping, seen = Event(), []

    def part(model: object, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(len(pixels))
        if len(seen) == 2:
            stopping.set()
        return np.zeros((len(pixels), 4)), np.zeros((len(pixels), 3))

    monkeypatch.setattr(photographer, "_seen", part)
    with pytest.raises(CancelledError):
        photograph(view.camera, stopping)
    assert len(seen) == 2 and sum(seen) < 480 * 360 / 4


def test_photographs_are_transparent_around_their_subject():
    (view,) = views(1, 120, 90)
    exposure = photograph(view.camera)
    opacity = exposure.pixels[..., 3]
    assert not opacity[[0, -1]].any() and not opacity[:, [0, -1]].any()
    assert 0.15 < (opacity == 255).mean() < 0.6
    # Edges are smooth.
    assert ((opacity > 0) & (opacity < 255)).sum() > 50
    assert np.abs(still_life.distances(exposure.places)[0]).max() < 2e-3


def test_a_city_has_as_many_gaussians_as_asked_for_and_begins_with_a_smaller_one(tmp_path: Path) -> None:
    scenes = []
    for count in (1, 100_000, 180_001):
        told = list(write_city(tmp_path / "city.ply", count))
        scenes.append(read_scene(tmp_path / "city.ply"))
        assert len(scenes[-1]) == told[-1] == count and scenes[-1].degree == 1 and not scenes[-1].invalid()
        assert SceneView.load(tmp_path / "city.ply") is not None
    np.testing.assert_array_equal(scenes[1].means[:80_000], scenes[2].means[:80_000])


def test_blocks_of_a_city_fill_squares_around_the_middle() -> None:
    places = np.array([_centre(block) for block in range(49)]) / 24.0
    assert len(np.unique(places, axis=0)) == 49
    for ring in range(4):
        assert np.abs(places[: (2 * ring + 1) ** 2]).max() == ring


def test_the_command_writes_a_city(tmp_path: Path) -> None:
    done = lumigrad("sample", "city", "city.ply", "--count", "1000", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    size = (tmp_path / "city.ply").stat().st_size
    assert done.stdout.splitlines()[0] == f"city.ply: 1,000 Gaussians, {size:,} bytes"
    done = lumigrad("sample", "city", "city", folder=tmp_path)
    assert done.returncode == 2 and "expected a name that ends in .ply for a city" in done.stderr
