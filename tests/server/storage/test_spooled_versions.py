"""A version that was deleted or replaced never comes back, whenever the process ends and whatever is being written."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.errors import BusyError, SceneNotFoundError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.storage import spool as spool_module
from lumigrad.server.storage import spool_files
from lumigrad.server.storage.scene_files import SceneSpool
from lumigrad.server.storage.scenes import SceneStore
from lumigrad.server.storage.spool import Spool, TenantSpool
from lumigrad.server.storage.spool_writer import SpoolWriter
from lumigrad.v1 import scene_pb2
from support.workers.spooling import heads

SECONDS = 100.0


def spool_in(folder: Path, limit_bytes: int = 1 << 20) -> Spool:
    return Spool(str(folder), Account("bytes", limit_bytes, "--b"), Account("files", 100, "--f"), Metrics(), 600.0)


def again(spool: Spool, limit_bytes: int = 1 << 20) -> Spool:
    """Returns the spool as the next process finds it."""
    os.close(spool._claim)
    return spool_in(Path(spool._folder), limit_bytes)


def write(tenant_spool: TenantSpool, payload: bytes, **options: Any) -> bool:
    return tenant_spool.write("scene", "one", b"", [memoryview(payload)], **options)


def payload_of(spool: Spool) -> bytes | None:
    blob = spool.of_tenant("anna").read("scene", "one")
    return None if blob is None else bytes(blob.payload)


def named(spool: Spool) -> list[str]:
    """Returns the files that the next process would take."""
    return [os.path.basename(file.path) for file in spool_files.files(spool._folder, spool_files.Trash())]


def test_a_write_that_was_called_off_never_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = spool_in(tmp_path / "spool")
    seen: list[list[str]] = []
    monkeypatch.setattr(spool_module, "sync_folder", lambda _: seen.append(named(spool)))
    assert not write(spool.of_tenant("anna"), b"first", is_wanted=lambda: False)
    assert seen == [[]]


@pytest.mark.parametrize("is_durable", [False, True])
def test_the_version_before_is_gone_once_a_deletion_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    spool = spool_in(tmp_path / "spool")
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, b"first")
    left: list[list[str]] = []

    def delete() -> None:
        tenant_spool.forget("scene", "one")
        tenant_spool.sync()
        left.append(named(spool))

    deleting = threading.Thread(target=delete)

    def slowly(path: str) -> None:
        if not deleting.ident:
            deleting.start()
            deleting.join(0.2)
        os.unlink(path)

    monkeypatch.setattr(spool_module if not is_durable else spool_files, "remove", slowly)
    write(tenant_spool, b"second", is_durable=is_durable)
    deleting.join(SECONDS)
    assert left == [[]]


def test_a_version_that_finds_no_room_at_last_does_not_leave_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spool_in(tmp_path / "spool")
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, b"first")

    def refuse(*_: object) -> None:
        raise BusyError("the room was taken", 1.0)

    monkeypatch.setattr(spool.index, "put", refuse)
    with pytest.raises(BusyError):
        write(tenant_spool, b"second", is_durable=False)
    tenant_spool.forget("scene", "one")
    tenant_spool.sync()
    assert payload_of(again(spool)) is None


def test_a_version_without_room_does_not_make_way_for_the_one_before(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    write(spool.of_tenant("anna"), b"first")
    (first,) = Path(spool._folder).rglob("*-*-*")
    shutil.copy(first, tmp_path / first.name)
    write(spool.of_tenant("anna"), bytes(1000))
    # The process ends before the first file is removed.
    shutil.copy(tmp_path / first.name, first)
    assert payload_of(again(spool, limit_bytes=first.stat().st_size + 500)) is None


def test_what_one_process_has_no_room_for_the_next_does_not_find(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    write(spool.of_tenant("anna"), b"first")
    # The process ends before it has removed any file.
    spool = again(spool, limit_bytes=10)
    assert payload_of(spool) is None
    assert payload_of(again(spool)) is None


def test_what_a_crash_left_unfinished_does_not_stand_in_the_way(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    write(spool.of_tenant("anna"), b"first")
    (first,) = Path(spool._folder).rglob("*-*-*")
    first.with_name(f"{first.name[:-1]}{int(first.name[-1]) + 1}.part").write_bytes(b"sec")
    spool = again(spool)
    assert write(spool.of_tenant("anna"), b"second", is_durable=False)
    assert payload_of(spool) == payload_of(again(spool)) == b"second"


def newer(path: Path) -> bytes:
    """Makes a file one of a later format, which this version cannot read; returns its content."""
    content = path.read_bytes().replace(b"lumigrad spool 1", b"lumigrad spool 2", 1)
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("kind", ["scene", "training"])
def test_no_limit_removes_files_of_a_newer_version(tmp_path: Path, kind: str) -> None:
    spool = spool_in(tmp_path / "spool")
    anna = spool.of_tenant("anna")
    anna.write(kind, "one", b"", [memoryview(bytes(1000))], alias="content")
    (path,) = Path(spool._folder).rglob("*-*-*")
    content = newer(path)
    spool = again(spool, limit_bytes=1500)
    anna = spool.of_tenant("anna")
    assert len(spool) == spool.bytes == 0
    assert anna.read(kind, "one") is None and anna.read_alias(kind, "content") is None
    assert not anna.touch(kind, "one") and not anna.forget(kind, "one") and not heads(anna, kind)
    # A file of this version takes the room that the limit allows.
    for name in ("two", "three"):
        anna.write("scene", name, b"", [memoryview(bytes(1000))])
    spool.sweep()
    assert path.read_bytes() == content


@pytest.mark.parametrize("is_newest", [True, False])
def test_of_two_versions_of_a_blob_the_newest_stands_whatever_its_format(tmp_path: Path, is_newest: bool) -> None:
    spool = spool_in(tmp_path / "spool")
    write(spool.of_tenant("anna"), b"first")
    (first,) = Path(spool._folder).rglob("*-*-*")
    if not is_newest:
        newer(first)
        spool = again(spool)
        write(spool.of_tenant("anna"), b"second")
        assert first.exists()
        spool = again(spool)
        assert not first.exists() and payload_of(spool) == b"second"
        return
    shutil.copy(first, tmp_path / first.name)
    write(spool.of_tenant("anna"), b"second")
    # The process ends before the first file is removed.
    shutil.copy(tmp_path / first.name, first)
    (second,) = (path for path in Path(spool._folder).rglob("*-*-*") if path != first)
    newer(second)
    spool = again(spool)
    assert payload_of(spool) is None and second.exists() and not first.exists()


class Halted:
    """A tenant's scenes with a spool that holds the next write until `go_on` is called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writer = SpoolWriter(spool_in(folder))
        transfer: Any = SimpleNamespace(fetch=lambda tensors: [])
        self.spool = SceneSpool(self.writer.spool.of_tenant("anna"), self.writer, transfer)
        self.store = SceneStore(1 << 30, Budget(1 << 30), Metrics(), self.spool)
        self._has_begun, self._goes_on, self._has_name = threading.Event(), threading.Event(), threading.Event()
        write, give_name = spool_files.write, self.writer.spool._give_name

        def halted(*arguments: Any, **options: Any) -> None:
            self._has_begun.set()
            assert self._goes_on.wait(SECONDS)
            write(*arguments, **options)

        def noted(*arguments: Any, **options: Any) -> bool:
            try:
                return give_name(*arguments, **options)
            finally:
                self._has_name.set()

        monkeypatch.setattr(spool_files, "write", halted)
        monkeypatch.setattr(self.writer.spool, "_give_name", noted)
        self.scene = self.store.add("a" * 64, content())[0]
        assert self._has_begun.wait(SECONDS)

    def go_on(self) -> None:
        """Let the write give its file a name, or find that it was cancelled."""
        self._goes_on.set()
        assert self._has_name.wait(SECONDS)

    def versions_after_a_crash(self) -> list[int]:
        """Return the versions that the next process would find now."""
        headers = [head.header for head in heads(again(self.writer.spool).of_tenant("anna"), "scene")]
        return [scene_pb2.GetReply.FromString(header).info.version for header in headers]


