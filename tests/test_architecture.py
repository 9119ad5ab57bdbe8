"""The architecture: which layers and packages may import which, and what importing the client loads."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = {
    "protos": set[str](),
    "kernels": set[str](),
    "client": {"protos"},
    "server": {"protos", "kernels"},
}
# The packages of a layer, and its top-level modules, from the lowest to the highest: each may import those before it.
# Those on one line may not import each other.
ORDER = {
    "server": [
        "core",
        "shm device",
        "engines",
        "storage",
        "scenes",
        "training rpc",
        "sensorsim",
        "process",
    ],
    "client": [
        "errors",
        "base",
        "values",
        "settings formats",
        "wire transport",
        "workers",
        "rendering distances",
        "pictures video",
        "calls",
        "training",
        "client",
        "default datasets robots aio shell operators",
        "torch jax fitting clearance benchmark viewer samples",
        "compat",
        "commands",
        "cli",
        "start",
    ],
}
# Imports upwards inside functions: a value type needs its formats only when it is asked to load or save.
UPWARDS = {"client": {("values", "formats")}}
MOST_FILES = 25
# Imports that close a circle, but not when modules are loaded: a handle may carry the world that it names, which only
# type checkers need to know, and spans are imported once a program traces.
LATE = {
    ("lumigrad.client.values.handle", "lumigrad.client.values.world"),
    ("lumigrad.client.transport.tracing", "lumigrad.client.transport.spans"),
}
# Foreign packages that a layer below the server may not import, so that it does not depend on how it is served.
FOREIGN = {
    "kernels": {"grpc", "google", "lumigrad.v1"},
    "protos": {"torch"},
}
SOURCES = {".py", ".cpp", ".h", ".cu", ".cuh", ".proto"}
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def package(layer: str) -> Path:
    """Returns the folder of a layer, in the checkout or in an installed wheel."""
    spec = importlib.util.find_spec(f"lumigrad.{layer}")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def python_files(layer: str) -> Iterator[Path]:
    yield from (path for path in sorted(package(layer).rglob("*.py")) if not path.name.endswith(GENERATED))


@functools.cache
def imported(path: Path, module: str) -> tuple[tuple[int, str], ...]:
    """Returns the absolute names of all imports in a file, with their lines."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(module.split(".")[: -node.level]) + "." if node.level else ""
            base = start + (node.module or "")
            found.append((node.lineno, base))
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return tuple(found)


def module_of(path: Path, layer: str) -> str:
    relative = path.relative_to(package(layer)).with_suffix("")
    return ".".join(["lumigrad", layer, *relative.parts])


def layer_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "lumigrad" and len(parts) > 1 and parts[1] in LAYERS else None


@pytest.mark.parametrize("layer", LAYERS)
def test_arrows_point_down_only(layer: str) -> None:
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in python_files(layer)
        for line, name in imported(path, module_of(path, layer))
        if layer_of(name) not in {None, layer, *LAYERS[layer]}
    ]
    assert not wrong


@pytest.mark.parametrize("layer", FOREIGN)
def test_lower_layers_know_nothing_of_what_is_above(layer: str) -> None:
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in python_files(layer)
        for line, name in imported(path, module_of(path, layer))
        if any(name == foreign or name.startswith(foreign + ".") for foreign in FOREIGN[layer])
    ]
    assert not wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_has_files_to_look_at(layer: str) -> None:
    assert len(list(python_files(layer))) > 1


def loaded_by(statement: str) -> set[str]:
    """Returns the top-level names of all modules that a statement loads into a fresh interpreter."""
    script = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_client_pulls_in_neither_torch_nor_the_upper_layers() -> None:
    # The command line imports the package too.
    modules = loaded_by("import lumigrad.client.cli")
    found = modules & {"torch", "plyfile", "PIL", "prometheus_client", "matplotlib"}
    # grpc itself checks whether there is a package grpc_tools; only its compiler would be costly.
    found |= {name for name in modules if name.startswith("grpc_tools.")}
    assert not found
    assert not [name for name in modules if layer_of(name) in {"server", "kernels"}]


def test_protos_pull_in_no_torch() -> None:
    modules = loaded_by("import lumigrad.protos.tensors, lumigrad.protos.service")
    assert "torch" not in modules
    assert not [name for name in modules if layer_of(name) in {"client", "server", "kernels"}]


