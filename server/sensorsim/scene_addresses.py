"""Scenes that callers store by address: files of the worker, and files that it downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lumigrad.protos.drive.manifest import GaussianFile, Manifest
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.limits import require
from lumigrad.server.sensorsim.addresses import scene_file_at
from lumigrad.server.sensorsim.catalog import DriveScene, FileState, gaussian_reader, state_of
from lumigrad.server.sensorsim.downloads import SceneDownloads
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
        manifest = Manifest(self._root.resolve(), path.as_uri(), None, (0.0, 0.0, 0.0), only, (), (), (), ())
        scene = DriveScene(manifest, self._read)
        return NamedScene(path.as_uri(), scene.load, scene.stored)


def scene_addresses(config: Config) -> Callable[[str], NamedScene] | None:
    """Return a function that finds scenes by address; None if the operator allows no addresses. Raises ConfigError."""
    most = config.max_payload_bytes
    files = SceneFiles.open(config.scene_files, most) if config.scene_files else None
    downloads = SceneDownloads.open(config.scene_urls, most) if config.scene_urls else None
    if files is None and downloads is None:
        return None

    def at(address: str) -> NamedScene:
        is_file = address.startswith("file:")
        finder, option = (files, "--scene-files") if is_file else (downloads, "--scene-urls")
        require(finder is not None, "name", f"a worker with {option}, which allows such addresses", "one without")
        assert finder is not None
        return finder.at(address)

    return at
