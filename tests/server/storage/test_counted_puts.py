"""Puts of scenes that are written to the spool before they are stored, where others can already read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lumigrad.server.core.errors import BusyError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.storage.scenes import SceneStore
from lumigrad.server.storage.stored_scene import StoredScene

DIGEST = "a" * 64


class Spool:
    """Files of scenes, by their names."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def touch(self, scene_id: str) -> bool:
        return scene_id in self.files

    def forget(self, scene_id: str) -> bool:
        self.files.discard(scene_id)
        return True

    def sync(self) -> None:
        """Does nothing."""


def scene(nbytes: int = 10) -> StoredScene:
    content: Any = SimpleNamespace(bytes=nbytes, needs=(), kind="levels", count=1, describe=lambda info: None)
    return StoredScene("scene", 1, DIGEST, content)


def test_a_scene_that_another_call_has_read_first_goes_with_its_last_put() -> None:
    spool: Any = Spool()
    store = SceneStore(1 << 20, Budget(1 << 20), Metrics(), spool)
    with store.counted("scene"):
        spool.files.add("scene")
        # Another call reads the file, and a third has the same content.
        assert store.restore(scene())
        assert store.find_content(DIGEST) is not None
        assert not store.restore(scene())
    assert not store.take_back("scene")
    assert spool.files == {"scene"}
    assert store.take_back("scene")
    assert (spool.files, len(store)) == (set(), 0)


def test_a_put_that_fails_is_not_counted() -> None:
    spool: Any = Spool()
    store = SceneStore(1 << 20, Budget(1 << 20), Metrics(), spool)
    with pytest.raises(BusyError), store.counted("scene"):
        spool.files.add("scene")
        raise BusyError("full", None)
    # Another call seems to have put the scene.
    assert store.restore(scene())
    assert not store.take_back("scene")
    assert len(store) == 1
