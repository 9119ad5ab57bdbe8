"""`lumigrad fit`: a fit comes closer to photographs that it has not seen."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Gaussians, Spheres
from lumigrad.client.datasets import Capture
from lumigrad.client.pictures import write_image
from support.files.dataset_files import shots, transforms
from support.workers.forks import ForkedProcess, lumigrad
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

WIDTH, HEIGHT, FOCAL = 72, 56, 70.0
VIEWS, COUNT = 17, 600


def ball(generator: np.random.Generator) -> Gaussians:
    """Opaque Gaussians on a sphere, striped."""
    means = generator.normal(size=(COUNT, 3))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    colors = 0.5 + 0.45 * np.sin(4 * means + [0.0, 1.0, 2.0])
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (COUNT, 1))
    return Gaussians(means, quats, np.full((COUNT, 3), 0.07), np.full(COUNT, 0.95), colors=colors)


def write_points(path: Path, scene: Gaussians, generator: np.random.Generator) -> None:
    """Writes the rough positions of the Gaussians and their colours as text."""
    places = scene.means + generator.normal(scale=0.02, size=(COUNT, 3))
    properties = [f"property float {axis}" for axis in "xyz"]
    properties += [f"property uchar {color}" for color in ("red", "green", "blue")]
    rows = [
        " ".join(map(str, [*place, *color]))
        for place, color in zip(places, np.rint(255 * scene.colors).astype(int), strict=True)
    ]
    head = ["ply", "format ascii 1.0", f"element vertex {COUNT}", *properties, "end_header"]
    path.write_text("\n".join([*head, *rows, ""]))


@pytest.fixture
def capture(tmp_path: Path, client: Client) -> Path:
    """A folder as nerfstudio lays it out: pictures of a scene, their cameras, and points."""
    folder = tmp_path / "capture"
    (folder / "images").mkdir(parents=True)
    generator = np.random.default_rng(3)
    scene, taken = ball(generator), shots(VIEWS)
    lens = FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2
    cameras = [Camera.opencv(*lens, shot.axes.T, shot.translation, WIDTH, HEIGHT) for shot in taken]
    for shot, picture in zip(taken, client.render(scene, cameras).color, strict=True):
        write_image((folder / "images" / shot.file).with_suffix(".png"), picture)
    content = transforms(taken, fl_x=FOCAL, w=WIDTH, h=HEIGHT, ply_file_path="points.ply")
    (folder / "transforms.json").write_text(json.dumps(content))
    write_points(folder / "points.ply", scene, generator)
    return folder


def command(capture: Path, scene: Path, *options: str, target: str = "localhost:1") -> list[str]:
    return ["fit", str(capture), "-o", str(scene), "--target", target, *options]


def fit(capture: Path, scene: Path, *options: str, target: str = "localhost:1") -> subprocess.CompletedProcess[str]:
    return lumigrad(*command(capture, scene, *options, target=target), timeout=200)


def report_of(scene: Path) -> dict[str, Any]:
    return json.loads((scene.with_suffix(".fit") / "report.json").read_text())


def previews(scene: Path) -> list[Path]:
    return list(scene.with_suffix(".fit").glob("preview_*"))


def wait_for_previews(scene: Path, count: int, process: ForkedProcess) -> None:
    """Waits until a fit has written `count` previews, or is over."""
    wait_until(lambda: len(previews(scene)) >= count or process.poll() is not None, f"{count} previews", seconds=200)


@pytest.mark.slow
def test_surfels_are_fitted_and_rendered_as_such(capture: Path, tmp_path: Path, running: WorkerProcess, client: Client):
    scene = tmp_path / "surfels.ply"
    options = ["--steps", "100", "--sh-degree", "0", "--strategy", "none", "--primitive", "surfels"]
    done = fit(capture, scene, *options, target=running.target)
    assert done.returncode == 0, done.stderr
    report = report_of(scene)
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 4
    fitted = Gaussians.load(scene)
    assert fitted.is_flat and len(fitted) == COUNT
    # The fitted surface is the ball's: normals point where surfels are.
    view = Capture.load(capture).views[0]
    frame = client.render(fitted, view.camera, primitive="surfel", outputs=("surface_normals", "median_depth", "alpha"))
    model = view.camera.model
    across = (np.arange(WIDTH) + 0.5 - model.cx) / model.fx
    down = (np.arange(HEIGHT) + 0.5 - model.cy) / model.fy
    rays = np.stack([*np.meshgrid(across, down), np.ones((HEIGHT, WIDTH))], -1)
    points = (frame.median_depth[..., None] * rays - model.translation) @ model.rotation
    inside = (frame.alpha > 0.9) & (np.linalg.norm(points, axis=-1) < 1.2)
    assert inside.sum() > 200
    radial = points / np.linalg.norm(points, axis=-1, keepdims=True)
    assert np.median((frame.surface_normals * radial).sum(-1)[inside]) > 0.6
    # The saved scene begins another fit, of the same primitive.
    again = fit(capture, tmp_path / "again.ply", "--begin", str(scene), "--steps", "2", target=running.target)
    assert again.returncode == 0, again.stderr
    assert Gaussians.load(tmp_path / "again.ply").is_flat
    assert report_of(tmp_path / "again.ply")["recipe"]["sh_degree"] == fitted.sh_degree
    options = ["--begin", str(scene), "--primitive", "volumes"]
    refused = fit(capture, tmp_path / "no.ply", *options, target=running.target)
    assert refused.returncode == 2 and "begin: expected a file of volumes, got surfels" in refused.stderr


@pytest.mark.slow
def test_views_that_were_not_fitted_come_closer(capture: Path, tmp_path: Path, running: WorkerProcess):
    scene, log = tmp_path / "scene.ply", tmp_path / "log"
    options = ["--steps", "60", "--sh-degree", "1", "--strategy", "none", "--logdir", str(log)]
    done = fit(capture, scene, *options, target=running.target)
    assert done.returncode == 0, done.stderr
    assert "14 photographs to fit, 3 held out, 60 steps" in done.stdout
    report = report_of(scene)
    assert f"held-out photographs: {report['held_out']['psnr']:.2f} dB, SSIM" in done.stdout
    assert f"; before the fit {report['begin']['psnr']:.2f} dB" in done.stdout and f"{COUNT:,} Gaussians" in done.stdout
    # A file gets no progress bar, but a line with each preview.
    told = re.findall(r"^fitting: (\d+) of 60 steps, fitted photographs: [\d.]+ dB$", done.stderr, re.MULTILINE)
    assert [int(number) for number in told] == [*range(6, 61, 6)] and "\r" not in done.stderr
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 4
    assert report["held_out"]["ssim"] > report["begin"]["ssim"] + 0.04
    assert report["held_out"]["matched_psnr"] >= report["held_out"]["psnr"] == report["held_out"]["opaque_psnr"]
    fitted = Gaussians.load(scene)
    assert len(fitted) == COUNT and fitted.sh_degree == 1
    folder = scene.with_suffix(".fit")
    assert len(list(folder.glob("preview_*.jpg"))) == 10
    picture = np.asarray(Image.open(folder / "comparison.jpg"), np.float32) / 255
    assert picture.shape == (3 * HEIGHT, 2 * WIDTH, 3)
    # The columns are the rendering and the photograph.
    found, photographs = np.split(picture, 2, axis=1)
    assert np.square(found - photographs).mean() < 0.02
    assert list(log.glob("events.*"))
    assert [row["name"] for row in report["photographs"]] == ["photo_0", "photo_16", "photo_9"]
    for score in ("psnr", "ssim"):
        assert np.mean([row[score] for row in report["photographs"]]) == pytest.approx(report["held_out"][score])
    page = (folder / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 9
    for row in report["photographs"]:
        assert f"{row['name']}: {row['psnr']:.2f} dB, SSIM {row['ssim']:.3f}" in page
    assert running.process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mcmc", "adaptive"])
def test_gaussians_grow_up_to_their_cap(capture: Path, tmp_path: Path, running: WorkerProcess, strategy: str):
    scene = tmp_path / "scene.ply"
    options = ["--steps", "80", "--sh-degree", "0", "--strategy", strategy, "--cap", "700", "--refine-poses"]
    done = fit(capture, scene, *options, target=running.target)
    assert done.returncode == 0, done.stderr
    assert (COUNT < len(Gaussians.load(scene)) <= 700) if strategy == "mcmc" else len(Gaussians.load(scene)) <= 700
    report = report_of(scene)
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 1


def test_a_stopped_fit_leaves_a_scene_and_goes_on(capture: Path, tmp_path: Path, running: WorkerProcess):
    scene = tmp_path / "scene.ply"
    options = ["--steps", "100000", "--every", "20", "--sh-degree", "0"]
    process = ForkedProcess(command(capture, scene, *options, target=running.target))
    wait_for_previews(scene, 1, process)
    process.send_signal(signal.SIGTERM)
    said, complaint = process.communicate(timeout=150)
    assert process.returncode == 0, complaint
    assert "of 100,000 steps" in said and "--resume continues it" in complaint
    stopped = report_of(scene)
    assert len(Gaussians.load(scene)) == stopped["count"]

    other = fit(capture, scene, "--resume", "--sh-degree", "0", "--steps", "9000", target=running.target)
    assert other.returncode == 2
    assert "--steps: expected 100000, as in the fit that is resumed, got 9000; leave it out" in other.stderr
    repeated = "--resume", "--every", "20", "--steps", "100000"
    again = ForkedProcess(command(capture, scene, *repeated, target=running.target))
    wait_for_previews(scene, len(previews(scene)) + 2, again)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=150)
    assert again.returncode == 0
    assert report_of(scene)["steps"] > stopped["steps"]
    # A new fit says that it would replace this one. It fails before it begins, so it removes nothing.
    found = sorted(previews(scene))
    anew = fit(capture, scene, "--cap", str(1 << 31), target=running.target)
    assert anew.returncode == 2 and "; --resume continues that fit while the worker has it" in anew.stderr
    assert "--cap: expected at most" in anew.stderr
    assert found and sorted(previews(scene)) == found
    # Whoever can read the file could take over the training.
    checkpoint = scene.with_suffix(".fit") / "checkpoint.json"
    assert os.stat(checkpoint).st_mode & 0o077 == 0


def killed_and_resumed(capture: Path, scene: Path, seconds: int, target: str) -> tuple[float, Any]:
    """Kills a fit after three previews; returns the seconds that it had used, and the fit that resumed it.

    The fit may be over by then, so that nothing can be resumed.
    """
    process = ForkedProcess(command(capture, scene, "--sh-degree", "1", "--seconds", f"{seconds}", target=target))
    wait_for_previews(scene, 3, process)
    process.kill()
    process.communicate(timeout=150)
    checkpoint = scene.with_suffix(".fit") / "checkpoint.json"
    used = json.loads(checkpoint.read_text())["used"] if checkpoint.exists() else float(seconds)
    return used, fit(capture, scene, "--resume", target=target)


def test_a_fit_of_some_seconds_ends_with_its_schedules_and_goes_on_after_a_kill(
    capture: Path, tmp_path: Path, running: WorkerProcess
):
    # The kill may come when the fit is nearly or quite over on a busy machine, and a fit ends early by as much time as
    # its last preview but one took.
    for seconds in (4, 16, 64):
        scene = tmp_path / f"scene{seconds}.ply"
        used, done = killed_and_resumed(capture, scene, seconds, running.target)
        is_undisturbed = done.returncode == 0 and 0.2 < used / seconds < 0.7
        if is_undisturbed and used + report_of(scene)["seconds"] > 0.75 * seconds:
            break
    assert done.returncode == 0, done.stderr
    assert used > seconds / 5
    pattern = rf" held out, {seconds} s; background"
    assert re.search(pattern, done.stdout) and re.search(rf"\d+ steps, \d+ of {seconds} s, ", done.stdout)
    report = report_of(scene)
    assert report["seconds"] > 0.75 * seconds - used
    assert report["steps"] > report["resumed_from"] > 0
    # This holds however few steps a busy machine makes in the time.
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 2
    assert len(previews(scene)) >= 4
    # The fit is over, however few steps were made: there is nothing to resume, and all degrees were added.
    assert not (scene.with_suffix(".fit") / "checkpoint.json").exists()
    assert Gaussians.load(scene).sh_degree == 1 and report["count"] > COUNT
    both = fit(capture, scene, "--seconds", "4", "--steps", "4", target=running.target)
    assert both.returncode == 2 and "not allowed with argument" in both.stderr


def test_masks_that_weight_pixels_are_told(capture: Path, tmp_path: Path, running: WorkerProcess):
    content = json.loads((capture / "transforms.json").read_text())
    mask = np.repeat(np.array([0, 150, 255, 255], np.uint8), HEIGHT // 4)[:, None].repeat(WIDTH, axis=1)
    for number in range(1, 6):
        # Flags of 0 and 1 are no weights.
        Image.fromarray(mask if number < 4 else np.uint8(mask > 0)).save(capture / f"{number}.png")
        content["frames"][number]["mask_path"] = f"{number}.png"
    (capture / "transforms.json").write_text(json.dumps(content))
    done = fit(capture, tmp_path / "scene.ply", "--steps", "5", "--strategy", "none", target=running.target)
    assert done.returncode == 0, done.stderr
    assert "masks of 5 of 17 photographs: black or transparent is ignored, 25% of photo_1; " in done.stdout
    said = "masks of 3 of 14 fitted photographs have levels between black and white, which weight their pixels"
    assert f"lumigrad: {said}: 25% of photo_1\n" in done.stderr


def test_a_second_fit_replaces_the_results_of_the_first(capture: Path, tmp_path: Path, running: WorkerProcess):
    scene, folder = tmp_path / "scene.ply", tmp_path / "scene.fit"
    options = ["--sh-degree", "0", "--strategy", "none"]
    first = fit(capture, scene, *options, "--steps", "6", "--every", "2", "--refine-poses", target=running.target)
    assert first.returncode == 0 and "replace" not in first.stderr, first.stderr
    assert len(previews(scene)) == 3
    refused = fit(capture, scene, *options, "--begin", "sample:vase", "--kind", "spheres", target=running.target)
    assert refused.returncode == 2 and "replace" not in refused.stderr, refused.stderr
    # The refined cameras are a data set, and not every file in the folder is of a fit.
    (folder / "preview_of_mine.jpg").touch()
    second = fit(folder, scene, *options, "--steps", "5", target=running.target)
    assert second.returncode == 0, second.stderr
    assert f"will replace {scene} and the results of a fit in {folder}\n" in second.stderr
    third = fit(capture, scene, *options, "--steps", "4", "--every", "4", target=running.target)
    assert third.returncode == 0, third.stderr
    assert {path.name for path in folder.iterdir()} == {
        "preview_000004.jpg", "report.html", "report.json", "comparison.jpg", "transforms.json", "preview_of_mine.jpg",
    }  # fmt: skip
    assert report_of(scene)["steps"] == 4


def test_scores_of_fitted_photographs_are_not_called_held_out(capture: Path, tmp_path: Path, running: WorkerProcess):
    scene = tmp_path / "scene.ply"
    options = ("--steps", "4", "--sh-degree", "0", "--strategy", "none", "--hold-out", "0")
    done = fit(capture, scene, *options, target=running.target)
    assert done.returncode == 0, done.stderr
    assert " photographs to fit, none held out, 4 steps" in done.stdout
    assert "fitted photographs, since none is held out: " in done.stdout and "held-out" not in done.stdout
    report = report_of(scene)
    assert "held_out" not in report and report["fitted"]["psnr"] > 0
    assert "held-out" not in (scene.with_suffix(".fit") / "report.html").read_text()


def test_an_object_before_white_is_fitted_and_shown_as_its_photographs_show_it(
    capture: Path, tmp_path: Path, running: WorkerProcess
):
    """The background is found in the photographs, and kept beside the scene."""
    for image in (capture / "images").glob("*.png"):
        picture = np.asarray(Image.open(image)).astype(int)
        # Empty space is black in these pictures.
        picture[picture.max(axis=2) < 12] = 255
        write_image(image, picture.astype(np.uint8))
    scene = tmp_path / "scene.ply"
    done = fit(capture, scene, "--steps", "60", "--sh-degree", "0", "--strategy", "none", target=running.target)
    assert done.returncode == 0, done.stderr
    assert "60 steps; background: white" in done.stdout
    assert "--exposures" not in done.stderr
    assert f"lumigrad render {scene} -o scene.png" in done.stdout
    assert report_of(scene)["held_out"]["psnr"] > report_of(scene)["begin"]["psnr"] + 3
    assert json.loads((tmp_path / "scene.view.json").read_text())["background"] == [1, 1, 1]
    shown = lumigrad("render", str(scene), "-o", str(tmp_path / "x.png"), "--size", "64x48", "--target", running.target)
    assert shown.returncode == 0, shown.stderr
    picture = np.asarray(Image.open(tmp_path / "x.png"))
    assert picture[[0, -1]].min() > 200 and picture[18:30, 24:40].min() < 120


def test_a_fit_without_points_begins_at_random(capture: Path, tmp_path: Path, running: WorkerProcess):
    content = json.loads((capture / "transforms.json").read_text())
    del content["ply_file_path"]
    (capture / "transforms_train.json").write_text(json.dumps(content))
    (capture / "transforms.json").unlink()
    options = ["--steps", "50", "--sh-degree", "0", "--strategy", "none"]
    done = fit(capture, tmp_path / "scene.ply", *options, target=running.target)
    assert done.returncode == 0, done.stderr
    assert f"{capture} has no initial points: the fit begins with 20,000 random points where" in done.stderr
    report = report_of(tmp_path / "scene.ply")
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 2


def test_what_the_data_set_holds_out_is_held_out(capture: Path, tmp_path: Path, running: WorkerProcess):
    """The photographs are stored sideways."""
    for image in sorted((capture / "images").glob("*.png")):
        exif = Image.Exif()
        exif[0x0112] = 6
        with Image.open(image) as opened:
            sideways = opened.transpose(Image.Transpose.ROTATE_90)
        sideways.save(image, exif=exif)
    content = json.loads((capture / "transforms.json").read_text())
    files = [frame["file_path"] for frame in content["frames"]]
    lists = {"train_filenames": files[:9], "test_filenames": files[12:15]}
    (capture / "transforms.json").write_text(json.dumps({**content, **lists, "skew": 0.1}))
    scene, options = tmp_path / "scene.ply", ["--sh-degree", "0", "--strategy", "none"]
    done = fit(capture, scene, *options, "--steps", "60", "--refine-poses", target=running.target)
    assert done.returncode == 0, done.stderr
    assert "9 photographs to fit, 3 held out, 5 in no list of the data set, 60 steps" in done.stdout
    lines = done.stderr.splitlines()
    assert f"lumigrad: {capture / 'transforms.json'}: fields that are ignored: skew" in lines
    assert (
        f"lumigrad: {VIEWS} photographs have EXIF orientation 6; they are turned by it, since only that fits the camera"
        in lines
    )
    report = report_of(scene)
    assert [each["name"] for each in report["photographs"]] == sorted(Path(file).stem for file in files[12:15])
    assert report["held_out"]["psnr"] > report["begin"]["psnr"] + 3
    # The refined cameras are a data set that holds out the same.
    split = Capture.load(scene.with_suffix(".fit")).split
    assert split is not None and (len(split.fitted), len(split.held_out)) == (9, 3)


def test_the_sample_capture_is_fitted(tmp_path: Path, running: WorkerProcess):
    folder, scene = tmp_path / "vase", tmp_path / "vase.ply"
    assert lumigrad("sample", "capture", str(folder), "--photographs", "9", "--size", "80x60").returncode == 0
    done = fit(folder, scene, "--steps", "60", "--sh-degree", "0", target=running.target)
    assert done.returncode == 0, done.stderr
    assert "background: transparent" in done.stdout
    score = report_of(scene)["held_out"]
    assert score["psnr"] > 20
    # Steps do not compare colours where photographs are transparent; each score says what it belongs to.
    assert score["psnr"] > score["opaque_psnr"] + 3
    whole, opaque = (f"{score[name]:.2f} dB" for name in ("psnr", "opaque_psnr"))
    assert f"held-out photographs: {whole}, SSIM {score['ssim']:.3f} (opaque parts: {opaque}); before" in done.stdout
    assert done.stderr.count(" steps, fitted photographs, opaque parts: ") == 10
    with Client(running.target) as client:
        camera = Capture.load(folder).views[0].camera
        alpha = client.render(Gaussians.load(scene), camera, outputs=("alpha",)).alpha
    assert alpha[:3].max() < 0.1 and alpha[alpha > 0.5].size > 0.1 * alpha.size


@pytest.mark.slow
def test_spheres_are_fitted_too(capture: Path, tmp_path: Path, running: WorkerProcess):
    scene = tmp_path / "spheres.ply"
    options = ["--kind", "spheres", "--steps", "60", "--no-exposures", "--json"]
    done = fit(capture, scene, *options, target=running.target)
    assert done.returncode == 0, done.stderr
    assert len(Spheres.load(scene)) == COUNT
    report = report_of(scene)
    assert report["held_out"]["psnr"] > report["begin"]["psnr"]
    # A script gets the report, as one line.
    (line,) = done.stdout.splitlines()
    assert json.loads(line) == {"output": str(scene), **report}
    assert {"steps", "seconds", "steps_per_second", "count", "held_out", "begin", "recipe"} <= report.keys()
    assert "photographs to fit" in done.stderr


def enlarge(folder: Path, factor: int) -> None:
    """Enlarges a data set's photographs, which takes less time than rendering larger ones."""
    content = json.loads((folder / "transforms.json").read_text())
    for frame in content["frames"]:
        frame |= {key: factor * frame[key] for key in ("w", "h", "fl_x", "fl_y", "cx", "cy")}
    (folder / "transforms.json").write_text(json.dumps(content))
    for path in (folder / "images").iterdir():
        with Image.open(path) as image:
            larger = image.resize((factor * image.width, factor * image.height))
        larger.save(path)


