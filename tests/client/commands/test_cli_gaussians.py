"""`lumigrad render` for files of Gaussians: pictures, orbits, data sets, videos, and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Gaussians, Spheres
from lumigrad.client.datasets import Capture
from lumigrad.client.formats import save_gaussians
from support.files.dataset_files import shots, transforms, write_cameras_json, write_colmap
from support.gaussians.clouds import post

TOP = {"camera_model": "PINHOLE", "w": 64, "h": 48, "fl_x": 60, "fl_y": 60, "cx": 32, "cy": 24}


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path)).astype(int)


def test_a_picture_is_upright_and_fills_the_frame(render, scene):
    done = render("-o", "out.png")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out.png: 400 Gaussians, ")
    picture = pixels(scene.with_name("out.png"))
    assert picture.shape == (720, 1280, 3)
    red, blue = picture[..., 0] > 120, picture[..., 2] > 120
    assert np.nonzero(red)[0].mean() < np.nonzero(blue)[0].mean() - 100
    rows = np.nonzero((red | blue).any(axis=1))[0]
    assert rows[-1] - rows[0] > 0.7 * 720
    assert picture[:, [0, -1]].max() == 0 and picture[[0, -1]].max() < 30
    # The picture is upside down if y is up, as for spheres.
    assert render("-o", "down.png", "--up", "y", "--size", "64x64").returncode == 0
    down = pixels(scene.with_name("down.png"))
    assert np.nonzero(down[..., 0] > 120)[0].mean() > np.nonzero(down[..., 2] > 120)[0].mean()


def test_up_is_minus_y_for_commands_and_y_for_cameras(render, scene, client: Client):
    options = ("--camera", "look-at 0,-1,4 0,0,0", "--size", "60x40", "--fov", "50")
    look = {"eye": (0, -1, 4), "target": (0, 0, 0), "fov_degrees": 50, "width": 60, "height": 40}
    for arguments, camera in (
        ((), Camera.look_at(up=(0, -1, 0), **look)),
        (("--up", "y"), Camera.look_at(**look)),
    ):
        done = render("-o", "up.png", *options, *arguments)
        assert done.returncode == 0, done.stderr
        expected = client.render(post(), camera, image_format="uint8").color
        assert np.abs(pixels(scene.with_name("up.png")) - expected.astype(int)).max() <= 2


@pytest.mark.parametrize("suffix", [".spz", ".splat"])
def test_other_formats_show_the_same(render, scene, suffix):
    post().save(scene.with_suffix(suffix))
    assert render("-o", "first.png", "--size", "96x96").returncode == 0
    assert render("-o", "second.png", "--size", "96x96", file=f"scene{suffix}").returncode == 0
    first, second = (pixels(scene.with_name(name)) for name in ("first.png", "second.png"))
    assert np.abs(first - second).mean() < 3


def test_what_is_written_is_what_the_client_gets(render, scene, client: Client):
    camera = {"eye": [0, -1, 4], "target": [0, 0, 0], "up": [0, -1, 0], "width": 60, "height": 40, "fov_degrees": 50}
    scene.with_name("camera.json").write_text(json.dumps(camera))
    options = (
        "--camera",
        "camera.json",
        "--background",
        "0.1,0.2,0.3",
        "--near",
        "0.5",
        "--far",
        "20",
        "--antialiased",
    )
    assert render("-o", "all.npz", *options).returncode == 0
    done = render("-o", "depth.npy", "--show", "expected_depth", "--depth", "too.npy", *options)
    assert done.returncode == 0, done.stderr
    frame = client.render(
        Gaussians.load(scene),
        Camera.look_at((0, -1, 4), (0, 0, 0), (0, -1, 0), fov_degrees=50, width=60, height=40),
        background=(0.1, 0.2, 0.3),
        near=0.5,
        far=20,
        antialiased=True,
        outputs=("color", "alpha", "depth", "expected_depth"),
    )
    saved = np.load(scene.with_name("all.npz"))
    assert set(saved) == {"color", "alpha", "depth", "expected_depth"}
    for name in saved:
        np.testing.assert_array_equal(saved[name], frame[name])
    for name in ("depth.npy", "too.npy"):
        np.testing.assert_array_equal(np.load(scene.with_name(name)), frame.expected_depth)


def test_a_scene_that_was_trained_with_antialiasing_is_rendered_with_it(render, scene):
    generator = np.random.default_rng(0)
    fine = Gaussians(
        generator.uniform(-1, 1, (500, 3)), [[1, 0, 0, 0]] * 500, np.full((500, 3), 1e-3), np.ones(500),
        colors=np.ones((500, 3)),
    )  # fmt: skip
    sums = {}
    for tagged in (False, True):
        save_gaussians(fine, scene, antialiased=tagged)
        for option in ((), ("--antialiased",), ("--no-antialiased",)):
            assert render("-o", "out.npy", "--size", "64x64", *option).returncode == 0
            sums[tagged, option] = float(np.load(scene.with_name("out.npy")).sum())
    assert sums[True, ()] == sums[True, ("--antialiased",)] == sums[False, ("--antialiased",)]
    assert sums[False, ()] == sums[False, ("--no-antialiased",)] == sums[True, ("--no-antialiased",)]
    assert sums[True, ()] < 0.5 * sums[False, ()]


@pytest.mark.parametrize(
    ("options", "how"),
    [(("--camera-model", "fisheye"), "through this lens"), (("--primitive", "surfels"), "as surfels")],
)
def test_what_is_drawn_without_antialiasing_says_how_to_go_on(render, scene, options, how):
    save_gaussians(Gaussians.load(scene), scene, antialiased=True)
    done = render("-o", "out.png", "--size", "64x48", *options)
    said = f"--antialiased: the scene was trained with it, as scene.ply says, but nothing is drawn with it {how}; "
    assert (done.returncode, done.stderr) == (2, f"lumigrad: error: {said}--no-antialiased draws without\n")
    assert render("-o", "out.png", "--size", "64x48", *options, "--no-antialiased").returncode == 0


@pytest.mark.parametrize("output", ["color", "depth", "expected_depth", "alpha"])
def test_an_orbit_into_a_folder(render, scene, output):
    done = render("--orbit", "4", "--camera", "orbit 10,5", "--show", output, "-o", "frames/", "--size", "80x60")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("frames: 400 Gaussians, 4 pictures, ")
    # A file gets no progress bar, but a line for each tenth, or for each of a few pictures.
    assert done.stderr == "".join(f"rendering: {number} of 4 frames\n" for number in (1, 2, 3, 4))
    names = sorted(path.name for path in scene.with_name("frames").iterdir())
    assert names == [f"frame_{k:04d}.png" for k in range(4)]
    pictures = [pixels(scene.with_name("frames") / name) for name in names]
    assert all(picture.shape[:2] == (60, 80) and picture.any() for picture in pictures)
    assert (pictures[0] != pictures[1]).any()


def test_an_orbit_as_a_video_of_an_odd_size(render, scene):
    done = render("--orbit", "10", "-o", "turn.mp4", "--size", "81x61", "--fps", "25")
    assert done.returncode == 0, done.stderr
    reader = imageio_ffmpeg.read_frames(str(scene.with_name("turn.mp4")))
    meta = next(reader)
    frames = [np.frombuffer(frame, np.uint8).reshape(62, 82, 3) for frame in reader]
    assert (meta["fps"], meta["size"], len(frames)) == (25, (82, 62), 10)
    assert render("-o", "still.png", "--size", "81x61").returncode == 0
    still = pixels(scene.with_name("still.png"))
    # Colours survive the trip through YUV.
    for channel in (0, 2):
        clear = still[..., channel] > 180
        assert abs(frames[0][:61, :81][clear].mean(axis=0) - still[clear].mean(axis=0)).max() < 12


DATA_SETS = {
    "cameras.json": lambda folder: write_cameras_json(folder / "cameras.json", shots(), 64, 48, (60, 60)),
    "transforms.json": lambda folder: (folder / "transforms.json").write_text(json.dumps(transforms(shots(), **TOP))),
    "colmap": lambda folder: write_colmap(
        folder / "colmap" / "sparse" / "0", shots(), "PINHOLE", [60, 60, 32, 24], (64, 48), binary=True
    ),
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_view_of_a_data_set(render, scene, name, client: Client):
    DATA_SETS[name](scene.parent)
    done = render("--camera", name, "-o", "views")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in scene.with_name("views").iterdir()) == [f"photo_{k}.png" for k in range(5)]
    camera = Capture.load(scene.with_name(name)).view("photo_3").camera
    expected = client.render(Gaussians.load(scene), camera).color
    assert np.abs(pixels(scene.with_name("views") / "photo_3.png") / 255 - np.clip(expected, 0, 1)).max() < 0.003
    for which in ("photo_3", "3", "-2"):
        assert render("--camera", name, f"--view={which}", "-o", "one.png").returncode == 0
        np.testing.assert_array_equal(
            pixels(scene.with_name("one.png")), pixels(scene.parent / "views" / "photo_3.png")
        )


@pytest.mark.parametrize("output", ["photos", "photos/", "photos/photo_1.png"])
def test_photographs_are_not_replaced_by_pictures_of_the_scene(render, scene, output):
    frames = transforms(shots(), **TOP)
    for frame in frames["frames"]:
        frame["file_path"] = f"photos/{Path(frame['file_path']).stem}.png"
    scene.with_name("transforms.json").write_text(json.dumps(frames))
    scene.with_name("photos").mkdir()
    for number in range(5):
        (scene.with_name("photos") / f"photo_{number}.png").write_bytes(b"a photograph")
    view = ("--view", "photo_1") if output.endswith(".png") else ()
    done = render("--camera", "transforms.json", *view, "-o", output)
    assert done.returncode == 2 and "--output: expected another place than that of the photographs" in done.stderr
    assert {path.read_bytes() for path in scene.with_name("photos").iterdir()} == {b"a photograph"}


def test_pictures_of_other_proportions_than_the_photographs_are_called_stretched(render, scene):
    DATA_SETS["transforms.json"](scene.parent)
    view = ("--camera", "transforms.json", "--view", "0", "-o", "one.png")
    said = "lumigrad: 64x64 has other proportions than a camera of 64x48, whose pictures are stretched\n"
    assert render(*view, "--size", "64x64").stderr == said
    for options in (("--size", "33x25"), ("--size", "64x64", "--camera-model", "fisheye"), ()):
        assert render(*view, *options).stderr == "", options


def test_a_turn_around_what_the_cameras_of_a_data_set_look_at(render, scene):
    DATA_SETS["transforms.json"](scene.parent)
    done = render("--camera", "transforms.json", "--orbit", "3", "-o", "turn", "--size", "128x96")
    assert done.returncode == 0, done.stderr
    for path in scene.with_name("turn").iterdir():
        picture = pixels(path)
        assert picture.shape == (96, 128, 3)
        assert picture[40:56, 56:72].any()
        assert np.nonzero(picture[..., 0] > 120)[0].mean() < np.nonzero(picture[..., 2] > 120)[0].mean()


def test_the_angle_of_a_long_lens_is_not_called_radians(render, scene):
    values = transforms(shots(), **{**TOP, "fl_x": 2000, "fl_y": 2000})
    scene.with_name("transforms.json").write_text(json.dumps(values))
    options = ("--camera", "transforms.json", "--orbit", "2", "-o", "turn")
    for given, is_said in (((), False), (("--fov", "0.7"), True)):
        done = render(*options, *given)
        said = "lumigrad: --fov: expected degrees, got 0.7; are they radians?"
        assert done.returncode == 0 and (said in done.stderr) == is_said, done.stderr
        assert ("radians" in done.stderr) == is_said


def test_radians_in_the_file_of_a_camera_are_said_to_be_there(render, scene):
    camera = {"eye": [0, 0, -4], "target": [0, 0, 0], "fov_degrees": 0.7, "width": 32, "height": 24}
    scene.with_name("camera.json").write_text(json.dumps(camera))
    done = render("--camera", "camera.json", "-o", "small.png")
    assert done.returncode == 0
    assert done.stderr.startswith("lumigrad: camera.json: fov_degrees: expected degrees, got 0.7; are they radians?")


def test_radians_in_the_view_beside_a_scene_are_said_to_be_there(render, scene):
    view = {"eye": [0, 0, -4], "target": [0, 0, 0], "up": [0, -1, 0], "fov_degrees": 0.7}
    beside = scene.with_name("scene.view.json")
    beside.write_text(json.dumps(view))
    for camera in ((), ("--camera", "orbit 30,20"), ("--camera", "look-at 0,0,-4 0,0,0")):
        done = render("-o", "small.png", *camera)
        assert done.returncode == 0
        assert done.stderr.startswith(f"lumigrad: {beside.name}: fov_degrees: expected degrees, got 0.7; are they r")
        assert done.stderr.count("radians") == 1


@pytest.mark.parametrize("output", ["turn", "one.png"])
def test_pictures_per_second_are_refused_without_a_video(render, scene, output):
    done = render("-o", output, "--fps", "25")
    assert done.returncode == 2
    assert done.stderr == f"lumigrad: error: --fps: expected with an .mp4 file, not with {output}; leave it out\n"


def test_the_same_file_as_spheres(render, scene):
    done = render("-o", "spheres.png", "--as", "spheres", "--size", "64x64")
    assert done.stdout.startswith("spheres.png: 400 spheres, "), done.stderr
    assert (pixels(scene.with_name("spheres.png"))[0, 0] == 255).all()


def test_spheres_turn_as_well(render, scene):
    generator = np.random.default_rng(0)
    spheres = Spheres(generator.normal(size=(50, 3)), generator.random((50, 3)), np.full(50, 0.2))
    spheres.save(scene.with_name("cloud.ply"))
    for output in ("color", "depth"):
        folder = f"{output}_turn"
        done = render("--orbit", "3", "--show", output, "-o", folder, "--size", "40x30", file="cloud.ply")
        assert done.returncode == 0, done.stderr
        assert all(pixels(path).any() for path in scene.with_name(folder).iterdir())
    refused = render("-o", "out.png", "--near", "1", file="cloud.ply")
    assert refused.stderr == "lumigrad: error: --near: belongs to Gaussians, but this scene is spheres; leave it out\n"


def test_gaussians_that_are_not_finite_are_left_out_and_counted(render, scene):
    whole = post()
    means = whole.means.copy()
    means[5] = np.nan
    Gaussians(means, whole.quats, whole.scales, whole.opacities, colors=whole.colors).save(scene)
    done = render("-o", "out.png", "--size", "32x32")
    assert done.returncode == 0
    assert done.stderr == "lumigrad: left out 1 Gaussian with values that are not finite\n"
    assert done.stdout.startswith("out.png: 399 Gaussians, ")


def test_files_with_two_scales_are_shown_as_surfels(render, scene, client: Client):
    volumes = post(10)
    assert volumes.scales is not None
    surfels = replace(volumes, scales=volumes.scales[:, :2])
    surfels.save(scene)
    view = ("--camera", "look-at 0,-1,4 0,0,0", "--size", "60x40", "--fov", "50")
    camera = Camera.look_at((0, -1, 4), (0, 0, 0), up=(0, -1, 0), fov_degrees=50, width=60, height=40)
    for options, primitive in (((), "surfel"), (("--primitive", "volumes"), "volume")):
        done = render("-o", "out.npy", *view, *options)
        assert done.returncode == 0, done.stderr
        expected = client.render(surfels, camera, primitive=primitive).color
        np.testing.assert_allclose(np.load(scene.with_name("out.npy")), expected, atol=1e-4)
    done = render("-o", "normals.png", "--show", "normals", *view)
    assert done.returncode == 0, done.stderr
    expected = client.render(surfels, camera, primitive="surfel", outputs=("normals",)).normals
    assert np.abs(pixels(scene.with_name("normals.png")) - 255 * (0.5 + 0.5 * expected).clip(0, 1)).max() < 2
    done = render("-o", "all.npz", *view)
    assert done.returncode == 0, done.stderr
    assert {"normals", "surface_normals", "median_depth"} <= set(np.load(scene.with_name("all.npz")).files)
