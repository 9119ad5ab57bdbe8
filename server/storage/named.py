"""Scenes that the worker reads from files itself, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.call import Allocate
from lumigrad.v1 import scene_pb2


@dataclass(eq=False)
class NamedScene:
    """A scene in files.

    Attributes:
        read: Reads the files into memory that it allocates; the scene's header, and the reader of its tensors.
        on_stored: Called with the content hash, and the reader that `read` has returned, before calls find the scene.
        content_hash: Of the content as last read; empty before.
    """

    name: str
    read: Callable[[Allocate], tuple[scene_pb2.Scene, PayloadReader]]
    on_stored: Callable[[str, PayloadReader], None]
    content_hash: str = ""


class NamedScenes:
    """All of them, of one tenant: tenants share the files, and each has its own copy in memory."""

    def __init__(self, scenes: Iterable[NamedScene] = ()) -> None:
        self._by_name: Mapping[str, NamedScene] = {scene.name: scene for scene in scenes}

    def __iter__(self) -> Iterator[NamedScene]:
        return iter(self._by_name.values())

    def unread(self) -> NamedScenes:
        """The same files for another tenant, who does not wait while this one reads them."""
        return NamedScenes(NamedScene(scene.name, scene.read, scene.on_stored) for scene in self)

    def get(self, name: str) -> NamedScene | None:
        """The scene of this name."""
        return self._by_name.get(name)

    def name_of(self, content_hash: str) -> str:
        """The name of the scene with this content; empty: none, or it was never read."""
        return next((scene.name for scene in self if content_hash and scene.content_hash == content_hash), "")