def test_kernels_pull_in_no_grpc() -> None:
    modules = loaded_by("import lumigrad.kernels.spheres")
    assert "grpc" not in modules
    assert not [name for name in modules if layer_of(name) in {"client", "server", "protos"}]


def sources() -> Iterator[Path]:
    """Yields every source file of the layers and of the tests."""
    for root in (*(package(layer) for layer in LAYERS), Path(__file__).parent):
        for path in sorted(root.rglob("*")):
            if path.suffix in SOURCES and not path.name.endswith(GENERATED):
                yield path


def test_python_files_say_what_they_are_for() -> None:
    says = re.compile(r'(?:\s|#.*\n)*"""\s*[\w`]')
    silent = [str(path) for path in sources() if path.suffix == ".py" and not says.match(path.read_text("utf-8"))]
    assert not silent


def test_documents_are_in_the_navigation_of_the_site() -> None:
    """`make docs` also fails if one is missing, but later."""
    root = Path(__file__).parents[1]
    navigation = (root / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [path.name for path in sorted((root / "docs").glob("*.md")) if f": {path.name}\n" not in navigation]
    assert not missing


def packages(layer: str) -> dict[str, int]:
    """Returns the rank of each package of a layer."""
    return {name: rank for rank, line in enumerate(ORDER[layer]) for name in line.split()}


def package_of(name: str, layer: str) -> str | None:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["lumigrad", layer] and len(parts) > 2 else None


@pytest.mark.parametrize("layer", ORDER)
def test_every_package_has_its_place(layer: str) -> None:
    found = {package_of(module_of(path, layer), layer) for path in python_files(layer)} - {"__init__"}
    assert found == set(packages(layer))


@pytest.mark.parametrize("layer", ORDER)
def test_arrows_between_packages_point_down_only(layer: str) -> None:
    ranks, wrong = packages(layer), []
    for path in python_files(layer):
        own = package_of(module_of(path, layer), layer)
        if own == "__init__":
            continue
        for line, name in imported(path, module_of(path, layer)):
            other = package_of(name, layer)
            if other not in ranks or other == own or (own, other) in UPWARDS.get(layer, ()):
                continue
            if ranks[other] >= ranks[own]:
                wrong.append(f"{path}:{line} imports {name}")
    assert not wrong


@pytest.mark.parametrize("layer", LAYERS)
def test_no_modules_import_each_other_in_a_circle(layer: str) -> None:
    modules = {module_of(path, layer).removesuffix(".__init__"): path for path in python_files(layer)}
    graph = {
        name: {to for _, to in imported(path, module_of(path, layer)) if to in modules and to != name}
        for name, path in modules.items()
    }
    for name, path in modules.items():
        own = package_of(name, layer)
        graph[name] = {to for to in graph[name] if (own, package_of(to, layer)) not in UPWARDS.get(layer, ())}
        graph[name] -= {to for to in graph[name] if (name, to) in LATE}
        if path.name != "__init__.py":
            # An import of a module from a package does not depend on the package's `__init__`.
            graph[name] -= {to for to in graph[name] if modules[to].name == "__init__.py"}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_folders_are_narrow() -> None:
    tests = Path(__file__).parent
    count = Counter(path.parent for path in sources() if tests not in path.parents or tests / "support" in path.parents)
    assert not {folder: number for folder, number in count.items() if number > MOST_FILES}


def imports_of_packages(layer: str) -> dict[str, set[str]]:
    """Returns the packages that each package of a layer imports."""
    ranks = packages(layer)
    found: dict[str, set[str]] = {name: set() for name in ranks}
    for path in python_files(layer):
        own = package_of(module_of(path, layer), layer)
        if own in ranks:
            others = {package_of(name, layer) for _, name in imported(path, module_of(path, layer))}
            found[own] |= {other for other in others if other in ranks and other != own}
    return found


@pytest.mark.parametrize("layer", ORDER)
def test_the_document_shows_the_packages_and_their_arrows(layer: str) -> None:
    document = Path(__file__).parents[1] / "docs" / "architecture.md"
    if not document.is_file():
        pytest.skip("the documents are not here, only the tests of a wheel")
    rows = re.findall(rf"^\| `{layer}\.(\w+)` \|[^|]*\|([^|]*)\|$", document.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name: {other.strip() for other in others.split(",") if other.strip()} for name, others in rows}
    assert shown == imports_of_packages(layer)
