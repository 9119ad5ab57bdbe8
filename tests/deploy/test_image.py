"""The CPU image without an engine for containers: the steps of the Dockerfile in a bare Debian, and the worker in it.

Needs root, the network and about three minutes: `make test-image`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumigrad.client import Client
from support.deploy.dockerfile import Image, chain, stages_of
from support.deploy.tools import need
from support.workers.mixed_load import CAMERA, spheres
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("LUMIGRAD_TEST_IMAGE" not in os.environ, reason="takes minutes: make test-image"),
]

ROOT = Path(__file__).parents[2]
SECONDS = 60
# The bare Debian is kept for later runs.
KEPT = ROOT / "build" / "debian"
# debian:bookworm-slim is this, without its documents.
DEBIAN = ("--variant=minbase", "--include=ca-certificates", "bookworm")
# The files by which this machine reaches the network.
MACHINE = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")


def may_mount() -> bool:
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode == 0


def folder_of_wheels() -> str:
    """The folder in which pip is configured to look beside its index; empty if there is none."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout.strip()
    return os.environ.get("PIP_FIND_LINKS") or told


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if os.geteuid() != 0 or not may_mount():
        pytest.fail("builds the image in a chroot, which takes root and the right to mount; containers often lack it")
    if sys.version_info[:2] != (3, 11):
        pytest.fail("the image has Python 3.11, and only that Python builds a wheel which fits it")
    folder = tmp_path_factory.mktemp("image")
    root = folder / "root"
    if not KEPT.exists():
        made = folder / "debian"
        program = need("debootstrap", "apt-get install debootstrap")
        done = subprocess.run([program, *DEBIAN, str(made)], capture_output=True, text=True, timeout=400)
        if done.returncode != 0:
            pytest.fail(f"debootstrap cannot download Debian, of which the image is made: {done.stdout[-500:]}")
        KEPT.parent.mkdir(exist_ok=True)
        shutil.move(made, KEPT)
    subprocess.run(["cp", "-a", str(KEPT), str(root)], check=True)
    wheels, cache = folder / "wheels", folder / "cache"
    wheels.mkdir(), cache.mkdir()
    # The wheel that the compiling stages would leave; it is built from the same sources.
    (wheel,) = (ROOT / "dist").glob("lumigrad-*.whl")
    shutil.copy(wheel, wheels)
    links = folder_of_wheels()
    image = Image(
        root,
        ROOT,
        {"wheel-cpu": wheels},
        cache,
        files=[Path(name) for name in MACHINE],
        folders=[Path(links)] if links else [],
        # torch's index cannot be reached from everywhere; its build for the CPU, the one with the lock's hash, can be
        # in a folder instead.
        arguments={"TORCH_INDEX": "https://pypi.org/simple", "PIP_FIND_LINKS": links} if links else {},
    )
    image.build(chain(stages_of(ROOT / "Dockerfile"), "cpu"))
    yield image
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one volume, which belongs to the container's user."""
    folder = tmp_path_factory.mktemp("spool")
    os.chown(folder, 10001, 10001)
    return folder


@pytest.fixture(scope="module")
def contained(image: Image, spool: Path) -> Iterator[WorkerProcess]:
    inside = image.command(*image.entrypoint, binds={"/var/lib/lumigrad/spool": spool})
    # The container has processes of its own, too: the entry point is the first.
    command = ("unshare", "--pid", "--fork", "--kill-child", *inside)
    options = ("--device", "cpu", "--spool", "/var/lib/lumigrad/spool", "--lame-duck-seconds", "0")
    process = WorkerProcess(*options, command=command, supervised=True)
    yield process
    process.process.kill()
    process.wait()


def first_process(contained: WorkerProcess) -> int:
    children = Path(f"/proc/{contained.process.pid}/task/{contained.process.pid}/children")
    (child,) = children.read_text().split()
    return int(child)


def test_it_renders(contained: WorkerProcess) -> None:
    with Client(contained.target) as client:
        assert client.render(client.put(spheres()), CAMERA).color.any()


def test_it_runs_as_nobody_in_particular_without_capabilities(contained: WorkerProcess) -> None:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{first_process(contained)}/status").read_text().splitlines()
    )
    assert set(status["Uid"].split()) == {"10001"} and set(status["Gid"].split()) == {"10001"}
    assert int(status["CapEff"], 16) == 0


def test_only_its_volumes_can_be_written(image: Image, contained: WorkerProcess) -> None:
    root = Path("/proc", str(first_process(contained)), "root")
    for place in (".", "opt/lumigrad", "etc", "var/lib/lumigrad"):
        with pytest.raises(OSError):
            (root / place / "written").write_text("")
    written = root / "tmp" / "written"
    written.write_text("")
    written.unlink()


def test_its_health_check_passes(image: Image, contained: WorkerProcess) -> None:
    image.environment["LUMIGRAD_TARGET"] = contained.target
    done = subprocess.run(image.command(*image.health), capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "SERVING\n"), done.stderr


def test_it_keeps_scenes_in_its_volume(contained: WorkerProcess, spool: Path) -> None:
    with Client(contained.target) as client:
        client.put(spheres(seed=5))
    wait_until(
        lambda: any(path.is_file() and path.stat().st_size > 1000 for path in spool.rglob("*")), "a stored scene"
    )


def test_it_is_what_its_labels_say(image: Image) -> None:
    said = subprocess.run(image.command("lumigrad", "--version"), capture_output=True, text=True, timeout=SECONDS)
    assert said.returncode == 0, said.stderr
    assert image.labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_it_stops_when_it_is_told_to(contained: WorkerProcess) -> None:
    os.kill(first_process(contained), signal.SIGTERM)
    assert contained.wait() == 0