def test_photographs_for_which_the_worker_has_no_room_are_refused_before_they_are_sent(tmp_path: Path):
    folder, scene = tmp_path / "vase", tmp_path / "vase.ply"
    assert lumigrad("sample", "capture", str(folder), "--photographs", "9", "--size", "80x60").returncode == 0
    enlarge(folder, 4)
    with worker("--scene-mib", "2", "--max-payload-mib", "2") as process:
        options = ["--steps", "4", "--sh-degree", "0", "--strategy", "none"]
        done = fit(folder, scene, *options, target=process.target)
        assert done.returncode == 2 and "--max-size: expected photographs of at most 1." in done.stderr
        named = re.search(r"--max-size (\d+) fits", done.stderr)
        assert named is not None
        done = fit(folder, scene, *options, "--max-size", named[1], target=process.target)
        assert done.returncode == 0, done.stderr
        assert "photographs on the worker: 1." in done.stdout


def test_a_fit_beside_a_spool_that_cannot_be_written_goes_on(capture: Path, tmp_path: Path) -> None:
    scene, spool = tmp_path / "scene.ply", tmp_path / "spool"
    with worker("--device", "cpu", "--spool", str(spool)) as process:
        (spool / "0").rename(tmp_path / "away")
        done = fit(capture, scene, "--steps", "20", "--strategy", "none", target=process.target)
        assert done.returncode == 0, done.stderr
        # The scenes of the fit may be deleted before they are written.
        with Client(process.target) as client:
            client.put(ball(np.random.default_rng(3)))
            wait_until(lambda: process.metric("lumigrad_spool_writes_total", kind="scene", result="failed") > 0)
    assert len(previews(scene)) > 2 and len(Gaussians.load(scene)) == COUNT


