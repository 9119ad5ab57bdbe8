"""Opens USD stages of unknown origin: no layer outside the file's folder, no URL, nothing that is fetched later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from lumigrad.client.base.extras import MissingPackage, require
from lumigrad.client.formats.source import malformed
from lumigrad.client.formats.usd.crates import MAGIC, check_crates

SUFFIXES = (".usd", ".usda", ".usdc", ".usdz")
_MOST_LAYERS = 1000
# The oldest Python that usd-core has wheels for.
_OLDEST_PYTHON = (3, 11)
_MARKS = (b"#usda ", MAGIC)


def looks_like_usd(start: bytes, path: Path) -> bool:
    """Whether a file that starts with these bytes is a text, binary or zipped USD file."""
    return start.startswith(_MARKS) or (path.suffix.lower() == ".usdz" and start.startswith(b"PK"))


def pxr(module: str, purpose: str) -> ModuleType:
    """Imports a module of OpenUSD; raises MissingPackage where the extra `usd` is not installed."""
    if tuple(sys.version_info) < _OLDEST_PYTHON:
        raise MissingPackage(f'{purpose} needs the package "usd-core", which needs Python 3.11 or later')
    return require(f"pxr.{module}", "usd", purpose)


def open_stage(path: Path) -> tuple[Any, int]:
    """Returns a stage, and the size of all its layers' files, bytes.

    Raises:
        InvalidArgument: the file or one of its layers is damaged, absent, or lies outside the file's folder.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise malformed(path, f"expected a USD file to end in {', '.join(SUFFIXES)}, got {path.name!r}; rename it")
    layers, size = _layers(path)
    return pxr("Usd", "reading USD files").Stage.Open(layers[0]), size


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Turns OpenUSD's errors inside the block into InvalidArgument."""
    try:
        yield
    except pxr("Tf", "reading USD files").ErrorException as error:
        raise malformed(path, f"expected a USD file, but it is damaged: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Returns OpenUSD's first message without the source location: Error in F at line N in file S : 'TEXT'."""
    try:
        first = str(error).strip().splitlines()[0]
        return first.partition(" : ")[2].strip().strip("'") or first
    except UnicodeDecodeError:
        # OpenUSD quotes the file, whose text need not be UTF-8.
        return "it has text that is not UTF-8"


def _layers(path: Path) -> tuple[list[Any], int]:
    """Returns all layers that the stage will compose, the root first, and the size of their files, bytes.

    They are checked before the stage opens, because opening follows every reference.
    """
    sdf, ar = (pxr(name, "reading USD files") for name in ("Sdf", "Ar"))
    folder = path.parent.resolve()
    check_crates(path, path)
    root = sdf.Layer.FindOrOpen(str(folder / path.name))
    if root is None:
        raise malformed(path, "expected a USD file, but it does not open")
    layers, waiting, names, files = [root], [root], {root.identifier}, {folder / path.name}
    while waiting:
        layer = waiting.pop()
        for name in layer.GetCompositionAssetDependencies():
            anchored = sdf.ComputeAssetPathRelativeToLayer(layer, name)
            if anchored in names:
                continue
            names.add(anchored)
            file = Path(ar.SplitPackageRelativePathOuter(anchored)[0])
            # "://" would be a URL, ":SDF_FORMAT_ARGS:" a generated layer, "`" an expression.
            if ":" in anchored or "`" in name or folder not in file.resolve().parents:
                raise malformed(path, f"expected layers in its own folder only, but it refers to {name!r}")
            found = None
            if file.is_file():
                check_crates(path, file)
                found = sdf.Layer.FindOrOpen(anchored)
            if found is None:
                raise malformed(path, f"expected the layer {name!r}, which {layer.GetDisplayName()} refers to")
            if len(layers) == _MOST_LAYERS:
                raise malformed(path, f"expected at most {_MOST_LAYERS:,} layers")
            files.add(file)
            layers.append(found)
            waiting.append(found)
    return layers, sum(file.stat().st_size for file in files)
