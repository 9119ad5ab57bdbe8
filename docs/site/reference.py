"""Pages of the Python reference: which modules stand on which. Their text is that of the docstrings.

Modules are found in build/typed, the tree of links that `make typed` makes.
"""

from __future__ import annotations

import ast
from pathlib import Path

_KERNELS = "Functions of torch tensors that run in this process, without a worker; what workers call."
_PAGES = {
    "client": ("The client", "What nearly every program begins with.", ["lumigrad.client"]),
    "torch": ("PyTorch operators", "Autograd here, the computing on a worker.", ["lumigrad.client.torch"]),
    "jax": ("JAX functions", "The same for JAX arrays, compiled or not.", ["lumigrad.client.jax"]),
    "aio": ("Coroutines", "The client's verbs, to be awaited.", ["lumigrad.client.aio"]),
    "training": (
        "Trainings",
        "Parameters, optimisers, losses on the worker.",
        ["lumigrad.client.training"],
    ),
    "ray": ("Ray", "Workers that Ray places.", ["lumigrad.ray"]),
    "robots": ("Robots", "From joint angles to spheres.", ["lumigrad.client.robots"]),
    "files": ("Files and data sets", "", ["lumigrad.client.formats", "lumigrad.client.datasets"]),
    "compat": (
        "Drop-ins",
        "The names of other libraries, with the computing on a worker.",
        [
            "lumigrad.client.compat.gsplat",
            "lumigrad.client.compat.diff_gaussian_rasterization",
            "lumigrad.client.compat.pulsar",
            "lumigrad.client.compat.curobo",
        ],
    ),
    "kernels": (
        "Kernels",
        _KERNELS,
        [
            "lumigrad.kernels.gaussians",
            "lumigrad.kernels.spheres",
            "lumigrad.kernels.meshes",
            "lumigrad.kernels.density",
            "lumigrad.kernels.training",
        ],
    ),
}


def pages(root: Path) -> dict[str, str]:
    """Markdown of each page by its name.

    Args:
        root: of the repository.
    """
    return {f"reference/{name}.md": _page(root, *page) for name, page in _PAGES.items()} | {
        "reference/index.md": _index(root)
    }


def _index(root: Path) -> str:
    lines = ["# Python", "", "Every public name, from its docstring. The guides say how they go together.", ""]
    for name, (title, about, modules) in _PAGES.items():
        names = ", ".join(f"[`{public}`][{module}.{public}]" for module in modules for public in _names(root, module))
        lines += [f"**[{title}]({name}.md)**: {about} {names}", ""]
    return "\n".join(lines)


def _page(root: Path, title: str, about: str, modules: list[str]) -> str:
    lines = [f"# {title}", "", about, ""]
    for module in modules:
        lines += [f"## {module}", "", _about(root, module), ""]
        lines += [line for name in _names(root, module) for line in (f"::: {module}.{name}", "")]
    return "\n".join(lines)


def _about(root: Path, module: str) -> str:
    return ast.get_docstring(_tree(root, module)) or ""


def _names(root: Path, module: str) -> list[str]:
    """What a module exports, in the order of its `__all__`."""
    for statement in _tree(root, module).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(statement.value))
    raise ValueError(f"{module} has no __all__")


def _tree(root: Path, module: str) -> ast.Module:
    path = root.joinpath("build", "typed", *module.split("."), "__init__.py")
    return ast.parse(path.read_text(encoding="utf-8"), str(path))
