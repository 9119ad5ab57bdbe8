"""Scenes that the worker reads from files, by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lumigrad.server.core.call import Call
from lumigrad.server.scenes import lookup
from lumigrad.server.sensorsim.scene_addresses import SceneFiles
from lumigrad.server.storage.named import NamedScene, NamedScenes
from lumigrad.server.storage.reads import DiskReads
from support.models.account_machine import Caller


@contextmanager
def _lent(_: str) -> Iterator[Any]:
    yield memoryview


def test_a_file_that_changes_while_it_is_read_is_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, began, may_end = tmp_path / "scene.ply", threading.Event(), threading.Event()
    file.write_bytes(b"old")

    def read(_: Any, __: NamedScene, ___: Any) -> bytes:
        content = file.read_bytes()
        began.set()
        assert may_end.wait(60)
        return content

    monkeypatch.setattr(lookup, "read_named", read)
    memory: Any = SimpleNamespace(lent=_lent)
    runtime: Any = SimpleNamespace(
        named=NamedScenes(SceneFiles(tmp_path, lambda _: None, 100).at), reads=DiskReads(memory, "")
    )

    def found() -> Any:
        return lookup.named_scene(runtime, Call("Test.Call", Caller()), file.as_uri())

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(found)
        assert began.wait(60)
        file.write_bytes(b"newer")
        second = threads.submit(found)
        while not first.done():
            # The read ends once the second call waits, for this read or for another one.
            if sum(each.waiting for each in list(runtime.reads._reads.values())) == 2:
                may_end.set()
            time.sleep(0.01)
        assert (first.result(), second.result()) == (b"old", b"newer")
