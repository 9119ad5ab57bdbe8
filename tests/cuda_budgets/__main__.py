"""Compares what each CUDA kernel uses with its budget, without a GPU.

    python -m tests.cuda_budgets            fails if a kernel uses more than budgets.csv allows, or has no budget
    python -m tests.cuda_budgets --write    makes what the kernels use now their budgets

It also compares the instructions that kernels execute for a Gaussian with visits.csv, whose budgets are set by hand.
In continuous integration it also fails if the module lacks code for an architecture of the release.

The budgets hold for the toolkit named in the first line of the file: another compiler allocates other registers.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TypeAlias

from lumigrad.kernels import _native
from tests.cuda_budgets import visits
from tests.cuda_budgets.usage import Usage, architectures_of, of_module
from tests.cuda_budgets.visits import ARCHITECTURES

Budgets: TypeAlias = dict[tuple[str, str], Usage]
FILE = Path(__file__).with_name("budgets.csv")
FIELDS = [field.name for field in dataclasses.fields(Usage)]
# The file that lists the architectures of wheels.
RELEASE = Path(__file__).parents[2] / "cmake" / "cuda.cmake"
# A GPU allocates registers per thread in eights, so only those count.
REGISTER_STEP = 8


def compare(budgets: Budgets, used: Budgets) -> tuple[list[str], list[str]]:
    """The kernels that exceed their budgets or have none, and those below their budgets."""
    over, under = [], []
    for key in sorted(used.keys() | budgets.keys()):
        where = f"sm_{key[0]} {key[1]}"
        if key not in budgets:
            over.append(f"{where}: has no budget")
        elif key not in used:
            over.append(f"{where}: has a budget, but is not in the module")
        else:
            for field in FIELDS:
                allowed, here = getattr(budgets[key], field), getattr(used[key], field)
                step = REGISTER_STEP if field == "registers" else 1
                if -(-here // step) != -(-allowed // step):
                    (over if here > allowed else under).append(f"{where}: {field} {here}, budget {allowed}")
    return over, under


def release(file: Path = RELEASE) -> list[str]:
    """The architectures of the release, such as "90", as nvcc compiles them."""
    listed = re.search(r"STREQUAL \"RELEASE\"\).*?set\(CMAKE_CUDA_ARCHITECTURES ([^)]+)\)", file.read_text(), re.DOTALL)
    if listed is None:
        raise ValueError(f"{file} has no list of the release's architectures")
    return [name.removesuffix("-real") for name in listed[1].split()]


def read(file: Path) -> tuple[str, Budgets]:
    """The toolkit and the budgets of a file."""
    with file.open(newline="", encoding="utf-8") as lines:
        toolkit = next(lines).removeprefix("# CUDA ").strip()
        return toolkit, {
            (sm, row["kernel"]): Usage(*(int(row[f"sm_{sm} {field}"]) for field in FIELDS))
            for row in csv.DictReader(lines)
            for sm in ARCHITECTURES
            if row.get(f"sm_{sm} {FIELDS[0]}")
        }


def write(file: Path, toolkit: str, used: Budgets) -> None:
    """Write a file with these budgets, a row for each kernel."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        lines.write(f"# CUDA {toolkit}\n")
        rows = csv.DictWriter(
            lines, ["kernel", *(f"sm_{sm} {field}" for sm in ARCHITECTURES for field in FIELDS)], lineterminator="\n"
        )
        rows.writeheader()
        for kernel in sorted({kernel for _, kernel in used}):
            usages = [(sm, used[sm, kernel]) for sm in ARCHITECTURES if (sm, kernel) in used]
            counts = {f"sm_{sm} {field}": getattr(usage, field) for sm, usage in usages for field in FIELDS}
            rows.writerow({"kernel": kernel, **counts})


def main() -> int:
    """Run the check; returns 1 if a kernel exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make what the kernels use now their budgets")
    arguments = parser.parse_args()
    tools = _tools()
    if not _native.CUDA_BUILT or tools is None:
        print("needs a module with CUDA kernels, and nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm from PyPI")
        return 2
    runtime, module = _native.cuda_probe().runtime, Path(_native.__file__)
    toolkit = f"{runtime // 1000}.{runtime % 1000 // 10}"
    used: Budgets = {}
    visited: dict[tuple[str, str], visits.Visit] = {}
    for architecture in ARCHITECTURES:
        usage, of_architecture = of_module(module, tools, architecture)
        used, visited = used | usage, visited | of_architecture
    if arguments.write:
        write(FILE, toolkit, used)
    expected, budgets = read(FILE)
    if toolkit != expected:
        print(f"the budgets are for CUDA {expected}, and the kernels were compiled with {toolkit}")
        return 2
    over, under = compare(budgets, used)
    shown, exceeded = visits.compare(visits.read(), visited)
    print("\n".join(shown))
    over += exceeded
    for line in under:
        print(f"below its budget: {line}")
    for line in over:
        print(f"OVER: {line}")
    compiled = architectures_of(module, tools)
    named = ", ".join(f"sm_{name}" for name in compiled)
    print(f"{len(used)} kernels checked, {len(over)} over their budgets; the module has code for {named}")
    missing = lacking(compiled)
    if missing:
        print(f"the module lacks code for {', '.join(f'sm_{name}' for name in missing)}; build it with RELEASE")
    return 1 if over or missing else 0


def lacking(compiled: list[str]) -> list[str]:
    """The release's architectures that are not compiled; only reported in continuous integration, where all must be."""
    return [name for name in release() if name not in compiled] if "CI" in os.environ else []


def _tools() -> Path | None:
    found = importlib.util.find_spec("nvidia.cu13")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) / "bin" if places else None


if __name__ == "__main__":
    sys.exit(main())
