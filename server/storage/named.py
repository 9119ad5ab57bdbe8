"""Scenes that the worker reads from files itself, by name or by address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.call import Allocate, Reserve
from lumigrad.v1 import scene_pb2

_ADDRESSES = ("file:", "https:")
# The number of scenes at addresses that a tenant's calls find without reading them again.
_MOST_OWN = 4096


def is_address(name: str) -> bool:
    """Return whether a name is the address of a file."""
    return name.startswith(_ADDRESSES)


def may_change(name: str) -> bool:
    """Return whether another file may take the place of the scene of this name at any moment."""
    return name.startswith("file:")


@dataclass(eq=False)
class NamedScene:
    """A scene in files.

    Attributes:
        read: Reads the files into memory from the first argument, and reserves memory for temporary copies by the
            second; returns the scene's header and the reader of its tensors.
        on_stored: Called with the content hash and the reader that `read` returned, before calls can find the scene.
        content_hash: Hash of the content as last read; empty before the first read.
        is_remote: Whether `read` waits for another machine.
    """

    name: str
    read: Callable[[Allocate, Reserve], tuple[scene_pb2.Scene, PayloadReader]]
    on_stored: Callable[[str, PayloadReader], None]
    content_hash: str = ""
    is_remote: bool = False


class NamedScenes:
    """The named scenes of one tenant. Tenants share the files, and each has its own copy in memory."""

    def __init__(self, at: Callable[[str], NamedScene] | None = None) -> None:
        """Begin without scenes; `at` finds scenes by address, if given."""
        self.at = at
        # Scenes shared by all tenants, and this tenant's copies of those that it has asked for.
        self._files: dict[str, NamedScene] = {}
        self._own: dict[str, NamedScene] = {}

    def __iter__(self) -> Iterator[NamedScene]:
        return iter([self._of(scene) for scene in list(self._files.values())])

    def unread(self) -> NamedScenes:
        """Return the same files for another tenant, which need not wait while this tenant reads them."""
        other = NamedScenes(at=self.at)
        other._files = self._files
        return other

    def add(self, scene: NamedScene) -> None:
        """Add a scene for all tenants."""
        self._files[scene.name] = scene

    def get(self, name: str) -> NamedScene | None:
        """Return the scene of this name, or at this address."""
        scene = self._files.get(name)
        if scene is None and self.at is not None and is_address(name):
            scene = self.at(name)
        return None if scene is None else self._of(scene)

    def _of(self, scene: NamedScene) -> NamedScene:
        own = self._own.get(scene.name)
        # A changed file is another scene; the content at a remote address never changes.
        if own is None or (own.read != scene.read and not scene.is_remote):
            own = self._own[scene.name] = replace(scene, content_hash="")
            # Other calls of the tenant may do the same.
            for oldest in list(self._own)[: max(0, len(self._own) - _MOST_OWN)]:
                self._own.pop(oldest, None)
        return own

    def name_of(self, content_hash: str) -> str:
        """Return the name of the scene with this content; empty if there is none, or if it was never read."""
        read = list(self._own.values())
        return next((scene.name for scene in read if content_hash and scene.content_hash == content_hash), "")
