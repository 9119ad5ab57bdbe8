"""Files of Gaussians that callers store by `file:` address, see `addresses`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lumigrad.protos.drive.manifest import GaussianFile, Manifest
from lumigrad.server.core.config import ConfigError
from lumigrad.server.core.limits import require
from lumigrad.server.sensorsim.addresses import scene_file_at
from lumigrad.server.sensorsim.catalog import DriveScene, FileState, gaussian_reader, state_of
from lumigrad.server.storage.named import NamedScene


class SceneFiles:
    """The files below a folder."""

    def __init__(self, root: Path, read: Callable[[Path], Any], most_bytes: int) -> None:
        """`read` reads a file of at most `most_bytes`."""
        self._root, self._read, self._most_bytes = root, read, most_bytes
        self._known: dict[Path, tuple[FileState | None, NamedScene]] = {}

    @staticmethod
    def open(folder: str, most_bytes: int) -> SceneFiles:
        """Serve a folder; raises ConfigError if it does not exist."""
        if not Path(folder).is_dir():
            raise ConfigError(f"--scene-files: expected a folder, got {folder}")
        return SceneFiles(Path(folder), gaussian_reader("--scene-files"), most_bytes)

    def at(self, address: str) -> NamedScene:
        """Return the scene at an address; once its file has changed, a new scene."""
        path = scene_file_at(address, self._root)
        state, known = state_of(path), self._known.get(path)
        if known is None or known[0] != state:
            size = 0 if state is None else state[1]
            require(size <= self._most_bytes, "name", f"a file of at most {self._most_bytes:,} bytes", f"{size:,}")
            known = self._known[path] = state, self._scene(path)
        return known[1]

    def _scene(self, path: Path) -> NamedScene:
        only = (GaussianFile(path, path.name),)
        manifest = Manifest(self._root.resolve(), path.name, None, (0.0, 0.0, 0.0), only, (), (), (), ())
        scene = DriveScene(manifest, self._read)
        return NamedScene(path.as_uri(), scene.load, scene.stored)
