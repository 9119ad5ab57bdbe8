"""The demo and the code in the porting guides, which users copy first, work."""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import runpy
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from lumigrad.client import Gaussians
from lumigrad.client.cli import main
from support.deploy.tools import need_module
from support.files.dataset_files import shots, write_cameras_json
from support.files.documents import ROOT, run_code_of
from support.files.robot_files import ZOO, write_urdf
from support.workers.worker import WorkerProcess

EXAMPLES = ROOT / "examples"
PICTURES = {"target_image.png", "initial.png", "fit.png", "demo.png", "loss.png", "plan.png", "plan_scene.png"}


@pytest.fixture
def run_example(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs an example on the shared worker, in this process, since imports take longer than the example.

    Returns what it printed.
    """

    def run(name: str, *options: object) -> str:
        monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert not ended.value.code
        return capsys.readouterr().out

    return run


@pytest.fixture
def run_page(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the code of a page in a folder of the test's own, on the shared worker; returns its names."""
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    monkeypatch.chdir(tmp_path)
    return run_code_of


def test_git_ignores_and_make_removes_what_examples_write():
    written = set(re.findall(r'default=Path\("(\w+)"\)', "".join(path.read_text() for path in EXAMPLES.glob("*.py"))))
    assert {f"{name}/" for name in written} <= set((ROOT / ".gitignore").read_text().split())
    removed = re.search(r"^clean:\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert written <= set(removed.split())


def test_git_ignores_what_the_readme_and_the_tutorials_write(tmp_path: Path):
    pages = [ROOT / "README.md", *(ROOT / "docs" / "tutorials").glob("*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    written = set(re.findall(r"(?:-o|-out|-keyout|sample capture) ([\w.]+\.\w+|vase)\b", text))
    written |= set(re.findall(r'(?:write_\w+|savefig|np\.save|Path)\("([\w.]+)"', text))
    assert len(written) > 12
    written |= {"fitted.fit", "fitted.view.json"}
    # A folder is ignored together with its files.
    names = [f"{name}/x" if name == "vase" else name for name in sorted(written)]
    # The test makes a repository of its own, since the tests also run on sources without a history.
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text(encoding="utf-8"), encoding="utf-8")
    ignored = subprocess.run(["git", "check-ignore", *names], cwd=tmp_path, capture_output=True, text=True)
    assert ignored.stdout.split() == names


def test_the_demos_scene_has_no_cracks(monkeypatch: pytest.MonkeyPatch):
    """A place of the surface that lies in no sphere is a hole: the demo's target image shows the inside there."""
    monkeypatch.syspath_prepend(EXAMPLES)
    knot = importlib.import_module("knot").knot
    scene, dense = knot(), knot(60_000)
    centers = torch.from_numpy(np.array(scene.positions))
    places = torch.from_numpy(np.array(dense.positions[30_000::4]))
    free = torch.cat([torch.cdist(part, centers).amin(dim=1) for part in places.split(500)])
    assert len(free) == 7500 and float(free.max()) < 0.8 * scene.radii.min()


@pytest.mark.slow
def test_the_demo_converges_and_leaves_its_pictures(tmp_path: Path, run_example):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    said = run_example("demo.py", "--steps", 30, "--output", tmp_path / "out")
    before, after = re.search(r"went from ([\d.]+) to ([\d.]+) dB", said).groups()
    assert float(after) > float(before) + 4
    before, after = re.search(r"went from (-?[\d.]+) to (-?[\d.]+) mm", said).groups()
    assert float(before) < -50 and float(after) > 10
    assert PICTURES | {"fit.ply", "arm.urdf"} == {path.name for path in (tmp_path / "out").iterdir()}
    for name in PICTURES:
        assert np.asarray(Image.open(tmp_path / "out" / name).convert("L")).std() > 5, name


@pytest.mark.slow
def test_control_c_ends_the_demo_and_its_worker(tmp_path: Path):
    # A terminal, on which the demo shows its progress.
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-u", EXAMPLES / "demo.py", "--steps", "100000", "--output", tmp_path]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, text=True, start_new_session=True)
    os.close(its)
    said = ""
    # After the first step nothing is imported any more: some packages swallow what is raised during an import.
    while "PSNR" not in said:
        said += os.read(ours, 4096).decode()
    started = psutil.Process(demo.pid).children(recursive=True)
    # A terminal interrupts all processes in its foreground.
    os.killpg(demo.pid, signal.SIGINT)
    # Reading from a terminal without programs is an error.
    with suppress(OSError):
        while more := os.read(ours, 4096):
            said += more.decode(errors="replace")
    os.close(ours)
    demo.communicate(timeout=100)
    assert demo.returncode == 130, said
    assert said.rstrip().endswith("stopped") and "Traceback" not in said
    assert started and not psutil.wait_procs(started, timeout=100)[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_ended_or_loses_its_terminal_leaves_no_worker(number: signal.Signals, tmp_path: Path):
    # Programs that nohup starts ignore SIGHUP, and so do their children.
    program = f"""
import signal, time, local_worker
signal.signal({int(number)}, signal.SIG_DFL)
with local_worker.worker(local_worker.Path("log")) as target:
    print(target, flush=True)
    # A signal just before `signal.pause()` would not end that.
    while True:
        time.sleep(0.1)
"""
    environment = {name: value for name, value in os.environ.items() if name != "LUMIGRAD_TARGET"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env={**environment, "PYTHONPATH": str(EXAMPLES)}
    ) as process:
        assert process.stdout.readline().startswith("127.0.0.1:")
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(100) == 128 + number
    assert started and not psutil.wait_procs(started, timeout=100)[1]


@pytest.mark.slow
def test_the_planner_runs_by_itself(tmp_path: Path, run_example):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    said = run_example("planner.py", "--steps", 10, "--output", tmp_path)
    before, after = map(int, re.search(r"went from (-?\d+) to (-?\d+) mm", said).groups())
    assert before < -50 and after > before
    assert {"plan.png", "plan_scene.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_losses_of_any_framework_train_on_the_worker(library: str, tmp_path: Path, run_example):
    pytest.importorskip(library)
    said = run_example("own_loss.py", "--with", library, "--steps", 60, "--output", tmp_path)
    before, after = map(float, re.search(r"went from ([\d.]+) to ([\d.]+)", said).groups())
    assert after < 0.5 * before
    assert np.asarray(Image.open(tmp_path / "own_loss.png").convert("L")).std() > 5


@pytest.mark.parametrize("example", ["torch_fit.py", "jax_fit.py"])
def test_gaussians_are_fitted_with_an_optimiser_of_a_framework(example: str, tmp_path: Path, run_example):
    pytest.importorskip(example.partition("_")[0])
    said = run_example(example, "--steps", 30, "--output", tmp_path)
    before, after = map(float, re.search(r"from ([\d.]+) to ([\d.]+) dB", said).groups())
    assert after > before + 3
    assert np.asarray(Image.open((tmp_path / example).with_suffix(".png")).convert("L")).std() > 5
    if example == "torch_fit.py":
        assert len(Gaussians.load(tmp_path / "torch_fit.ply")) == 1500


@pytest.mark.slow
def test_the_gallery_is_rendered(tmp_path: Path, run_example):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    said = run_example("gallery.py", "--steps", 120, "--output", tmp_path)
    before, after = map(float, re.search(r"fit: ([\d.]+) to ([\d.]+) dB", said).groups())
    assert after > before + 4
    rendered = {path.name for path in tmp_path.glob("*.jpg")}
    assert rendered == {path.name for path in (ROOT / "docs" / "images" / "gallery").iterdir()}
    for name in rendered:
        assert np.asarray(Image.open(tmp_path / name).convert("L")).std() > 5, name


def test_a_turn_is_rendered_from_a_coroutine(tmp_path: Path, run_example):
    said = run_example("async_turn.py", "--frames", 12, "--output", tmp_path)
    # A fast worker has drawn the frames before the second look.
    assert int(re.search(r"looked at the queue (\d+) times", said)[1]) > 0
    assert "given up" in said
    assert np.asarray(Image.open(tmp_path / "turn.png")).shape == (180, 6 * 240, 3)


@pytest.mark.slow
def test_a_coroutine_trains_and_looks_on(tmp_path: Path, run_example):
    said = run_example("async_training.py", "--steps", 60, "--output", tmp_path)
    before, after = map(float, re.search(r"from ([\d.]+) to ([\d.]+) dB", said).groups())
    assert after > before + 2
    assert np.asarray(Image.open(tmp_path / "async_training.png").convert("L")).std() > 5


def test_the_code_of_the_porting_guide_runs(run_page):
    names = run_page(ROOT / "docs" / "porting_pytorch3d.md")
    assert names["image"].shape == (256, 256, 3)
    assert names["result"].alpha.shape == (256, 256)
    assert names["positions"].grad.abs().max() > 0


def test_the_code_of_the_guide_for_gsplat_runs(run_page):
    names = run_page(ROOT / "docs" / "porting_gsplat.md")
    assert names["image"].shape == (1, 200, 300, 3)
    assert names["result"].expected_depth.shape == (1, 200, 300)
    assert names["means"].grad.abs().max() > 0


def test_the_code_of_the_guide_for_inria_runs(run_page):
    torch.manual_seed(0)
    names = run_page(ROOT / "docs" / "porting_inria.md")
    assert names["color"].shape == (3, 200, 300)
    seen = names["expected_depth"][names["depth"][1] < 0.5]
    assert seen.min() > 2 and seen.max() < 8
    assert names["screenspace_points"].grad.abs().max() > 0


def test_the_code_of_the_guide_for_curobo_runs(run_page):
    torch.manual_seed(0)
    names = run_page(ROOT / "docs" / "porting_curobo.md")
    assert names["cost"].shape == (2, 30, 5) and names["spheres"].grad.abs().max() > 0
    assert names["field"].feature_tensor.max() > 0 > names["field"].feature_tensor.min()
    assert names["static"].data_ptr() == names["out_cost"].data_ptr() and names["out_grad"].abs().max() > 0
    assert names["points"].grad.abs().max() > 0 and names["poses"].grad.abs().max() > 0


def test_the_code_of_the_readme_runs(run_page):
    names = run_page(ROOT / "README.md")
    assert names["found"].distance.shape == (1,) and names["found"].distance[0] > 0
    for name in ("means", "quats", "log_scales", "logits", "colors", "viewmats", "Ks", "spheres"):
        assert names[name].grad.abs().max() > 0, name


def test_the_code_about_coroutines_runs(run_page):
    names = run_page(ROOT / "docs" / "asynchronous.md")
    assert len(names["brightness"]) == 26 and min(names["brightness"]) > 0
    assert names["loss"] > 0


def test_the_code_about_gaussians_runs(run_page):
    names = run_page(ROOT / "docs" / "gaussians.md")
    assert names["frame"].expected_depth.max() > 4
    for name in ("means", "quats", "scales", "opacities", "sh", "camera_pose"):
        assert np.abs(names["gradients"][name]).max() > 0, name
    assert names["backward"].gradients["means2d_abs"].max() > 0


def test_the_code_about_spheres_runs(run_page, tmp_path: Path):
    names = run_page(ROOT / "docs" / "spheres.md")
    assert (tmp_path / "cloud.ply").exists()
    assert np.abs(names["gradients"].positions).max() > 0
    assert names["cam_params"].grad.abs().max() > 0
    assert names["backward"].gradients["radii"].abs().max() > 0


def test_the_code_about_meshes_runs(run_page, tmp_path: Path):
    pytest.importorskip("yourdfpy", reason="needs the extra robot")
    write_urdf(Path("arm.urdf"), ZOO)
    names = run_page(ROOT / "docs" / "meshes.md")
    assert names["free"].shape == (4, 30, 10) and names["swept"].cost.max() > 0
    for name in ("spheres", "poses"):
        assert np.abs(names["gradients"][name]).max() > 0, name
    for name in ("trajectories", "poses", "q"):
        assert names[name].grad.abs().max() > 0, name
    assert names["field"].distances.shape == (40, 40, 20) and names["mesh"].report.closed
    assert names["backward"].gradients["poses"].abs().max() > 0


def test_the_code_about_density_runs(run_page):
    names = run_page(ROOT / "docs" / "density.md")
    plan, relocation, addition = names["plan"], names["relocation"], names["addition"]
    assert plan.cloned > 0 and plan.split > 0 and plan.pruned > 0
    assert relocation.relocated == relocation.dead
    assert addition.added == int(1.05 * plan.count) - plan.count == names["parameters"].count - plan.count


def test_the_code_about_files_runs(run_page, scene: Path):
    Path("garden").mkdir()
    write_cameras_json(Path("garden/cameras.json"), shots(), 64, 48, (50.0, 50.0))
    assert not main(["convert", scene.name, "city", "--levels"])
    names = run_page(ROOT / "docs" / "formats.md")
    assert len(names["capture"].views) == len(shots())
    assert Path("scene.spz").exists()


@pytest.mark.slow
def test_the_sample_scene_can_be_made_again(run_example, tmp_path: Path):
    size = ["--photographs", 9, "--size", "64x48"]
    run_example("sample_scene.py", *size, "--steps", 40, "--cap", 7000, "--output", tmp_path)
    scene = Gaussians.load(tmp_path / "vase.spz")
    assert len(scene) <= 7000 and scene.sh_degree == 1
    assert (tmp_path / "vase.view.json").is_file()


def planned(goal: str, environment: Path, *assignments: str) -> str:
    """The commands that make would run in a checkout with this environment."""
    # A GNUmakefile of the developer's own would come before the Makefile.
    command = ["make", "-f", "Makefile", "-n", goal, f"VENV={environment}", *assignments]
    # Variables of this run, such as its build flags, must not change the plan.
    variables = {name: value for name, value in os.environ.items() if name not in ("BUILD_FLAGS", "CUDA", "MAKEFLAGS")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_installs_what_it_needs_and_leaves_the_rest_to_the_tests(tmp_path: Path):
    fresh = planned("demo", tmp_path)
    assert "LUMIGRAD_CUDA=OFF" in fresh and ".[dev]" not in fresh and "examples/demo.py" in fresh
    on_gpu = planned("demo", tmp_path, "CUDA=ON")
    assert "LUMIGRAD_CUDA=ON" in on_gpu and ".[dev]" in on_gpu
    # `make setup` installs the rest, and builds for GPUs again, whatever the demo has left.
    (tmp_path / ".demo").touch()
    complete = planned("setup", tmp_path)
    assert ".[dev]" in complete and "LUMIGRAD_CUDA=AUTO" in complete
    flags = planned("setup", tmp_path, "BUILD_FLAGS=-C cmake.define.LUMIGRAD_CUDA=ON")
    assert "LUMIGRAD_CUDA=ON" in flags and "LUMIGRAD_CUDA=AUTO" not in flags
    # If everything is installed, the demo uses it.
    for stamp in (".dependencies", ".installed"):
        (tmp_path / stamp).touch()
    assert "pip install" not in planned("demo", tmp_path)


def test_robots_stand_before_splats(run_example, tmp_path: Path):
    need_module("mujoco", "mujoco")
    # MuJoCo draws its robots by the machine's OpenGL, which pip cannot install.
    probe = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    environment = {"MUJOCO_GL": "egl", **os.environ}
    done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"MuJoCo draws by the system's OpenGL (apt-get install libegl1), which does not work here: {error}")
    options = ("--environments", 5, "--size", 48, "--steps", 2, "--output", tmp_path)
    said = run_example("robot_cameras.py", *options)
    assert re.search(r"^one call: [\d.]+ steps/s, .*^a loop of calls: [\d.]+ steps/s", said, re.MULTILINE | re.DOTALL)
    pixels = np.asarray(Image.open(tmp_path / "robot_cameras.png")).astype(int)
    assert pixels.shape == (96, 96, 3)
    # The forearm is MuJoCo's, the wood of the table is a splat's.
    orange = (pixels[..., 0] > 150) & (pixels[..., 2] < 60) & (pixels[..., 1] > 60) & (pixels[..., 1] < 160)
    assert orange.any()
    assert (pixels.max(axis=-1) > 20).mean() > 0.2
