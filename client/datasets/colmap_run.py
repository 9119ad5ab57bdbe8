"""Runs COLMAP, the program or the package pycolmap, to find cameras and points from photographs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from lumigrad.client.base.extras import MissingPackage
from lumigrad.client.errors import InvalidArgument, LumigradError

# The folder in a data set for what COLMAP writes, where `find_model` looks for reconstructions.
WORK = "colmap"
_LOG = "log.txt"
# Files and folders of data sets, which must not be mixed with what this command writes.
_DATA_SETS = ("transforms.json", "transforms_train.json", "cameras.json", "keyframes", "sparse")
# The number of last log lines that an error quotes.
_LINES = 2
# Runs the package's steps by the program's names and arguments, in a process of its own, because the package logs to
# standard error and does not react to Ctrl-C.
_PACKAGE = """\
import sys, pycolmap
step, *words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
database, photographs = given["--database_path"], given.get("--image_path")
if step == "feature_extractor":
    mode = "SINGLE" if given["--ImageReader.single_camera"] == "1" else "AUTO"
    pycolmap.extract_features(database, photographs, camera_mode=getattr(pycolmap.CameraMode, mode))
elif step == "mapper":
    pycolmap.incremental_mapping(database, photographs, given["--output_path"])
else:
    getattr(pycolmap, "match_" + step.removesuffix("_matcher"))(database)
"""


def steps(photographs: Path, folder: Path, *, has_one_camera: bool, is_sequence: bool) -> dict[str, list[str]]:
    """Returns COLMAP's command lines, without the program, for the three steps of a reconstruction by what they do.

    Args:
        photographs: the folder of the photographs.
        folder: the data set's folder.
        has_one_camera: whether all photographs were taken by one camera with one focal length.
        is_sequence: whether each photograph shows much of what the one before it shows, as frames of a video do.
    """
    database, source = ["--database_path", f"{folder / WORK / 'database.db'}"], ["--image_path", f"{photographs}"]
    single = ["--ImageReader.single_camera", str(int(has_one_camera))]
    matcher = "sequential_matcher" if is_sequence else "exhaustive_matcher"
    return {
        "finds features": ["feature_extractor", *database, *source, *single],
        "matches photographs": [matcher, *database],
        "finds cameras": ["mapper", *database, *source, "--output_path", f"{folder / WORK / 'sparse'}"],
    }


def run(lines: dict[str, list[str]], folder: Path, say: Callable[[str], None]) -> None:
    """Runs the steps one by one, with new files in the data set's folder `colmap`; `say` announces each step.

    Raises:
        InvalidArgument: the folder holds another data set.
        MissingPackage: COLMAP is not installed.
        LumigradError: a step failed; quotes the end of its log.
    """
    program, work = _program(), folder / WORK
    is_own = (work / _LOG).is_file()
    if not is_own and any((folder / name).exists() for name in (WORK, *_DATA_SETS)):
        raise InvalidArgument.of("output", f"expected a new folder, or one that this command made; {folder} is neither")
    shutil.rmtree(work, ignore_errors=True)
    (work / "sparse").mkdir(parents=True)
    say(f"COLMAP's log: {work / _LOG}")
    with (work / _LOG).open("wb") as log:
        for number, (what, line) in enumerate(lines.items(), 1):
            say(f"step {number} of {len(lines)}: {what}")
            code = subprocess.run(_command(program, line), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
            if code:
                text = (work / _LOG).read_text(errors="replace").splitlines()[-_LINES:]
                raise LumigradError(f"colmap {line[0]} ended with exit status {code}: {' '.join(text)}")


def _program() -> str | None:
    """Returns the program on the path; None for the package."""
    if (program := shutil.which("colmap")) is None and find_spec("pycolmap") is None:
        raise MissingPackage(
            'finding cameras needs COLMAP; install it with: pip install "lumigrad[capture]", or as a program '
            "(https://colmap.github.io/install.html), which can use a GPU"
        )
    return program


def _command(program: str | None, line: Sequence[str]) -> list[str]:
    if program is None:
        return [sys.executable, "-c", _PACKAGE, *line]
    return [program, *line, *_without_gpu(program, line[0])]


def _without_gpu(program: str, step: str) -> list[str]:
    """Returns the option without which a step fails, or needs a screen, if there is no GPU."""

    def told(*words: str) -> str:
        return subprocess.run([program, *words], capture_output=True, text=True, check=False, env=os.environ).stdout

    if shutil.which("nvidia-smi") and "without CUDA" not in told("help"):
        return []
    found = told(step, "-h")
    # Newer versions have other features than SIFT, and other option names.
    names = (f"--{kind}{part}.use_gpu" for kind in ("Feature", "Sift") for part in ("Extraction", "Matching"))
    return next(([name, "0"] for name in names if name in found), [])
