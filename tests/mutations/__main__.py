"""Mutation testing: `python -m tests.mutations [--only NAME ...]` from the root of the repository.

Plants the faults of mutations.txt in the working tree, one at a time, and runs the tests that should find it like
`make test`; if they pass, runs them again with all combinations of parameters. Native code is compiled in
build/mutations, which no other program uses. The source file is restored however a run ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mutations.txt")
BUILD = ROOT / "build" / "mutations"
# A copy of BUILD without a fault, so that only sources with the fault are compiled anew.
CLEAN = ROOT / "build" / "mutations.clean"
RESULT = re.compile(r"^(?:FAILED|ERROR) tests/(\S+)", re.M)


@dataclass(frozen=True)
class Mutation:
    """A fault: `after` replaces `before`, which occurs once in the file."""

    name: str
    kind: str
    file: Path
    tests: Sequence[str]
    before: str
    after: str

    @property
    def is_kernel(self) -> bool:
        return self.file.is_relative_to(ROOT / "kernels")

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        status, text = self.file.stat(), self.file.read_text(encoding="utf-8")
        try:
            self.file.write_text(text.replace(self.before, self.after), encoding="utf-8")
            yield
        finally:
            self.file.write_text(text, encoding="utf-8")
            # The restored time lets ninja take CLEAN's object files as up to date.
            os.utime(self.file, ns=(status.st_atime_ns, status.st_mtime_ns))


def mutations(only: Sequence[str] = ()) -> list[Mutation]:
    """The faults of the table, or the named ones; ends the program if a fault's text is not once in its file."""
    found: list[Mutation] = []
    for block in TABLE.read_text(encoding="utf-8").split("\n@ ")[1:]:
        head, *lines = block.splitlines()
        name, kind, file, tests = re.split(r", |: |; ", head)
        before, after = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        found.append(Mutation(name, kind, ROOT / file, [f"tests/{test}" for test in tests.split()], before, after))
    chosen = [mutation for mutation in found if not only or mutation.name in only]
    for mutation in chosen:
        count = mutation.file.read_text(encoding="utf-8").count(mutation.before) if mutation.file.exists() else 0
        if count != 1:
            sys.exit(f"{mutation.name}: expected its text once in {mutation.file}, found it {count} times")
    return chosen


def build() -> bool:
    """Compiles what has changed, with -O1, since compiling takes most of the time."""
    cmake = Path(sys.executable).with_name("cmake")
    if not (BUILD / "build.ninja").exists():
        tools = [f"-DCMAKE_MAKE_PROGRAM={cmake.with_name('ninja')}", f"-DPython_EXECUTABLE={sys.executable}"]
        kind = ["-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DLUMIGRAD_EMULATION=ON", "-DLUMIGRAD_CUDA=OFF"]
        subprocess.run([cmake, "-S", ROOT, "-B", BUILD, "-G", "Ninja", *tools, *kind], check=True)
    return subprocess.run([cmake, "--build", BUILD, "--target", "_native", "emulation"], check=False).returncode == 0


def copy(folder: Path, to: Path) -> None:
    """Replaces a folder by a copy of another, times included."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, symlinks=True)


def failure(tests: Sequence[str], variables: Mapping[str, str], *options: str) -> str:
    """The first test that fails; empty if none does."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    found = RESULT.search(done.stdout)
    return found[1] if found else f"the end of pytest with code {done.returncode}"


def verdict(mutation: Mutation) -> str:
    """Plants a fault, and returns what has found it."""
    variables: dict[str, str] = {}
    if mutation.is_kernel:
        copy(CLEAN, BUILD)
        variables = {"LUMIGRAD_EMULATION": str(BUILD), "LUMIGRAD_TEST_NATIVE": str(BUILD)}
    with mutation.planted():
        if mutation.is_kernel and not build():
            return "does not compile"
        found = failure(mutation.tests, variables)
        if found:
            return f"killed by {found}"
        found = failure(mutation.tests, variables, "--whole")
        return f"killed with --whole only, by {found}" if found else "survived"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutations")
    only = parser.parse_args().only or ()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = mutations(only)
    if any(mutation.is_kernel for mutation in chosen):
        # An interrupted run may have left object files that are newer than their restored source.
        if CLEAN.exists():
            copy(CLEAN, BUILD)
        if not build():
            return 1
        copy(BUILD, CLEAN)
    killed = 0
    for mutation in chosen:
        found = verdict(mutation)
        killed += found.startswith("killed by")
        print(f"| `{mutation.name}` | {mutation.kind} | {mutation.file.relative_to(ROOT)} | {found} |", flush=True)
    print(f"{killed} of {len(chosen)} killed")
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
