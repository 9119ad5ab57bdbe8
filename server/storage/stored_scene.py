"""A version of a stored scene."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from lumigrad.server.engines.content import Content, Outline
from lumigrad.server.engines.prepared import PreparedKinds
from lumigrad.server.engines.runner import Source
from lumigrad.v1 import scene_pb2

# The number of a scene's updates that are recorded, so that repeated ones are recognised.
_MAX_UPDATES = 16


@dataclass(frozen=True)
class StoredScene(Source):
    """A version of a scene. Immutable: an update creates the next version."""

    scene_id: str
    version: int
    # Empty once an update has changed the content.
    content_hash: str
    content: Content
    update_id: str = ""
    # The replies to updates that had an id, the oldest first.
    updates: tuple[scene_pb2.SceneInfo, ...] = ()
    # Prepared kinds of requests for this version, which end with it.
    prepared: PreparedKinds = field(init=False, compare=False, repr=False, default_factory=PreparedKinds)

    @property
    def kind(self) -> str:
        """The scene's field in `Scene`."""
        return self.content.kind

    @property
    def outline(self) -> Outline:
        """The facts that requests are checked against."""
        return self.content.outline

    @property
    def reference(self) -> scene_pb2.SceneRef:
        """The name and version as a message for replies."""
        return scene_pb2.SceneRef(scene_id=self.scene_id, version=self.version)

    def load(self) -> Content:
        """Return the content, which is on the device."""
        return self.content

    def info(self) -> scene_pb2.SceneInfo:
        """Return the description that clients receive."""
        info = scene_pb2.SceneInfo(
            scene_id=self.scene_id,
            version=self.version,
            content_hash=self.content_hash,
            kind=self.kind,
            bytes=self.content.bytes,
            count=self.content.count,
            update_id=self.update_id,
        )
        self.content.describe(info)
        return info

    def made_by(self, update_id: str) -> scene_pb2.SceneInfo | None:
        """Return the reply to an update that was already applied; None if it was not, or is no longer recorded."""
        return next((info for info in self.updates if update_id and info.update_id == update_id), None)

    def updated(self, content: Content, update_id: str) -> StoredScene:
        """Return the next version."""
        new = dataclasses.replace(self, version=self.version + 1, content_hash="", content=content, update_id=update_id)
        made = (*self.updates, new.info()) if update_id else self.updates
        return dataclasses.replace(new, updates=made[-_MAX_UPDATES:])
