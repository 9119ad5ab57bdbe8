"""C libraries that are preloaded into a process in place of the system's functions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def environment_with(source: Path, folder: Path, **variables: str) -> dict[str, str]:
    """The environment of a process into which a source, built in `folder`, is preloaded."""
    library = folder / f"{source.stem}.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return {**os.environ, "LD_PRELOAD": str(library), **variables}
