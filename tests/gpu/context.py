"""State shared by the steps: the device, the folder of results, the remaining time, and commands with time limits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "gpu"
SITE = BUILD / "site"
PACK = ROOT / ".gpu-pack"
OUT_OF_TIME, STARTED = "out of time", "started"
# The last seconds of a command's time, after it was interrupted, to write its results.
_GRACE = 15.0
# Seconds after which the last line of a command's output is shown again.
_PROGRESS = 5.0
# Runs a command that the kernel kills when the process that started it ends. Code between fork and exec cannot do that:
# the forked process would be a copy of one with gRPC's threads, which gRPC may abort.
_BEGIN = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(error)
    sys.exit(127)
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended; `code` is None if it ran out of time."""

    code: int | None
    output: str
    seconds: float

    @property
    def status(self) -> str:
        """The status as text."""
        if self.code is None:
            return OUT_OF_TIME
        return "ok" if self.code == 0 else f"exit status {self.code}"

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of the output."""
        return self.output.splitlines()[-lines:]


@dataclass(frozen=True)
class Context:
    """The context of one step of a run.

    Attributes:
        device: "cuda", or "emulation" for a dry run.
        out: The folder of results.
        deadline: The time by which the step must have ended, by `time.monotonic()`.
    """

    device: str
    out: Path
    deadline: float

    @property
    def emulated(self) -> bool:
        """Whether this is a dry run."""
        return self.device == "emulation"

    def left(self) -> float:
        """The remaining seconds, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def run(
        self, command: Sequence[str], *, limit: float | None = None, environment: Mapping[str, str] | None = None
    ) -> Done:
        """Runs a command for as long as there is time; also appends its output to log.txt."""
        seconds = self.left() if limit is None else min(limit, self.left())
        start = time.monotonic()
        with (self.out / "log.txt").open("a+", encoding="utf-8", errors="replace") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            code = _finish(command, log, seconds, {**os.environ, **(environment or {})})
            log.seek(begin)
            return Done(code, log.read(), round(time.monotonic() - start, 1))

    def write(self, step: str, values: Mapping[str, Any]) -> None:
        """Writes the current results of a step; a reader never sees half of them."""
        write_json(self.out / f"{step}.json", values)


def _finish(command: Sequence[str], log: Any, seconds: float, environment: Mapping[str, str]) -> int | None:
    """The exit status; None if time ran out, after which the processes are interrupted and, if needed, killed."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _BEGIN, str(os.getpid()), *command],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    grace = min(_GRACE, 0.2 * seconds)
    try:
        code = _watch(process, Path(log.name), seconds - grace)
        if code is None:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
    finally:
        # Processes that the command left running would disturb later measurements.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code


def _watch(process: subprocess.Popen[bytes], log: Path, seconds: float) -> int | None:
    """Waits for the exit status, and meanwhile shows how far the command is."""
    start, shown = time.monotonic(), _last_line(log)
    while (left := start + seconds - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(_PROGRESS, left))
        line = _last_line(log)
        if line != shown:
            print(f"  {time.monotonic() - start:.0f} s: {line[-120:]}", file=sys.stderr, flush=True)
        shown = line
    return process.poll()


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Atomically replaces a file, and then its copy."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
    copy(file)


def copy(file: Path) -> None:
    """Copies a result to the folder that the environment variable OUT names, if that is another folder.

    The copy is replaced atomically: if the process is killed here, the previous copy stays.
    """
    folder = os.environ.get("OUT")
    if folder and Path(folder).resolve() != file.parent.resolve():
        part = Path(folder, file.name).with_suffix(".part")
        shutil.copy(file, part)
        part.replace(Path(folder, file.name))


def read_json(file: Path) -> dict[str, Any]:
    """The values in a file; none if it does not exist."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def python(*arguments: str) -> list[str]:
    """A command of the running Python."""
    return [sys.executable, *arguments]


def environment() -> dict[str, str]:
    """Variables with which programs import SITE's packages, the tests and their support before installed packages."""
    paths = [str(SITE), str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONUNBUFFERED": "1"}
