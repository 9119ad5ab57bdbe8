"""Makes .gpu-pack, which `make gpu` needs on a machine without a network: `make gpu-pack`.

Lists and omits what could not be downloaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tomllib

from tests.benchmarks.captured_scenes import FITTED, GARDEN, NoSuchScene, paths_of
from tests.benchmarks.gaussian_scene import TRAINED
from tests.gpu.context import PACK, ROOT
from tests.gpu.site import MESSAGES, protos_digest

MOST_BYTES = 50_000_000
# Packages that the machine has: see `tests/gpu/__init__.py`.
_THERE = {"numpy", "torch", "pillow", "prometheus-client", "tqdm"}
_FOR = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"]
_PLATFORMS = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_17", "2014", "1")]


def main() -> int:
    """Makes the folder; returns 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="a folder of peers that were built for the machine")
    parser.add_argument("--python", help="a Python 3.12 whose headers are packed (default: one that is found)")
    arguments = parser.parse_args()
    shutil.rmtree(PACK, ignore_errors=True)
    PACK.mkdir()
    _try("messages", _messages)
    _try("results on the CPU", _oracles)
    for name, files in (("trained scene", TRAINED), ("garden", GARDEN), ("fitted capture", FITTED)):
        _try(name, lambda of=files: _scene(of))
    _try("headers of Python 3.12", lambda: _headers(arguments.python))
    for requirement in requirements():
        _try(requirement, lambda each=requirement: _download(each, PACK / "wheels", *_FOR, *_PLATFORMS))
    if arguments.peers is not None:
        _try("peers", lambda: shutil.copytree(arguments.peers, PACK / "peers", dirs_exist_ok=True))
    size = sum(path.stat().st_size for path in PACK.rglob("*") if path.is_file())
    print(f"{PACK.name}: {size / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f}")
    return 0 if size <= MOST_BYTES else 1


def _try(name: str, make: Callable[[], object]) -> None:
    try:
        make()
        print(f"  {name}", flush=True)
    except (OSError, ValueError, NoSuchScene, subprocess.CalledProcessError) as error:
        print(f"  {name}: LEFT OUT: {error}", flush=True)


def requirements() -> list[str]:
    """Packages that the server and the readers of scenes need or use, and that the machine lacks or may have only in
    older versions.

    gRPC's packages have the oldest allowed version, since each needs a grpcio that is at least as new.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["server"], *extras["nvjpeg"], *extras["io"]]
    needed = [requirement for requirement in wanted if re.split(r"[^\w-]", requirement)[0] not in _THERE]
    return [each.replace(">=", "==") if each.startswith("grpcio") else each for each in needed]


def _messages() -> None:
    import lumigrad.v1.tensor_pb2 as one_of_them

    installed = Path(one_of_them.__file__).parents[1]
    for package in MESSAGES:
        shutil.copytree(
            installed / package, PACK / "messages" / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyi")
        )
    (PACK / "protos.sha256").write_text(protos_digest(), encoding="utf-8")


def _oracles() -> None:
    from tests.gpu import oracles
    from tests.gpu.device import Device

    np.savez_compressed(PACK / "oracles.npz", **oracles.results(Device("cpu")))  # type: ignore[arg-type]


def _scene(files: tuple[str, ...]) -> None:
    for file, path in zip(files, paths_of(files), strict=True):
        target = PACK / file
        target.parent.mkdir(parents=True)
        shutil.copyfile(path, target)


def _headers(named: str | None) -> None:
    """Packs the headers of a Python 3.12, without which nothing can be built for it."""
    programs = [named] if named else _pythons()
    found = next(filter(None, map(_include_of, programs)), None)
    if found is None:
        asked = ", ".join(programs) or "no program, for PATH has no python3.12"
        raise ValueError(f"found no Python.h; run `make gpu-pack HEADERS_OF=a Python 3.12 that has it` (asked {asked})")
    shutil.copytree(found, PACK / "include")
    # Debian keeps the configuration of each architecture in a separate folder.
    for configuration in found.parent.glob(f"{platform.machine()}-*/{found.name}/pyconfig.h"):
        shutil.copyfile(configuration, PACK / "include" / "pyconfig.h")


def _pythons() -> list[str]:
    """All on PATH, and those of pyenv, whose programs on PATH only run the chosen versions."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    folders += sorted(versions.glob("3.12.*/bin"))
    return [str(folder / "python3.12") for folder in folders if (folder / "python3.12").is_file()]


def _include_of(program: str) -> Path | None:
    """The folder of the headers, if the program is a Python 3.12 that has them."""
    ask = "import sys, sysconfig; print(sys.version_info[:2] == (3, 12), sysconfig.get_path('include'))"
    try:
        told = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    fits, _, include = told.partition(" ")
    return Path(include) if fits == "True" and Path(include, "Python.h").is_file() else None


def _download(requirement: str, folder: Path, *options: str) -> None:
    fixed = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*fixed, *options, requirement], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError((done.stderr.strip().splitlines() or ["pip failed"])[-1])


if __name__ == "__main__":
    sys.exit(main())
