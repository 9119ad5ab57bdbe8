"""The tools that `make gpu-build` needs on a bare machine, and what `make gpu-pack` takes there."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.gpu import build, context, pack, site

pytest.importorskip("tomllib", reason="Python 3.10 reads no pyproject.toml")
PACKAGES = Path(sysconfig.get_path("purelib"))
PLUGIN = "import torch\ntorch.cuda.is_available = lambda: True\n"


def ran(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=context.ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of .gpu-pack, and another one in place of SITE, which is assembled from it."""
    folder = tmp_path / "pack"
    folder.mkdir()
    for module in (build, pack, site):
        monkeypatch.setattr(module, "PACK", folder)
    for module in (context, site):
        monkeypatch.setattr(module, "SITE", tmp_path / "site")
    return folder


def test_the_module_is_configured_by_a_python_that_cannot_generate_messages(tmp_path: Path) -> None:
    bare, folder = tmp_path / "bare", tmp_path / "native"
    made = ran([sys.executable, "-m", "venv", "--without-pip", str(bare)])
    assert made.returncode == 0, made.stderr
    program = str(bare / "bin" / "python")
    found = importlib.util.find_spec("nanobind")
    assert found is not None
    assert found.submodule_search_locations
    (bare / PACKAGES.relative_to(sys.prefix) / "nanobind").symlink_to(found.submodule_search_locations[0])
    assert "google" in ran([program, "-c", "import google.rpc"]).stderr
    command = build.configured(folder, "90-real", program)
    if shutil.which("nvcc") is None:
        command.append("-DLUMIGRAD_CUDA=OFF")
    done = ran(command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Instruction sets of the CPU loops:") == 1
    assert ";" not in done.stdout.split("Instruction sets of the CPU loops:")[1].splitlines()[0]
    failed = ran([*command, "-DLUMIGRAD_MESSAGES=ON"])
    assert failed.returncode != 0
    assert "No module named 'google'" in failed.stderr


def headers(folder: Path, minor: int) -> None:
    folder.mkdir(parents=True)
    (folder / "Python.h").touch()
    (folder / "patchlevel.h").write_text(f"#define PY_MAJOR_VERSION\t3\n#define PY_MINOR_VERSION\t{minor}\n")


def test_headers_that_are_missing_are_those_of_the_pack(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build._headers() == []
    nowhere = packed.parent / "nowhere"
    monkeypatch.setattr(build.sysconfig, "get_path", lambda _: str(nowhere))
    with pytest.raises(FileNotFoundError, match=r"Python\.h is neither in .*nowhere nor in .*make gpu-pack HEADERS_OF"):
        build._headers()
    headers(packed / "include", 7)
    with pytest.raises(FileNotFoundError, match=r"has the headers of Python 3\.7, but this is Python"):
        build._headers()
    shutil.rmtree(packed / "include")
    headers(packed / "include", sys.version_info[1])
    assert build._headers() == [f"-DPython_INCLUDE_DIR={packed / 'include'}"]


def program(folder: Path, text: str) -> str:
    folder.mkdir(parents=True)
    file = folder / "python3.12"
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_headers_are_packed_of_a_python_that_has_them(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first Python on PATH only chooses a version, and does not run."""
    folder = packed.parent
    include = folder / "usr" / "include" / "python3.12"
    headers(include, 12)
    (include / "pyconfig.h").write_text("#include <elsewhere>")
    configuration = include.parent / f"{platform.machine()}-linux-gnu" / "python3.12" / "pyconfig.h"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("#define SIZEOF_LONG 8")
    shim = program(folder / "shims", "exit 127")
    good = program(folder / "root" / "versions" / "3.12.1" / "bin", f"echo True {include}")
    monkeypatch.setenv("PYENV_ROOT", str(folder / "root"))
    monkeypatch.setenv("PATH", str(Path(shim).parent))
    assert pack._pythons() == [shim, good]
    pack._headers(None)
    assert build.packed_version(packed / "include") == "3.12"
    assert (packed / "include" / "pyconfig.h").read_text() == "#define SIZEOF_LONG 8"
    with pytest.raises(ValueError, match=r"found no Python\.h; run `make gpu-pack HEADERS_OF=.*asked .*shims"):
        pack._headers(shim)


def wheel(folder: Path, name: str, version: str) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}_of_the_pack.py", "")


@pytest.mark.parametrize(("installed", "unpacked"), [("7.1.0", False), ("6.31.1", False), ("5.29.0", True)])
def test_packages_of_the_pack_replace_those_that_are_too_old(
    packed: Path, monkeypatch: pytest.MonkeyPatch, installed: str, unpacked: bool
) -> None:
    wheel(packed / "wheels", "protobuf", "7.0.0")
    wheel(packed / "wheels", "isal", "1.7.0")
    monkeypatch.setattr(site, "version", lambda _: installed)
    found = site.assemble(packed / "native.so")
    assert ("protobuf-7.0.0" in found["wheels"]) == unpacked
    assert "isal-1.7.0" in found["wheels"]
    assert (packed.parent / "site" / "protobuf_of_the_pack.py").exists() == unpacked


def test_the_pack_has_what_may_be_too_old() -> None:
    wanted = pack.requirements()
    assert any(each.startswith("grpcio==") for each in wanted)
    assert any(each.startswith("protobuf>=") for each in wanted)


def test_tests_are_collected_from_what_is_put_together_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that sees all installed packages but lumigrad collects them, as if this machine had a GPU."""
    monkeypatch.setattr(site, "_INSTALLED", "nowhere")
    pack._messages()
    from lumigrad.kernels import _native

    assert site.assemble(Path(_native.__file__))["messages"] == str(packed / "messages")
    others = packed.parent / "others"
    others.mkdir()
    for path in PACKAGES.iterdir():
        if "lumigrad" not in path.name:
            (others / path.name).symlink_to(path)
    (others / "with_a_gpu.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    environment = context.environment()
    environment["PYTHONPATH"] += f"{os.pathsep}{others}"
    imported = ran([sys.executable, "-S", "-c", "import lumigrad.protos.service as m; print(m)"], **environment)
    assert imported.returncode == 0, imported.stderr
    assert str(packed.parent) in imported.stdout or str(context.ROOT / "protos") in imported.stdout
    chosen = ["-m", "gpu", "tests/kernels", "tests/server"]
    options = ["-S", "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-p", "with_a_gpu"]
    done = ran([sys.executable, *options, *chosen], **environment)
    assert done.returncode == 0, done.stdout[-3000:]
    last = done.stdout.strip().splitlines()[-1]
    assert int(last.split("/")[0]) > 2000, last
    shutil.rmtree(packed.parent / "site" / "lumigrad" / "drive")
    assert ran([sys.executable, "-S", "-c", "import lumigrad.protos.service"], **environment).returncode != 0
