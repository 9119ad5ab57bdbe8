"""The shape of the house: which layer may import which, what the client pulls in, and how long a file may be."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = {
    "protos": set[str](),
    "kernels": set[str](),
    "client": {"protos"},
    "server": {"protos", "kernels"},
}
# Not ours to import below the server: neither layer may grow a dependency on how it is served.
FOREIGN = {
    "kernels": {"grpc", "google", "lumigrad.v1"},
    "protos": {"torch"},
}
SOURCES = {".py", ".cpp", ".h", ".cu", ".cuh", ".proto"}
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def package(layer: str) -> Path:
    """Where a layer lies: a folder of the checkout, or of an installed wheel."""
    spec = importlib.util.find_spec(f"lumigrad.{layer}")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def python_files(layer: str) -> Iterator[Path]:
    yield from (path for path in sorted(package(layer).rglob("*.py")) if not path.name.endswith(GENERATED))


def imported(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Absolute names of what a file imports, wherever in it, with the line."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(module.split(".")[: -node.level]) + "." if node.level else ""
            base = start + (node.module or "")
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


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
    """Top-level names of all modules that a statement brings into a fresh interpreter."""
    script = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import lumigrad.client", "import lumigrad.client.cli"])
def test_client_pulls_in_neither_torch_nor_the_upper_layers(statement: str) -> None:
    modules = loaded_by(statement)
    found = modules & {"torch", "plyfile", "PIL", "prometheus_client", "matplotlib"}
    # grpc itself looks whether a package grpc_tools is there; its compiler is what would cost.
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
    """Every source file at hand: the layers, and beside the tests whatever a checkout holds."""
    for root in (*(package(layer) for layer in LAYERS), Path(__file__).parent):
        for path in sorted(root.rglob("*")):
            if path.suffix in SOURCES and not path.name.endswith(GENERATED):
                yield path


def test_python_files_say_what_they_are_for() -> None:
    silent = [
        str(path)
        for path in sources()
        if path.suffix == ".py" and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


def test_documents_are_in_the_navigation_of_the_site() -> None:
    """`make docs` fails where one is not; here one hears of it sooner."""
    root = Path(__file__).parents[1]
    navigation = (root / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [path.name for path in sorted((root / "docs").glob("*.md")) if f": {path.name}\n" not in navigation]
    assert not missing
