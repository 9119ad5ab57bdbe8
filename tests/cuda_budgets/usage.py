"""The resources of each CUDA kernel in a module, as reported by cuobjdump and nvdisasm."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cuda_budgets.visits import Visit, visits_of

_ARCHITECTURE = re.compile(r"^(?:\s*\.target\s+|arch = )sm_(\d+)")
_FUNCTION = re.compile(r"^\s*Function\s*:?\s*(\w+)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
# nvcc puts the file's name into the name of an anonymous namespace.
_FILE = re.compile(r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_")
# STL and LDL are stores to and loads from local memory: spilled registers, and arrays with an index that varies.
_KINDS = {
    "local_accesses": {"STL", "LDL"},
    "fp64": {"DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "MUFU64"},
    "match_redux": {"MATCH", "REDUX", "CREDUX"},
}


@dataclass(frozen=True)
class Usage:
    """The resources of one kernel, compiled for one architecture."""

    registers: int = 0  # Each thread's.
    local_bytes: int = 0  # Each thread's stack and other local memory.
    local_accesses: int = 0  # Instructions that read or write local memory.
    fp64: int = 0  # Instructions that calculate in double precision.
    match_redux: int = 0  # Instructions that compare or reduce over the lanes of a warp at run time.


def architectures_of(module: Path, tools: Path) -> list[str]:
    """The architectures for which a shared library has binary code, such as "90"; oldest first."""
    listed = "".join(_dump(module, tools, "--list-elf"))
    return sorted(set(re.findall(r"\.sm_(\w+)\.cubin", listed)), key=int)


def of_module(
    module: Path, tools: Path, architecture: str
) -> tuple[dict[tuple[str, str], Usage], dict[tuple[str, str], Visit]]:
    """The usage and the visits of a shared library by (architecture, kernel); `tools` has cuobjdump and nvdisasm."""
    only = ("-arch", f"sm_{architecture}")
    resources = resources_of(_dump(module, tools, *only, "-res-usage"))
    listing = _dump(module, tools, *only, "-sass")
    instructions, visits = instructions_of(listing), visits_of(listing)
    names = demangled({name for _, name in resources})
    found: dict[tuple[str, str], Usage] = {}
    for (architecture, mangled), (registers, local) in resources.items():
        name = names[mangled]
        if not name.startswith("lumigrad::"):
            continue  # A library's kernel.
        counts = instructions[architecture, mangled]
        here = Usage(registers, local, **{kind: sum(counts[i] for i in group) for kind, group in _KINDS.items()})
        key = architecture, name.removeprefix("lumigrad::")
        if key in found:
            raise ValueError(f"two kernels are named {key[1]} in files of the same name; rename one")
        found[key] = here
    return found, {(sm, names[name].removeprefix("lumigrad::")): visit for (sm, name), visit in visits.items()}


def resources_of(lines: Iterable[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """Registers and bytes of local memory by (architecture, mangled name), from `cuobjdump -res-usage`."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    architecture = name = ""
    for line in lines:
        if match := _ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := _FUNCTION.match(line):
            name = match[1]
        elif match := _RESOURCES.search(line):
            found[architecture, name] = int(match[1]), int(match[2]) + int(match[3])
    return found


def instructions_of(lines: Iterable[str]) -> dict[tuple[str, str], Counter[str]]:
    """How often each instruction occurs by (architecture, mangled name), from `cuobjdump -sass`."""
    found: dict[tuple[str, str], Counter[str]] = {}
    architecture = ""
    here: Counter[str] = Counter()
    for line in lines:
        if match := _INSTRUCTION.match(line):
            wide = match[1] == "MUFU" and "64H" in line
            here["MUFU64" if wide else match[1]] += 1
        elif match := _ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := _FUNCTION.match(line):
            here = found.setdefault((architecture, match[1]), Counter())
    return found


def demangled(names: set[str]) -> dict[str, str]:
    """The names of functions without parameters and anonymous namespaces, each with its file."""
    ordered = sorted(names)
    text = "\n".join(ordered)
    lines = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    return {mangled: plain(line) + _place(mangled) for mangled, line in zip(ordered, lines, strict=True)}


def _place(mangled: str) -> str:
    file = _FILE.search(mangled)
    return f" in {file[1]}.cu" if file else ""


def plain(name: str) -> str:
    """A demangled name without parameters and anonymous namespaces, but with those of templates."""
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").removeprefix("void ")
    if not name.endswith(")"):
        return name
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += (name[at] == ")") - (name[at] == "(")
        if name[at] == "(" and depth == 0:
            return name[:at]
    return name


def _dump(module: Path, tools: Path, *what: str) -> list[str]:
    command = [str(tools / "cuobjdump"), *what, str(module)]
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
