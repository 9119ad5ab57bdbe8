"""The programs of docs/other_languages.md draw the picture that the Python client draws."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import files as files_of
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, Spheres
from support.files.documents import ROOT, blocks_of
from support.workers.worker import worker

PAGE = ROOT / "docs" / "other_languages.md"
# Debian's sources of Go packages.
GO_PACKAGES = Path("/usr/share/gocode")


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with worker("--reflection", "--device", "cpu") as process:
        yield process.target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the contract's files, as the page prepares it."""
    (tmp_path / "protos").symlink_to(ROOT / "protos")
    for file in files_of("googleapis-common-protos") or ():
        if file.suffix == ".proto" and file.parent.name == "rpc":
            place = tmp_path / "build" / "protos" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), place)
    return tmp_path


def need(*programs: str) -> None:
    """Skips the test if a program is missing, even in CI, which installs no other languages."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def run(command: str, folder: Path, **variables: str) -> None:
    environment: Mapping[str, str] = {**os.environ, **variables}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]


def check_picture(file: Path, target: str) -> None:
    spheres = Spheres(
        positions=[[-0.5, 0, 4], [1, 0, 5]], colors=[[1, 0.4, 0.1], [0.1, 0.5, 1]], radii=np.array([1, 0.8])
    )
    camera = Camera.opencv(300, 300, 160, 120, np.eye(3), np.zeros(3), width=320, height=240)
    with Client(target) as client:
        levels = client.render(spheres, camera, image_format="uint8").color
    with Image.open(io.BytesIO(file.read_bytes())) as image:
        np.testing.assert_array_equal(np.asarray(image), levels)


def written(folder: Path, language: str, name: str) -> None:
    (text,) = blocks_of(PAGE, language)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def test_a_program_in_node(target: str, folder: Path) -> None:
    need("node", "npm")
    written(folder, "js", "first.js")
    install = "npm install --no-audit --no-fund --silent @grpc/grpc-js @grpc/proto-loader"
    if subprocess.run(install.split(), cwd=folder, capture_output=True, timeout=250, check=False).returncode:
        pytest.skip("needs the npm registry for @grpc/grpc-js and @grpc/proto-loader")
    run(f"node first.js {target} first.png", folder)
    check_picture(folder / "first.png", target)


def test_a_program_in_go(target: str, folder: Path) -> None:
    need("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    if not (GO_PACKAGES / "src" / "google.golang.org" / "grpc").is_dir():
        pytest.skip("needs golang-google-grpc-dev and golang-github-golang-protobuf-1-5-dev")
    written(folder, "go", "src/first/first.go")
    generate = next(block for block in blocks_of(PAGE, "sh") if "--go_out" in block)
    run(f"{generate}\nmv lumigrad src/", folder)
    run("go build -o first first", folder, GO111MODULE="off", GOPATH=f"{folder}:{GO_PACKAGES}")
    run(f"./first {target} first.png", folder)
    check_picture(folder / "first.png", target)


@pytest.mark.timeout(900)
def test_a_program_in_cpp(target: str, folder: Path) -> None:
    """The program is compiled once for each text of the page and the contract, which takes most of a minute."""
    need("c++", "pkg-config", "protoc", "grpc_cpp_plugin")
    version = subprocess.run(["pkg-config", "--modversion", "grpc++"], capture_output=True, check=False)
    if version.returncode:
        pytest.skip("needs libgrpc++-dev")
    written(folder, "cpp", "first.cpp")
    command = next(block for block in blocks_of(PAGE, "sh") if "--cpp_out" in block)
    made_of = [version.stdout, command.encode(), *(path.read_bytes() for path in sorted(folder.rglob("*.cpp")))]
    made_of += [path.read_bytes() for path in sorted((ROOT / "protos").rglob("*.proto"))]
    program = ROOT / "build" / "other_languages" / hashlib.sha256(b"".join(made_of)).hexdigest()[:16]
    if not program.exists():
        run(command, folder)
        program.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "first", program)
    run(f"{program} {target} first.png", folder)
    check_picture(folder / "first.png", target)


def test_calls_with_grpcurl(target: str, folder: Path) -> None:
    need("grpcurl", "python3", "base64", "sed")
    written(folder, "bash", "first.sh")
    run(f"bash first.sh {target} first.png", folder)
    check_picture(folder / "first.png", target)
