"""Makes .gpu-pack, which `make gpu` needs on a machine without a network: `make gpu-pack`.

What cannot be had here is named, and left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tomllib

from tests.gpu.context import PACK, ROOT
from tests.gpu.site import protos_digest

MOST_BYTES = 50_000_000
# What the machine has: see `tests/gpu/__init__.py`.
_THERE = {"numpy", "torch", "protobuf", "grpcio", "pillow", "prometheus-client"}
_FOR = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"]
_PLATFORMS = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_17", "2014", "1")]
# Peers that a machine with nvcc can build from what PyPI has of them, where those that were built do not fit.
_PEERS = ("gsplat", "fussim")


def main() -> int:
    """Makes the folder; 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="a folder of peers: of tests.gpu.peer_builds, and sources")
    parser.add_argument("--python", default="python3.12", help="a Python 3.12, of which the headers are taken")
    arguments = parser.parse_args()
    shutil.rmtree(PACK, ignore_errors=True)
    PACK.mkdir()
    _try("messages", _messages)
    _try("results on the CPU", _oracles)
    _try("trained scene", _trained)
    _try("headers of Python 3.12", lambda: _headers(arguments.python))
    for requirement in server_requirements():
        _try(requirement, lambda each=requirement: _download(each, PACK / "wheels", *_FOR, *_PLATFORMS))
    for peer in _PEERS:
        source = ["--no-binary", peer, "--no-build-isolation"]
        _try(f"source of {peer}", lambda each=peer, options=source: _download(each, PACK / "peers", *options))
    if arguments.peers is not None:
        _try("further peers", lambda: shutil.copytree(arguments.peers, PACK / "peers", dirs_exist_ok=True))
    size = sum(path.stat().st_size for path in PACK.rglob("*") if path.is_file())
    print(f"{PACK.name}: {size / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f}")
    return 0 if size <= MOST_BYTES else 1


def _try(name: str, make: Callable[[], object]) -> None:
    try:
        make()
        print(f"  {name}", flush=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"  {name}: LEFT OUT: {error}", flush=True)


def server_requirements() -> list[str]:
    """What the server needs and the machine lacks.

    gRPC's small packages are taken as old as they may be: each wants a grpcio that is as new as itself.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    needed = [requirement for requirement in wanted if re.split(r"[^\w-]", requirement)[0] not in _THERE]
    return [each.replace(">=", "==") if each.startswith("grpcio-") else each for each in needed]


def _messages() -> None:
    import lumigrad.v1.tensor_pb2 as one_of_them

    shutil.copytree(Path(one_of_them.__file__).parent, PACK / "v1", ignore=shutil.ignore_patterns("__pycache__"))
    (PACK / "protos.sha256").write_text(protos_digest(), encoding="utf-8")


def _oracles() -> None:
    from tests.gpu import oracles
    from tests.gpu.device import Device

    np.savez_compressed(PACK / "oracles.npz", **oracles.results(Device("cpu")))  # type: ignore[arg-type]


def _trained() -> None:
    from tests.benchmarks.gaussian_scene import trained_path

    path = trained_path()
    if path is None:
        raise ValueError("LUMIGRAD_TEST_DATA names no folder with it")
    target = PACK / path.relative_to(os.environ["LUMIGRAD_TEST_DATA"])
    target.parent.mkdir(parents=True)
    shutil.copyfile(path, target)


def _headers(program: str) -> None:
    """A Python without its headers cannot be built for."""
    ask = [
        program,
        "-c",
        "import sys, sysconfig; assert sys.version_info[:2] == (3, 12); print(sysconfig.get_path('include'))",
    ]
    told = subprocess.run(ask, capture_output=True, text=True, check=True)
    shutil.copytree(told.stdout.strip(), PACK / "include")


def _download(requirement: str, folder: Path, *options: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        *options,
        requirement,
    ]
    # Sources of CUDA code ask for a toolkit as soon as they are asked for their name.
    environment = {"CUDA_HOME": "/usr/local/cuda", "BUILD_NO_CUDA": "1", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise ValueError((done.stderr.strip().splitlines() or ["pip failed"])[-1])


if __name__ == "__main__":
    sys.exit(main())
