"""Each wheel of `make wheels` and `make wheel-cuda12`, alone in a bare environment: `make test-wheels`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.workers.worker import WorkerProcess

FOLDER = Path(os.environ.get("LUMIGRAD_TEST_WHEELS", ""))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("LUMIGRAD_TEST_WHEELS" not in os.environ, reason="takes minutes: make test-wheels"),
]

SECONDS = 300
TORCH = "torch==2.13.0"
# A wheel's file name, its extra, the packages to install beside it, and the most bytes that it may have.
WHEELS = {
    "client": ("lumigrad-*-py3-none-any.whl", "", (), 2 << 20),
    "cpu": ("lumigrad-[!+]*-cp*-manylinux*.whl", "[server]", (TORCH,), 8 << 20),
    "cuda": ("lumigrad-*+cu13*-cp*-manylinux*.whl", "[server]", (TORCH,), 64 << 20),
    "cuda12": ("lumigrad-*+cu12*-cp*-manylinux*.whl", "[server]", (TORCH,), 64 << 20),
}
RENDER = """
import sys
import numpy as np
from lumigrad.client import Camera, Client, Spheres

camera = Camera.look_at((0, 0, -3), (0, 0, 0), (0, -1, 0), width=64, height=48)
with Client(sys.argv[1]) as client:
    frame = client.render(Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.full(1, 0.5)), camera, retain=True)
    gradients = frame.backward(color=np.ones_like(frame.color), wanted=("positions", "radii"))
print(frame.color.shape, frame.color[24, 32].min() > 0.5, gradients["radii"].shape, "torch" in sys.modules)
"""


def wheel_of(kind: str) -> Path:
    pattern = WHEELS[kind][0]
    found = [path for path in FOLDER.glob(pattern) if "cuda" in kind or "+" not in path.name]
    if "cuda" in kind and not found:
        maker = "make wheels builds it where nvcc is" if kind == "cuda" else "make wheel-cuda12 builds it (12 minutes)"
        pytest.skip(f"there is no wheel {pattern} in {FOLDER}: {maker}")
    assert len(found) == 1, f"expected one wheel {pattern} in {FOLDER}, found {found}"
    return found[0]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The programs of a bare environment in which a wheel is installed; made once for each wheel."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            wheel, (_, extra, packages, _) = wheel_of(kind), WHEELS[kind]
            folder = tmp_path_factory.mktemp(kind)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=SECONDS)
            command = [folder / "bin" / "pip", "install", "--quiet", *packages, f"{wheel}{extra}"]
            subprocess.run(command, check=True, timeout=SECONDS)
            made[kind] = folder / "bin"
        return made[kind]

    return make


@pytest.mark.parametrize("kind", WHEELS)
def test_a_wheel_is_small(kind: str) -> None:
    size = wheel_of(kind).stat().st_size
    print(f"{wheel_of(kind).name}: {size / 1e6:.1f} MB")
    assert size <= WHEELS[kind][3]


def test_the_clients_wheel_takes_neither_torch_nor_a_compiled_module(environment: Callable[[str], Path]) -> None:
    command = [environment("client") / "pip", "list", "--format=freeze"]
    packages = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    # pip spells names as packages do.
    names = {line.partition("==")[0].lower().replace("_", "-") for line in packages.splitlines()}
    needed = {"lumigrad", "numpy", "grpcio", "protobuf", "googleapis-common-protos", "typing-extensions"}
    assert names - {"pip", "setuptools"} == needed, packages


@pytest.mark.parametrize("kind", ["cpu", "cuda", "cuda12"])
def test_a_workers_wheel_serves_the_clients(kind: str, environment: Callable[[str], Path], tmp_path: Path) -> None:
    lumigrad = str(environment(kind) / "lumigrad")
    process = WorkerProcess("--device", "auto", command=(lumigrad, "serve"), environment=dict(os.environ))
    try:
        command = [environment("client") / "python", "-c", RENDER, process.target]
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
        assert result.stdout == "(48, 64, 3) True (1,) False\n", result.stderr
        lack = "build it where nvcc is installed" if kind == "cpu" else "there is no NVIDIA driver here"
        if not Path("/dev/nvidiactl").exists():
            process.wait_for_log(lack)
    finally:
        process.stop()
