"""Every writer replaces a file only once the new one is complete."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Gaussians, Mesh, Spheres
from lumigrad.client.base.replacing import replaced, write_text
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.errors import LumigradError
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.save import WRITABLE
from lumigrad.client.formats.usd import write as usd_files
from lumigrad.client.pictures import write_depth, write_image
from lumigrad.client.shell import exits
from lumigrad.client.video import VideoWriter
from support.held_disk import full_disk
from support.workers.slow_render import wait_until
from support.workers.worker import LUMIGRAD

COUNT, LIMIT = 4000, 2000


def gaussians(seed: int) -> Gaussians:
    generator = np.random.default_rng(seed)
    means, quats = generator.normal(size=(COUNT, 3)), generator.normal(size=(COUNT, 4))
    scales, opacities = generator.uniform(0.01, 0.1, (COUNT, 3)), generator.uniform(0.1, 0.9, COUNT)
    return Gaussians(means, quats, scales, opacities, sh=generator.normal(size=(COUNT, 4, 3)))


def capture(seed: int) -> Capture:
    generator = np.random.default_rng(seed)
    views = [View(f"v{k}", Camera.orbit((0, 0, 0), 3, 4 * k + seed, 10, width=8, height=8)) for k in range(40)]
    return Capture(tuple(views), Points(generator.normal(size=(COUNT, 3)), np.zeros((COUNT, 3))))


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (128, 128, 3), np.uint8)


def video(path: Path, seed: int) -> None:
    with VideoWriter(path, 128, 128, 10) as writer:
        for frame in range(4):
            writer.add(pixels(seed + frame))


def spheres(path: Path, seed: int) -> None:
    Spheres(np.random.default_rng(seed).normal(size=(COUNT, 3)), np.zeros((COUNT, 3)), np.ones(COUNT)).save(path)


def mesh(path: Path, seed: int) -> None:
    faces = np.random.default_rng(seed).permutation(3 * COUNT).reshape(COUNT, 3)
    Mesh(np.random.default_rng(seed).normal(size=(3 * COUNT, 3)), faces).save(path)


def export(path: Path, seed: int) -> None:
    """Writes a scene with gsplat's exporter."""
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from lumigrad.client.compat.gsplat.exporter import export_splats

    made = torch.randn(COUNT, 14, generator=torch.Generator().manual_seed(seed))
    means, scales, quats, opacities, sh0 = made.split([3, 3, 4, 1, 3], dim=1)
    export_splats(means, scales, quats, opacities[:, 0], sh0[:, None], sh0[:, None][:, :0], save_to=path)