def content() -> Any:
    return SimpleNamespace(
        bytes=1,
        needs=(),
        kind="spheres",
        count=1,
        tensors={},
        describe=lambda info: None,
        message=lambda tensors: scene_pb2.Scene(),
    )


def after(function: Callable[[str], bool], then: Callable[[], None]) -> Callable[[str], bool]:
    def changed(scene_id: str) -> bool:
        result = function(scene_id)
        then()
        return result

    return changed


def test_a_first_version_whose_write_ends_during_an_update_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halted = Halted(tmp_path / "spool", monkeypatch)
    # The worker sees no file, and then there is one.
    monkeypatch.setattr(halted.spool, "touch", after(halted.spool.touch, halted.go_on))
    # The next version is never written, as if the process ended before.
    monkeypatch.setattr(halted.writer, "submit", lambda *_: SimpleNamespace(is_wanted=True, work=None))
    assert halted.store.replace(halted.scene.scene_id, 1, content()).version == 2
    assert halted.versions_after_a_crash() in ([], [2])


def test_a_scene_updated_while_its_first_version_is_written_stays_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halted = Halted(tmp_path / "spool", monkeypatch)
    discard = halted.spool.discard

    def discard_after_the_write(scene_id: str) -> None:
        halted.go_on()
        with halted.writer._changed:
            assert halted.writer._changed.wait_for(lambda: not halted.writer._is_busy, SECONDS)
        discard(scene_id)

    monkeypatch.setattr(halted.spool, "discard", discard_after_the_write)
    assert halted.store.replace(halted.scene.scene_id, 1, content()).version == 2
    assert halted.store.find(halted.scene.scene_id).version == 2
    assert halted.writer.flush(SECONDS)
    assert not halted.store.is_held
    assert halted.versions_after_a_crash() == [2]


def test_a_scene_deleted_while_it_is_written_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halted = Halted(tmp_path / "spool", monkeypatch)
    sync_folder, seen = spool_module.sync_folder, []

    def crashing(path: str) -> None:
        seen.append(named(halted.writer.spool))
        sync_folder(path)

    monkeypatch.setattr(spool_module, "sync_folder", crashing)
    halted.store.delete(halted.scene.scene_id)
    halted.go_on()
    assert halted.writer.flush(SECONDS)
    assert seen == [[]]
    with pytest.raises(SceneNotFoundError):
        halted.store.find(halted.scene.scene_id)
