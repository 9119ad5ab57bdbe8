"""The command `lumigrad` as a user runs it: processes, files, exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.commands import aim
from lumigrad.client.commands.options import add_connection, connect, tls_of, token_of
from lumigrad.client.pictures import check_suffix, write_depth, write_image
from lumigrad.client.shell.parser import Parser
from support.workers.forks import lumigrad
from support.workers.worker import LUMIGRAD, WorkerProcess


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    Spheres(generator.normal(size=(200, 3)), generator.random((200, 3)), np.full(200, 0.2)).save(tmp_path / "cloud.ply")
    return tmp_path / "cloud.ply"


def test_help_shows_examples_and_statuses():
    shown = lumigrad("--help")
    assert shown.returncode == 0
    for text in ("info", "render", "serve", "examples:", "exit status:"):
        assert text in shown.stdout
    assert "AIM" in lumigrad("render", "--help").stdout


def test_alone_it_shows_its_help():
    shown = lumigrad()
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == lumigrad("--help").stdout


def test_version():
    shown = lumigrad("--version")
    assert (shown.returncode, shown.stdout.split()[0]) == (0, "lumigrad")


# By package: a command that needs it, what the error says it is for, and the extra that has it.
MISSING = {
    "imageio_ffmpeg": (("render", "sample:vase", "--orbit", "2", "-o", "a.mp4"), "writing .mp4 files", "video"),
    "shtab": (("completion", "bash"), "lumigrad completion", "completion"),
    "matplotlib": (("query", "a.obj", "--spheres", "a.npy", "--plot", "a.png"), "drawing charts", "plot"),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_named_with_its_extra(package: str, tmp_path: Path):
    arguments, what, extra = MISSING[package]
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from lumigrad.client.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=250, check=False)
    said = f'lumigrad: error: {what} needs the package "{package}"; install it with: pip install "lumigrad[{extra}]"\n'
    assert (done.returncode, done.stderr) == (1, said)


def test_help_is_quick_because_nothing_heavy_is_imported():
    script = (
        "import sys\nfrom lumigrad.client.cli import main\n"
        "try: main(['render', '--help'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, 'lumigrad.server' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "False False"


def test_info(worker_process: WorkerProcess):
    text = lumigrad("info", "--target", worker_process.target)
    assert text.returncode == 0
    assert f"target        {worker_process.target}\n" in text.stdout
    assert "device        cpu: " in text.stdout
    values = json.loads(lumigrad("info", "--target", worker_process.target, "--json").stdout)
    assert values["target"] == worker_process.target
    assert values["engines"] == ["spheres", "gaussians", "meshes"]
    assert values["limits"]["max_cameras"] > 0


def test_render_frames_the_cloud(worker_process: WorkerProcess, cloud: Path):
    picture = cloud.with_name("out.png")
    done = lumigrad("render", str(cloud), "-o", str(picture), "--size", "120x80", "--target", worker_process.target)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{picture}: 200 spheres, ")
    pixels = np.asarray(Image.open(picture))
    assert pixels.shape == (80, 120, 3)
    # Something is in the middle, and white margins remain at the sides.
    assert (pixels[30:50, 50:70] != 255).any()
    assert (pixels[:, [0, -1]] == 255).all()


@pytest.mark.parametrize(("color", "background"), [(1.0, ()), (0.25, ("--background", "0.25,0.25,0.25"))])
def test_spheres_in_the_colour_of_the_background_are_called_unseen(
    worker_process: WorkerProcess, tmp_path: Path, color: float, background: tuple[str, ...]
):
    Spheres(np.zeros((2, 3)), np.full((2, 3), color), np.ones(2)).save(tmp_path / "one.ply")
    options = ("--size", "12x8", "--target", worker_process.target)
    said = "all spheres have the colour of the background, so that nothing is seen; --background sets another"
    done = lumigrad("render", "one.ply", "-o", "out.png", *options, *background, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, f"lumigrad: {said}\n")
    for seen in (("--background", "0,0.5,1"), ("--show", "alpha")):
        done = lumigrad("render", "one.ply", "-o", "out.png", *options, *seen, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_render_writes_what_the_client_gets(worker_process: WorkerProcess, cloud: Path, client: Client):
    camera = cloud.with_name("camera.json")
    camera.write_text(json.dumps({"eye": [0, 1, 6], "target": [0, 0, 0], "fov_degrees": 50, "width": 60, "height": 40}))
    options = ("--camera", str(camera), "--gamma", "0.01", "--background", "0,0.5,1", "--target", worker_process.target)
    color, everything = cloud.with_name("color.npy"), cloud.with_name("all.npz")
    assert lumigrad("render", str(cloud), "-o", str(color), *options).returncode == 0
    depth = cloud.with_name("depth.npy")
    done = lumigrad("render", str(cloud), "-o", str(everything), "--depth", str(depth), *options)
    assert done.returncode == 0, done.stderr
    same = Camera.look_at((0, 1, 6), (0, 0, 0), fov_degrees=50, width=60, height=40)
    frame = client.render(
        Spheres.load(cloud), same, gamma=0.01, background=(0, 0.5, 1), outputs=("color", "alpha", "depth")
    )
    np.testing.assert_array_equal(np.load(color), frame.color)
    np.testing.assert_array_equal(np.load(depth), frame.depth)
    saved = np.load(everything)
    assert set(saved) == {"color", "alpha", "depth"}
    for name in saved:
        np.testing.assert_array_equal(saved[name], frame[name])


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 4)])
def test_png_levels_are_rounded_and_clipped(tmp_path, shape):
    picture = np.linspace(-0.5, 1.5, int(np.prod(shape))).reshape(shape)
    write_image(tmp_path / "out.png", picture)
    read = np.asarray(Image.open(tmp_path / "out.png"))
    expected = np.clip(np.floor(picture * 255 + 0.5), 0, 255)
    np.testing.assert_array_equal(read.reshape(shape), expected)


def test_pictures_may_be_named_by_strings(tmp_path):
    check_suffix(f"{tmp_path}/shade.png", 1)
    write_depth(f"{tmp_path}/depth.npy", np.ones((4, 5)))
    write_depth(f"{tmp_path}/shade.png", np.ones((4, 5)))
    write_image(f"{tmp_path}/out.jpg", np.zeros((4, 5, 3)))
    assert {path.name for path in tmp_path.iterdir()} == {"depth.npy", "shade.png", "out.jpg"}


VIEW = aim.View(100, 50, 40.0, (0.0, 1.0, 0.0))
BALL = Spheres([[1, 2, 3], [3, 2, 3]], np.ones((2, 3)), [0.5, 0.5])


def test_orbit_fits_the_cloud_into_the_narrower_side():
    camera = aim.parse("orbit 0,0").camera(BALL, VIEW)
    center, radius = aim.enclosing_ball(BALL)
    np.testing.assert_allclose(center, (2, 2, 3))
    assert radius == pytest.approx(1.5)
    distance = np.linalg.norm(camera.model.eye - center)
    assert 1.05 < distance / (radius / np.sin(np.radians(20))) < 1.2
    tall = aim.parse("orbit 0,0").camera(BALL, aim.View(50, 100, 40.0, (0.0, 1.0, 0.0)))
    assert np.linalg.norm(tall.model.eye - center) > 1.5 * distance


def test_cameras_in_words_and_files(tmp_path):
    np.testing.assert_allclose(aim.parse("orbit 90,0,7").camera(BALL, VIEW).model.eye, (9, 2, 3), atol=1e-9)
    np.testing.assert_allclose(aim.parse("look-at 0,1,5 -1,0,0").camera(BALL, VIEW).model.eye, (0, 1, 5), atol=1e-9)
    file = tmp_path / "camera.json"
    file.write_text(json.dumps({"parameters": [0, 0, -5, 0, 0, 0, 1, 1], "right_handed": True}))
    pulsar = aim.parse(str(file)).camera(BALL, VIEW)
    assert (pulsar.width, pulsar.height, pulsar.model.right_handed) == (100, 50, True)
    opencv = {"fx": 100, "fy": 90, "cx": 32, "cy": 24, "rotation": np.eye(3).tolist(), "translation": [0, 0, 2]}
    file.write_text(json.dumps({**opencv, "width": 64, "height": 48}))
    camera = aim.parse(str(file)).camera(BALL, VIEW)
    assert (camera.width, camera.model.fy) == (64, 90)
    mirrored = json.dumps({**opencv, "rotation": np.diag([1, 1, -1]).tolist()})
    doubled = json.dumps({**opencv, "rotation": (2 * np.eye(3)).tolist()})
    for broken in ("{", '{"eyes": [0, 0, 0]}', mirrored, doubled):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"^camera: expected a JSON camera in .*camera\.json"):
            aim.parse(str(file)).camera(BALL, VIEW)


def test_strays_do_not_decide_what_is_seen():
    generator = np.random.default_rng(0)
    positions = generator.normal(size=(2000, 3))
    positions[:3] = 1e4
    center, radius = aim.enclosing_ball(Spheres(positions, np.ones((2000, 3)), np.full(2000, 0.01)))
    assert np.linalg.norm(center) < 0.5
    assert radius < 6


def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "token").write_text("secret\n")
    parser = Parser()
    add_connection(parser)
    for name, value in {"TARGET": "a:1", "TLS": "1", "TOKEN": "other"}.items():
        monkeypatch.setenv(f"LUMIGRAD_{name}", value)
    plain = parser.parse_args([])
    assert (plain.target, tls_of(plain), token_of(plain)) == (None, None, None)
    with connect(plain) as client:
        assert client.target == "a:1"
    told = parser.parse_args(["--target", "b:2", "--no-tls", "--token-file", str(tmp_path / "token")])
    assert (tls_of(told), token_of(told)) == (False, "secret")
    with connect(told) as client:
        assert client.target == "b:2"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of Bash with buffered output; what is written to descriptor 3 has no reader."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", f"exec 3> >(exec 3>&-); wait $!; {line}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        env=variables,
    )


@pytest.mark.parametrize(("closed", "code"), [("2>&-", 0), ("2>/dev/full", 0), (">&- 2>&- <&-", 1)])
def test_messages_need_no_stream(tmp_path: Path, closed: str, code: int) -> None:
    ended = shell(f"exec {LUMIGRAD} convert sample:vase vase.splat {closed}", tmp_path)
    assert (ended.returncode, ended.stderr) == (code, "")
    ended = shell(f"exec {LUMIGRAD} convert none.ply vase.ply {closed}", tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert (tmp_path / "vase.splat").stat().st_size == 45_000 * 32


def test_a_file_is_whole_with_what_belongs_to_it_although_its_summary_cannot_be_written(tmp_path: Path) -> None:
    ended = shell(f"PYTHONUNBUFFERED=1 exec {LUMIGRAD} convert sample:vase vase.spz >/dev/full", tmp_path)
    assert (ended.returncode, ended.stderr) == (1, "lumigrad: error: standard output: no space left on device\n")
    assert {path.name for path in tmp_path.iterdir()} == {"vase.spz", "vase.view.json"}


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8:strict", "é\\udcff"), ("ascii:strict", "\\xe9\\udcff")])
def test_names_that_are_no_text_are_printed_all_the_same(tmp_path: Path, encoding: str, shown: str) -> None:
    ended = shell(f"PYTHONIOENCODING={encoding} exec {LUMIGRAD} convert sample:vase $'é\\xff.spz'", tmp_path)
    assert (ended.returncode, ended.stdout.partition(".spz: ")[0]) == (0, shown), ended.stderr


@pytest.mark.parametrize(
    "command", ["serve --device cpu --port 0", "fit none -o a.ply --logdir log", "convert sample:vase a.ply"]
)
def test_a_working_directory_that_was_removed_is_named(tmp_path: Path, command: str) -> None:
    ended = shell(f"mkdir gone; cd gone; rmdir ../gone; exec {LUMIGRAD} {command}", tmp_path)
    text = "lumigrad: error: the working directory was removed; change to one that exists\n"
    assert (ended.returncode, ended.stderr) == (1, text)


@pytest.mark.parametrize("command", ["info sample:vase --json", "query --help", "--version"])
def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path, command: str) -> None:
    for output, code, said in (
        (">/dev/full", 1, "lumigrad: error: standard output: no space left on device\n"),
        (">&-", 1, "lumigrad: error: standard output: bad file descriptor\n"),
        (">&3", 141, ""),
    ):
        ended = shell(f"exec {LUMIGRAD} {command} {output}", tmp_path)
        assert (ended.returncode, ended.stderr) == (code, said)
