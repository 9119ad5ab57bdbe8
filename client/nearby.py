"""Where the files lie that another file names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def nearby(path: Path, named: Path) -> Iterator[Path]:
    """Where a file may be that `path` names: from its folder upwards."""
    folder = path.absolute().parent
    for above in (folder, *folder.parents):
        yield above / named
