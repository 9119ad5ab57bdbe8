"""Builds the libraries that `make gpu-peers` compares with, for a machine that has no network and little time.

PYTHONPATH=tests python -m tests.gpu.peer_builds --python PYTHON --sources FOLDER --out FOLDER [NAME ...]
make gpu-pack PEERS=FOLDER

PYTHON has the version of Python and of torch that the machine has; nothing of it is changed. Sources that are not in
their folder are cloned. Only what the comparisons use is compiled, for one architecture.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.peer_recipes import RECIPES, Extension, Recipe

# What the compiler needs to know of the Python that is built for.
_ASK = """
import json, sys, sysconfig, torch
from torch.utils import cpp_extension
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "python": "%d.%d" % sys.version_info[:2],
    "include": [*cpp_extension.include_paths(), sysconfig.get_path("include")],
    "lib": cpp_extension.library_paths(), "site": sysconfig.get_path("purelib"),
}))
"""
_TORCH_LIBRARIES = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")
_RULES = """
rule cxx
  command = c++ -MMD -MF $out.d -fPIC $flags -c $in -o $out
  depfile = $out.d
rule nvcc
  command = {nvcc} -MD -MF $out.d --compiler-options=-fPIC -gencode=arch=compute_{arch},code=sm_{arch} $
    $flags -c $in -o $out
  depfile = $out.d
rule link
  command = c++ -shared -s $in -o $out $flags
"""


@dataclass(frozen=True)
class Toolchain:
    """The Python that is built for, and the compilers."""

    python: dict[str, Any]
    cuda: Path
    arch: str
    jobs: int
    work: Path
    sources: dict[str, Path] = field(default_factory=dict)

    @property
    def includes(self) -> list[Path]:
        """Headers of torch, of Python, and of the CUDA libraries that torch's headers name."""
        libraries = sorted(Path(self.python["site"]).glob("nvidia/*/include"))
        cuda = self.cuda / "include"
        return [*map(Path, self.python["include"]), cuda, cuda / "cccl", *libraries]