def test_a_fit_that_cannot_write_its_folder_leaves_no_training_behind(
    capture: Path, tmp_path: Path, running: WorkerProcess
):
    scene = tmp_path / "scene.ply"
    checkpoint = tmp_path / "scene.fit" / "checkpoint.json"
    checkpoint.mkdir(parents=True)
    options = ["--steps", "4", "--sh-degree", "0"]
    assert f"{checkpoint}: is a directory" in fit(capture, scene, *options, target=running.target).stderr
    checkpoint.rmdir()
    done = fit(capture, scene, *options, target=running.target)
    assert done.returncode == 0, done.stderr


def test_options_that_do_not_apply_are_refused(capture: Path, tmp_path: Path, running: WorkerProcess):
    ball(np.random.default_rng(3)).save(tmp_path / "ball.ply")
    Spheres(np.zeros((9, 3)), np.ones((9, 3)), np.ones(9)).save(tmp_path / "nine.ply")
    begun = "--begin", str(tmp_path / "ball.ply"), "--steps", "4"
    for options, text in (
        ((*begun, "--kind", "spheres"), "--kind: expected gaussians, as in .*ball.ply, got spheres"),
        ((*begun, "--sh-degree", "1"), "--sh-degree: expected 0, as in .*ball.ply, got 1"),
        (("--begin", str(tmp_path / "nine.ply"), "--kind", "gaussians"), "--kind: expected spheres, as in .*nine.ply"),
        (("--kind", "spheres", "--sh-degree", "0"), "--sh-degree: belongs to Gaussians, but spheres are fitted"),
        (("--kind", "spheres", "--strategy", "mcmc"), "--strategy: belongs to Gaussians, but spheres are fitted"),
        (("--kind", "spheres", "--cap", "9"), "--cap: belongs to Gaussians, but spheres are fitted"),
        (("--kind", "spheres", "--refine-lenses"), "--kind: spheres need pinholes without distortion, and .* has an"),
    ):
        done = fit(capture, tmp_path / "scene.ply", *options, target=running.target)
        assert done.returncode == 2 and re.search(text, done.stderr), done.stderr
    done = fit(capture, tmp_path / "scene.ply", *begun, "--sh-degree", "0", "--cap", "100", target=running.target)
    assert done.returncode == 0, done.stderr
    assert "lumigrad: --cap: the training begins with 600 Gaussians, more than 100: none are added" in done.stderr
