"""Scenes that come with the package: `sample:vase` names a file."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from lumigrad.client.base.arguments import file_path
from lumigrad.client.errors import InvalidArgument

_PREFIX = "sample:"
_FOLDER = Path(__file__).with_name("samples")


def located(path: str | PathLike[str]) -> Path:
    """Returns the path of a scene file; "sample:vase" names the sample in the package.

    Raises:
        InvalidArgument: the path is empty, or there is no sample of this name.
    """
    checked = file_path("path", path)
    name = fspath(path)
    if not name.startswith(_PREFIX):
        return checked
    known = samples()
    if name not in known:
        raise InvalidArgument.of("path", f"expected one of the samples, {', '.join(known)}, got {name}")
    return known[name]


def samples() -> dict[str, Path]:
    """Returns the files of the samples by their names, such as "sample:vase"."""
    return {f"{_PREFIX}{file.stem}": file for file in sorted(_FOLDER.glob("*.spz"))}