def main() -> int:
    """Builds the peers that were named, or all; 1 if one could not be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(each.name for each in RECIPES))
    parser.add_argument("--python", required=True, help="a Python with torch, as on the machine")
    parser.add_argument("--sources", type=Path, required=True, help="the folder of checkouts")
    parser.add_argument("--out", type=Path, required=True, help="the folder for what is built")
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"), help="the toolkit")
    parser.add_argument("--arch", default="90", help="compute capability without its point (default: 90)")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    asked = subprocess.run([arguments.python, "-c", _ASK], capture_output=True, text=True, check=True)
    out, sources = arguments.out.resolve(), arguments.sources.resolve()
    work = out.with_name(f"{out.name}-objects")
    tools = Toolchain(json.loads(asked.stdout), arguments.cuda, arguments.arch, arguments.jobs, work)
    failed = []
    for recipe in RECIPES:
        if arguments.names and recipe.name not in arguments.names:
            continue
        try:
            build(recipe, tools, sources, out / recipe.name)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            failed.append(recipe.name)
            print(f"{recipe.name}: NOT BUILT: {error}", file=sys.stderr)
    return 1 if failed else 0


def build(recipe: Recipe, tools: Toolchain, sources: Path, target: Path) -> None:
    """Makes the folder of one peer: its packages, and what it was built from and for."""
    source = sources / recipe.name
    _checkout(source, recipe.url, recipe.commit)
    if recipe.needs is not None:
        _checkout(sources / recipe.needs[0], *recipe.needs[1:])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    recipe.prepare(source, tools.work / recipe.name, target)
    for extension in recipe.extensions(source, tools.work / recipe.name, sources):
        compile_extension(extension, tools, tools.work / recipe.name / extension.target.replace("/", "."), target)
    for pattern in recipe.files:
        _copy(source, pattern, target)
    manifest = {
        "name": recipe.name, "version": recipe.version, "url": recipe.url, "commit": recipe.commit,
        "licence": recipe.licence, "modules": recipe.modules,
        "torch": tools.python["torch"] if recipe.for_torch else None,
        "python": tools.python["python"] if recipe.for_torch else None, "arch": [tools.arch],
    }  # fmt: skip
    (target / "peer.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{recipe.name} {recipe.version}: {size / 1e6:.1f} MB", flush=True)


def _checkout(folder: Path, url: str, commit: str) -> None:
    """Clones the sources, if they are not there."""
    if not folder.is_dir():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", url, str(folder)], check=True)
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", commit], check=True)
    told = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    if told.stdout.strip() != commit:
        raise ValueError(f"{folder} is at {told.stdout.strip()}, but the recipe was made for {commit}")


def _copy(source: Path, pattern: str, target: Path) -> None:
    found = [path for path in source.glob(pattern) if path.is_file()]
    if not found:
        raise ValueError(f"{source} has no {pattern}")
    for path in found:
        file = target / path.relative_to(source)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, file)


def compile_extension(extension: Extension, tools: Toolchain, objects: Path, target: Path) -> None:
    """Compiles with ninja, which does what is left of an earlier run."""
    objects.mkdir(parents=True, exist_ok=True)
    file = target / extension.target
    file.parent.mkdir(parents=True, exist_ok=True)
    sources = [_together(group, objects) for group in extension.sources]
    (objects / "build.ninja").write_text(ninja_file(extension, sources, tools, file), encoding="utf-8")
    program = shutil.which("ninja") or str(Path(sys.executable).with_name("ninja"))
    subprocess.run([program, "-C", str(objects), "-j", str(tools.jobs)], check=True)


def _together(group: Sequence[Path], objects: Path) -> Path:
    """One file that includes all of a group."""
    if len(group) == 1:
        return group[0]
    file = objects / f"{group[0].stem}.and_more{group[0].suffix}"
    file.write_text("".join(f'#include "{path}"\n' for path in group), encoding="utf-8")
    return file


def ninja_file(extension: Extension, sources: Iterable[Path], tools: Toolchain, file: Path) -> str:
    """The rules and steps for one extension module."""
    lines = [_RULES.format(nvcc=tools.cuda / "bin" / "nvcc", arch=tools.arch)]
    torch = extension.for_torch
    includes = [*extension.includes, *tools.includes]
    module = Path(extension.target).name.split(".")[0]
    defines = [
        *extension.defines,
        *([f"TORCH_EXTENSION_NAME={module}", "TORCH_API_INCLUDE_EXTENSION_H"] if torch else []),
    ]
    common = [*(f"-I{path}" for path in extension.includes), *_system(includes), *(f"-D{each}" for each in defines)]
    names: dict[str, Path] = {}
    for source in sources:
        name = f"{source.stem}.{source.suffix[1:]}.o"
        if name in names:
            name = f"{source.parent.name}.{name}"
        names[name] = source
        rule = "nvcc" if source.suffix == ".cu" else "cxx"
        flags = [*common, *(extension.nvcc if rule == "nvcc" else extension.cxx)]
        lines.append(f"build {name}: {rule} {source}\n  flags = {' '.join(flags)}")
    lines.append(
        f"build {file}: link {' '.join(names)}\n  flags = {' '.join(_link(extension, tools))}\ndefault {file}\n"
    )
    return "\n".join(lines)


def _system(paths: Iterable[Path]) -> list[str]:
    return [f"-isystem {path}" for path in paths]


def _link(extension: Extension, tools: Toolchain) -> Sequence[str]:
    """torch is in the process before its extensions, and has CUDA's runtime."""
    libraries = [tools.cuda / "lib64", *sorted(Path(tools.python["site"]).glob("nvidia/*/lib"))]
    flags = [*extension.link, *(f"-L{path}" for path in libraries)]
    if extension.for_torch:
        flags += [*(f"-L{path}" for path in tools.python["lib"]), *(f"-l{name}" for name in _TORCH_LIBRARIES)]
        flags.append("-lcudart")
    return flags


if __name__ == "__main__":
    sys.exit(main())
