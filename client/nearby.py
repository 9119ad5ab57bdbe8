"""Where the files lie that another file names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def nearby(path: Path, names: Iterable[str | Path]) -> Path | None:
    """The file of one of these names that `path` may mean: from its own folder upwards; None: there is none."""
    folder, wanted = path.absolute().parent, tuple(names)
    candidates = (above / name for above in (folder, *folder.parents) for name in wanted)
    return next((candidate for candidate in candidates if candidate.is_file()), None)
