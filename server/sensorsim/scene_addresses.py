"""Scenes that callers store by address: files of the worker, and files that it downloads."""

from __future__ import annotations

from collections.abc import Callable

from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import require
from lumigrad.server.sensorsim.downloads import SceneDownloads
from lumigrad.server.sensorsim.scene_files import SceneFiles
from lumigrad.server.storage.named import NamedScene


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
