"""The instructions that the blending kernels execute for a Gaussian, from the compiler's output."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("visits.csv")
# Two generations; GPUs of one generation differ in their number of units, not in what a kernel uses.
ARCHITECTURES = ("80", "90")

_ARCHITECTURE = re.compile(r"^(?:\s*\.target\s+|arch = )sm_(\d+)")
_FUNCTION = re.compile(r"^\s*Function\s*:\s*(\w+)")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);")
_JUMP_BACK = re.compile(r"^(?:@!?U?P\w+ )?BRA(?:\.\S+)? .*?\b0x([0-9a-f]+)")


@dataclass(frozen=True)
class Visit:
    """The instruction counts of one kernel, compiled for one architecture."""

    loop: int  # Instructions of the shortest loop over Gaussians, for one that reaches all pixels of a lane.
    barriers: int  # Instructions at which a block of threads waits.
    shared_atomics: int  # Atomic additions in shared memory, which are loops for floats.


def visits_of(lines: Iterable[str]) -> dict[tuple[str, str], Visit]:
    """The visits by (architecture, mangled name) of kernels that blend, from `cuobjdump -sass`."""
    code: dict[tuple[str, str], list[tuple[int, str]]] = {}
    architecture = ""
    here: list[tuple[int, str]] = []
    for line in lines:
        if match := _INSTRUCTION.match(line):
            here.append((int(match[1], 16), match[2]))
        elif match := _ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := _FUNCTION.match(line):
            here = code.setdefault((architecture, match[1]), [])
    found = {key: _visit(instructions) for key, instructions in code.items()}
    return {key: visit for key, visit in found.items() if visit.loop > 0}


def _visit(code: list[tuple[int, str]]) -> Visit:
    number = {address: i for i, (address, _) in enumerate(code)}
    loops = []
    for i, (address, text) in enumerate(code):
        match = _JUMP_BACK.match(text)
        if match and int(match[1], 16) <= address:
            first = number[int(match[1], 16)]
            if any("MUFU.EX2" in body for _, body in code[first : i + 1]):
                loops.append(i + 1 - first)
    names = [re.sub(r"^@!?U?P\w+ ", "", text).split(" ")[0] for _, text in code]
    barriers = sum(name.startswith("BAR.") for name in names)
    return Visit(min(loops, default=0), barriers, sum(name.startswith("ATOMS") for name in names))


def read(file: Path = FILE) -> dict[tuple[str, str], Visit]:
    """The budgets by (architecture, kernel); those of a kernel are the same for all architectures."""
    with file.open(newline="", encoding="utf-8") as lines:
        kernels = {
            row.pop("kernel"): Visit(**{name: int(most) for name, most in row.items()}) for row in csv.DictReader(lines)
        }
    return {(sm, kernel): most for sm in ARCHITECTURES for kernel, most in kernels.items()}


def compare(budgets: dict[tuple[str, str], Visit], used: dict[tuple[str, str], Visit]) -> tuple[list[str], list[str]]:
    """Every count with its budget, and the counts that exceed it or are missing."""
    shown, over = [], []
    for (sm, kernel), most in sorted(budgets.items()):
        here = used.get((sm, kernel))
        if here is None:
            over.append(f"sm_{sm} {kernel}: has a budget for visits, but is not in the module")
            continue
        counts = [(f, getattr(here, f), getattr(most, f)) for f in ("loop", "barriers", "shared_atomics")]
        shown.append(f"sm_{sm} {kernel}: " + ", ".join(f"{f} {count} of {limit}" for f, count, limit in counts))
        over += [f"sm_{sm} {kernel}: {f} {count}, budget {limit}" for f, count, limit in counts if count > limit]
    return shown, over