# Functions that write a file of this name, from a path and a seed.
WRITERS: dict[str, Callable[[Path, int], Any]] = {
    **dict.fromkeys((f"scene{suffix}" for suffix in WRITABLE), lambda path, seed: gaussians(seed).save(path)),
    "points.ply": spheres,
    **dict.fromkeys(("part.stl", "part.obj", "part.glb"), mesh),
    "data/transforms.json": lambda path, seed: capture(seed).save(path.parent),
    "data/points.ply": lambda path, seed: capture(seed).save(path.parent),
    "data/sparse/0/images.txt": lambda path, seed: capture(seed).save(path.parents[2], form="colmap"),
    **dict.fromkeys(("picture.png", "picture.jpg"), lambda path, seed: write_image(path, pixels(seed))),
    "depth.npy": lambda path, seed: write_depth(path, pixels(seed)[..., 0].astype(np.float32)),
    "turn.mp4": video,
    "exported.ply": export,
    "report.html": lambda path, seed: write_text(path, f"{seed}" * 9000),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file_whole_and_nothing_beside_it(tmp_path: Path, name: str) -> None:
    if package := {".usd": "pxr", ".mp4": "imageio_ffmpeg"}.get(Path(name).suffix[:4]):
        pytest.importorskip(package)
    path, write = tmp_path / name, WRITERS[name]
    write(path, 1)
    path.chmod(0o640)
    before = contents(tmp_path)
    assert len(before[name]) > LIMIT
    with full_disk(LIMIT), pytest.raises(Exception) as raised:
        write(path, 2)
    assert not isinstance(raised.value, AssertionError)
    assert isinstance(raised.value, LumigradError) or raised.value.filename
    assert contents(tmp_path) == before
    write(path, 2)
    assert contents(tmp_path).keys() == before.keys() and path.read_bytes() != before[name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_gsplats_exporter_does_not_write_into_the_old_file(tmp_path: Path) -> None:
    export(tmp_path / "scene.ply", 1)
    before = (tmp_path / "scene.ply").read_bytes()
    with open(tmp_path / "scene.ply", "rb") as old:
        export(tmp_path / "scene.ply", 2)
        assert old.read() == before != (tmp_path / "scene.ply").read_bytes()


def test_a_package_that_openusd_has_not_written_whole_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pxr")
    exported, room = usd_files._exported, ExitStack()

    def then_full(layer: Any, path: Path) -> None:
        exported(layer, path)
        room.enter_context(full_disk(LIMIT))

    monkeypatch.setattr(usd_files, "_exported", then_full)
    with room, pytest.raises(OSError, match="is the disk full") as raised:
        gaussians(1).save(tmp_path / "scene.usdz")
    assert raised.value.filename == str(tmp_path / "scene.usdz")
    assert not contents(tmp_path)


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as absent:
        gaussians(1).save(tmp_path / "none" / "scene.ply")
    assert absent.value.filename == str(tmp_path / "none" / "scene.ply")
    (tmp_path / "folder.ply").mkdir()
    with pytest.raises(IsADirectoryError) as folder:
        gaussians(1).save(tmp_path / "folder.ply")
    assert folder.value.filename == str(tmp_path / "folder.ply")
    assert not list((tmp_path / "folder.ply").iterdir())


def test_names_in_a_text_may_be_no_text(tmp_path: Path) -> None:
    write_text(tmp_path / "page.html", os.fsdecode(b"\xff.ply"))
    assert (tmp_path / "page.html").read_bytes() == b"\xff.ply"


def test_a_video_names_what_keeps_its_file_from_being_made() -> None:
    pytest.importorskip("imageio_ffmpeg")
    # No user can make a file in this folder.
    with pytest.raises(OSError) as refused:
        video(Path("/proc/turn.mp4"), 1)
    assert refused.value.errno and refused.value.filename == "/proc/turn.mp4"


def test_new_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new.txt", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640


def test_links_stay_links_and_long_names_are_written(tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    for link, target in (("old.txt", "scenes/old.txt"), ("new.txt", "scenes/new.txt")):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "scenes/old.txt").write_text("before")
    for name in ("old.txt", "new.txt"):
        write_text(tmp_path / name, "after")
        assert (tmp_path / name).is_symlink() and (tmp_path / "scenes" / name).read_text() == "after"
    write_text(tmp_path / f"{'ü' * 120}.txt", "long")
    assert len(contents(tmp_path)) == 5


def test_files_that_must_not_be_written_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "fixed.txt").write_text("fixed")
    (tmp_path / "fixed.txt").chmod(0o444)
    if os.access(tmp_path / "fixed.txt", os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(PermissionError):
        write_text(tmp_path / "fixed.txt", "changed")
    assert (tmp_path / "fixed.txt").read_text() == "fixed"


def test_pipes_are_written_directly(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ply")
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe.ply").read_bytes()))
    reader.start()
    gaussians(1).save(tmp_path / "pipe.ply")
    reader.join()
    gaussians(1).save(tmp_path / "file.ply")
    assert read == [(tmp_path / "file.ply").read_bytes()] and (tmp_path / "pipe.ply").is_fifo()


@pytest.mark.parametrize("to_file", [False, True])
def test_standard_output_is_written_directly(tmp_path: Path, to_file: bool) -> None:
    script = "from lumigrad.client.base.replacing import write_text; write_text('/dev/stdout', 'all of it')"
    with open(tmp_path / "out", "w") as file:
        inode = os.fstat(file.fileno()).st_ino
        output = file if to_file else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", script], stdout=output, text=True, check=True)
    assert (done.stdout or (tmp_path / "out").read_text()) == "all of it"
    assert (tmp_path / "out").stat().st_ino == inode and len(contents(tmp_path)) == 1


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "scene.txt").write_text("before")
    with pytest.raises(KeyboardInterrupt), replaced(tmp_path / "scene.txt") as new:
        new.write_text("half")
        raise KeyboardInterrupt
    assert contents(tmp_path) == {"scene.txt": b"before"}


def test_sigterm_removes_what_is_unfinished(tmp_path: Path) -> None:
    command = [LUMIGRAD, "sample", "city", "city.ply", "--count", "100000000"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.iterdir()), "a part of the file")
        process.terminate()
        assert process.wait(150) == exits.TERMINATED
    finally:
        process.kill()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert not list(tmp_path.iterdir())


def test_an_interrupted_video_is_kept_if_it_is_new(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    path = tmp_path / "turn.mp4"
    for expected in ("new", "old"):
        before = contents(tmp_path)
        with pytest.raises(KeyboardInterrupt), VideoWriter(path, 128, 128, 10) as writer:
            writer.add(pixels(1))
            raise KeyboardInterrupt
        assert (contents(tmp_path) == before) == (expected == "old") and list(contents(tmp_path)) == ["turn.mp4"]


def test_the_shell_keeps_the_file_and_names_it(tmp_path: Path) -> None:
    gaussians(1).save(tmp_path / "scene.ply")
    gaussians(2).save(tmp_path / "other.ply")
    SceneView((0, 0, -4), (0, 0, 0), (0, -1, 0), 40.0).save(tmp_path / "scene.ply")
    before = contents(tmp_path)
    script = f"ulimit -f 2; exec {LUMIGRAD} convert other.ply scene.ply"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == "lumigrad: error: scene.ply: file too large\n", done.stderr
    assert contents(tmp_path) == before
