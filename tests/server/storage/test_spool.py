"""Blobs on disk: read whole or not at all, within a budget, separately for each owner."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import BusyError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.storage import spool_writer
from lumigrad.server.storage.spool import Blob, Spool, TenantSpool
from lumigrad.server.storage.spool_writer import SpoolWriter
from support.models.account_machine import Caller
from support.workers.forks import run_program
from support.workers.spooling import heads

LARGE = np.random.default_rng(0).bytes(3 << 20)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def spool(tmp_path: Path, metrics: Metrics) -> Spool:
    return spool_in(tmp_path / "spool", metrics)


def spool_in(
    folder: Path | str,
    metrics: Metrics,
    limit_bytes: int = 16 << 20,
    share: int | None = None,
    files: int = 100,
    idle_seconds: float = 600.0,
) -> Spool:
    space = Account("bytes of files", limit_bytes, "--whole", share=share, share_option="--share")
    return Spool(str(folder), space, Account("files", files, "--files"), metrics, idle_seconds)


def again(spool: Spool, limit_bytes: int = 16 << 20) -> Spool:
    """Returns the spool as the next process finds it."""
    os.close(spool._claim)
    return spool_in(spool._folder, Metrics(), limit_bytes)


def write(
    tenant_spool: TenantSpool, name: str, payload: bytes = b"payload", header: bytes = b"header", **options: object
) -> bool:
    buffers = [memoryview(payload[:5]), memoryview(payload[5:])]
    return tenant_spool.write("thing", name, header, buffers, **options)  # type: ignore[arg-type]


def parts(blob: Blob | None) -> tuple[str, bytes, bytes] | None:
    return None if blob is None else (blob.name, blob.header, bytes(blob.payload))


def files(spool: Spool) -> list[Path]:
    return [path for path in Path(spool._folder).rglob("*") if path.is_file() and path.name != "lock"]


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("payload", [b"", b"x", b"payload", LARGE])
@pytest.mark.parametrize("header", [b"", b"header" * 1000])
def test_what_was_written_is_read(spool: Spool, payload: bytes, header: bytes) -> None:
    assert write(spool.of_tenant("anna"), "a name / of any length " * 20, payload, header)
    for _ in range(2):
        found = spool.of_tenant("anna").read("thing", "a name / of any length " * 20)
        assert parts(found) == ("a name / of any length " * 20, header, payload)
        spool = again(spool)


def test_blobs_are_their_owners_and_of_their_kind(spool: Spool) -> None:
    anna, ben = spool.of_tenant("anna"), spool.of_tenant("ben")
    write(anna, "one", alias="other")
    for reader, kind in ((ben, "thing"), (anna, "item")):
        assert reader.read(kind, "one") is None
        assert reader.read_alias(kind, "other") is None
        assert not reader.touch(kind, "one")
        assert not reader.forget(kind, "one")
        assert heads(reader, kind) == []
    assert parts(anna.read_alias("thing", "other")) == ("one", b"header", b"payload")
    assert [(head.name, head.header) for head in heads(anna, "thing")] == [("one", b"header")]


def test_nobody_else_on_the_machine_can_read_it(spool: Spool) -> None:
    write(spool.of_tenant("anna"), "one")
    for path in (Path(spool._folder), *Path(spool._folder).rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
        assert "anna" not in str(path) and "one" not in path.name


def test_the_newest_of_a_name_stands(spool: Spool) -> None:
    tenant_spool = spool.of_tenant("anna")
    for number in range(3):
        assert write(tenant_spool, "one", b"payload %d" % number, alias=f"alias {number}")
    assert len(spool) == len(files(spool)) == 1
    tenant_spool = again(spool).of_tenant("anna")
    assert parts(tenant_spool.read("thing", "one")) == ("one", b"header", b"payload 2")
    assert tenant_spool.read_alias("thing", "alias 1") is None
    assert tenant_spool.read_alias("thing", "alias 2") is not None


def test_what_is_forgotten_and_settled_does_not_come_back(spool: Spool) -> None:
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, "one", alias="other")
    assert tenant_spool.forget("thing", "one")
    assert not tenant_spool.forget("thing", "one")
    assert tenant_spool.read("thing", "one") is None and tenant_spool.read_alias("thing", "other") is None
    # The blob would not come back even if no file could be removed any more.
    tenant_spool.sync()
    spool = again(spool)
    assert len(spool) == 0 and spool.of_tenant("anna").read("thing", "one") is None
    spool.sweep()
    assert files(spool) == []


def test_what_a_crash_left_unfinished_is_removed(spool: Spool) -> None:
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, "one")
    (whole,) = files(spool)
    for name in (f"{whole.name}.part", f"{whole.name}.gone", "what is this"):
        whole.with_name(name).write_bytes(b"?")
    # A file that was replaced may also be left.
    older = whole.with_name(whole.name[:-16] + "0" * 16)
    older.write_bytes(whole.read_bytes())
    spool = again(spool)
    spool.sweep()
    assert files(spool) == [whole]
    assert write(spool.of_tenant("anna"), "two")


def test_pipes_links_and_folders_with_names_of_files_are_not_read(spool: Spool) -> None:
    write(spool.of_tenant("anna"), "one")
    (whole,) = files(spool)
    pipe, link, folder = (whole.with_name(f"{digit * 32}-0-{whole.name[-16:]}") for digit in "123")
    os.mkfifo(pipe)
    link.symlink_to(whole)
    folder.mkdir()
    spool = again(spool)
    assert len(spool) == 1
    spool.sweep()
    assert files(spool) == [whole] and not pipe.exists() and not link.exists()


def test_a_write_that_is_called_off_at_the_last_moment_leaves_nothing(spool: Spool, metrics: Metrics) -> None:
    tenant_spool = spool.of_tenant("anna")
    assert not write(tenant_spool, "one", is_wanted=lambda: False)
    assert len(spool) == 0 and files(spool) == []
    assert sample(metrics, "lumigrad_spool_writes_total", kind="thing", result="unwanted") == 1


@pytest.mark.parametrize("place", [0, 20, 60, 75, 200, -40, -1])
def test_a_damaged_file_is_noticed_and_removed(spool: Spool, metrics: Metrics, place: int) -> None:
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, "one", LARGE[:1000])
    write(tenant_spool, "two", LARGE[:1000])
    path = next(path for path in files(spool) if b"one" in path.read_bytes()[:60])
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert tenant_spool.read("thing", "one") is None
    assert tenant_spool.read("thing", "two") is not None
    assert not path.exists() and len(spool) == 1
    assert sample(metrics, "lumigrad_spool_reads_total", kind="thing", result="damaged") == 1


@pytest.mark.parametrize("length", [0, 10, 40, 90, 1000])
def test_a_file_that_is_cut_off_or_longer_is_damaged(spool: Spool, length: int) -> None:
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, "one", LARGE[:1000])
    (path,) = files(spool)
    os.truncate(path, length if length else 5000)
    assert heads(tenant_spool, "thing") == []
    assert files(spool) == []


def test_the_header_of_one_file_does_not_go_with_the_payload_of_another(spool: Spool) -> None:
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, "one", b"1" * 64, b"header 1")
    write(tenant_spool, "two", b"2" * 64, b"header 2")
    one, two = sorted(files(spool), key=lambda path: b"two" in path.read_bytes()[:60])
    content = one.read_bytes()
    one.write_bytes(content[:128] + two.read_bytes()[128:])
    assert tenant_spool.read("thing", "one") is None


def test_the_least_recently_used_makes_room(tmp_path: Path, metrics: Metrics) -> None:
    spool = spool_in(tmp_path, metrics, 3_500)
    tenant_spool = spool.of_tenant("anna")
    for name in ("one", "two", "three"):
        write(tenant_spool, name, LARGE[:900])
    tenant_spool.touch("thing", "one")
    write(tenant_spool, "four", LARGE[:900])
    assert [head.name for head in heads(tenant_spool, "thing")] == ["three", "one", "four"]
    assert spool.bytes == sum(path.stat().st_size for path in files(spool)) <= 3_500
    assert sample(metrics, "lumigrad_evictions_total", store="spool", reason="room") == 1
    with pytest.raises(BusyError, match=r"bytes of files are needed, of which there are 3500 .*--whole"):
        write(tenant_spool, "five", LARGE[:4000])
    assert sample(metrics, "lumigrad_spool_writes_total", kind="thing", result="no_room") == 1
    assert len(spool) == 3
    # The next process may have a lower limit.
    spool = again(spool, 2_500)
    assert [head.name for head in heads(spool.of_tenant("anna"), "thing")] == ["three", "four"]


def test_each_owner_has_a_share_and_loses_its_own_only(tmp_path: Path, metrics: Metrics) -> None:
    spool = spool_in(tmp_path, metrics, 4_400, share=2_400)
    anna, ben = spool.of_tenant("anna"), spool.of_tenant("ben")
    write(ben, "kept", LARGE[:900])
    for name in ("one", "two", "three"):
        write(anna, name, LARGE[:900])
    assert [head.name for head in heads(anna, "thing")] == ["two", "three"]
    # Carl has nothing that could be evicted.
    write(ben, "more", LARGE[:700])
    with pytest.raises(BusyError, match="--whole"):
        write(spool.of_tenant("carl"), "one", LARGE[:900])
    with pytest.raises(BusyError, match="--share"):
        write(anna, "four", LARGE[:2400])
    assert [head.name for head in heads(anna, "thing")] == ["two", "three"]
    assert [head.name for head in heads(ben, "thing")] == ["kept", "more"]
    assert spool.bytes == sum(path.stat().st_size for path in files(spool)) <= 4_400


def test_snapshots_make_way_for_no_scene_and_scenes_for_snapshots(tmp_path: Path, metrics: Metrics) -> None:
    spool = spool_in(tmp_path, metrics, 2_400)
    tenant_spool = spool.of_tenant("anna")
    payload = [memoryview(LARGE[:900])]
    write(tenant_spool, "scene", LARGE[:900])
    for _ in range(3):
        # A file replaces the previous one of the same name, and takes its room.
        assert tenant_spool.write("training", "one", b"", payload)
    assert tenant_spool.touch("thing", "scene")
    assert tenant_spool.write("training", "two", b"", payload)
    assert not tenant_spool.touch("thing", "scene")
    for write_another in (
        lambda: write(tenant_spool, "scene", LARGE[:900]),
        lambda: tenant_spool.write("training", "three", b"", payload),
    ):
        with pytest.raises(BusyError, match="2400 bytes of files"):
            write_another()
    assert [head.name for head in heads(tenant_spool, "training")] == ["one", "two"]
    # The next process finds scenes last, whatever is newer.
    os.close(spool._claim)
    spool = spool_in(tmp_path, metrics, 2_400, idle_seconds=0.0)
    tenant_spool = spool.of_tenant("anna")
    # Nobody has come back to the trainings, so one of them is evicted.
    assert tenant_spool.write("training", "three", b"", payload)
    assert [head.name for head in heads(tenant_spool, "training")] == ["two", "three"]


def test_the_number_of_files_is_limited_too(tmp_path: Path, metrics: Metrics) -> None:
    spool = spool_in(tmp_path, metrics, files=3)
    tenant_spool = spool.of_tenant("anna")
    for number in range(5):
        assert write(tenant_spool, str(number))
    assert [head.name for head in heads(tenant_spool, "thing")] == ["2", "3", "4"]
    with pytest.raises(BusyError, match=r"3 of 3 files .*--files"):
        write(spool.of_tenant("ben"), "one")


def test_names_are_on_the_disk_before_anybody_relies_on_them(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, frozenset[str]]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path, frozenset(os.listdir(path) if path.is_dir() else ())))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    tenant_spool = spool.of_tenant("anna")
    write(tenant_spool, "one")
    (file,) = files(spool)
    assert (file.parent, frozenset({file.name})) == synced[-1]
    assert {file.parent.parent, Path(spool._folder)} <= {path for path, _ in synced}
    tenant_spool.forget("thing", "one")
    tenant_spool.sync()
    assert (file.parent, frozenset({f"{file.name}.gone"})) == synced[-1]


def test_a_folder_is_one_process_own(spool: Spool) -> None:
    script = (
        "import sys\n"
        "from lumigrad.server.core.accounts import Account\n"
        "from lumigrad.server.core.errors import BusyError\n"
        "from lumigrad.server.core.metrics import Metrics\n"
        "from lumigrad.server.storage.spool import Spool\n"
        "def count(limit): return Account('of them', limit, '--option')\n"
        "try: Spool(sys.argv[1], count(1 << 20), count(9), Metrics(), 600)\n"
        "except OSError as error: sys.exit(error.strerror)\n"
    )
    other = run_program(script, spool._folder)
    assert (other.returncode, other.stderr) == (1, "another worker uses it\n")


def test_a_full_disk_costs_what_does_not_fit(spool: Spool, metrics: Metrics, capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "import os, resource, sys\n"
        "from lumigrad.server.core.accounts import Account\n"
        "from lumigrad.server.core.errors import BusyError\n"
        "from lumigrad.server.core.metrics import Metrics\n"
        "from lumigrad.server.storage.spool import Spool\n"
        "def count(limit): return Account('of them', limit, '--option')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "spool = Spool(sys.argv[1], count(1 << 24), count(9), Metrics(), 600)\n"
        "tenant_spool = spool.of_tenant('anna')\n"
        "small, large = memoryview(bytes(1 << 10)), memoryview(bytes(1 << 21))\n"
        "def written(each):\n"
        "    try: return tenant_spool.write('thing', str(len(each)), b'', [each])\n"
        "    except BusyError: return False\n"
        "print([written(each) for each in (small, large, small)])\n"
        "print(len(spool), len([name for _, _, names in os.walk(sys.argv[1]) for name in names if name != 'lock']))\n"
    )
    os.close(spool._claim)
    done = run_program(script, spool._folder)
    assert done.stdout == "[True, False, True]\n1 1\n", done.stderr


def test_writing_is_somebody_elses_work(spool: Spool) -> None:
    writer = SpoolWriter(spool)
    tenant_spool = spool.of_tenant("anna")
    may_go_on, threads = threading.Event(), []

    def work(name: str):
        def write_now(is_wanted) -> None:
            threads.append(threading.current_thread().name)
            may_go_on.wait(60)
            write(tenant_spool, name, is_wanted=is_wanted)

        return write_now

    writer.submit("anna", work("one"))
    running = writer.submit("anna", work("two"))
    waiting = writer.submit("anna", work("three"))
    writer.submit("anna", work("four"))
    assert not writer.flush(0)
    writer.cancel(waiting)
    may_go_on.set()
    assert writer.flush(100)
    assert set(threads) == {"spool"} and running.is_wanted is False
    assert sorted(head.name for head in heads(tenant_spool, "thing")) == ["four", "one", "two"]


def test_a_fault_in_what_is_written_does_not_end_the_thread(spool: Spool) -> None:
    writer = SpoolWriter(spool)

    def fail(_: object) -> None:
        raise RuntimeError("no")

    writer.submit("anna", fail)
    writer.submit("anna", lambda is_wanted: write(spool.of_tenant("anna"), "one", is_wanted=is_wanted))
    assert writer.flush(100)
    assert len(spool) == 1


def test_what_was_forgotten_leaves_the_disk_although_nothing_is_written(spool: Spool) -> None:
    writer = SpoolWriter(spool)
    write(spool.of_tenant("anna"), "one")
    writer.submit("anna", lambda _: None)
    assert spool.of_tenant("anna").forget("thing", "one")
    until = time.monotonic() + 100
    while files(spool):
        assert time.monotonic() < until, f"still there: {files(spool)}"
        time.sleep(0.05)


def test_owners_have_equal_times_and_what_a_call_waits_for_comes_first(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time passes only in the writes, so that nothing else on the machine counts.
    now = time.monotonic()
    monkeypatch.setattr(spool_writer, "time", SimpleNamespace(monotonic=lambda: now))
    writer, call = SpoolWriter(spool), Call("Test.Call", Caller())
    may_go_on, has_begun, written = threading.Event(), threading.Event(), []

    def first(_: object) -> None:
        has_begun.set()
        may_go_on.wait(60)

    def work(name: str, seconds: float):
        def write_now(_: object) -> None:
            nonlocal now
            now += seconds
            written.append(name)

        return write_now

    writer.submit("anna", first)
    assert has_begun.wait(60)
    for number in range(5):
        writer.submit("anna", work(f"a{number}", 0.1))
    writings = [writer.submit("ben", work(f"b{number}", 0)) for number in range(20)]
    waiting = threading.Thread(target=writer.wait_for, args=(writings[-1:], 30, call))
    waiting.start()
    while not writings[-1].is_awaited:
        time.sleep(0.001)
    may_go_on.set()
    waiting.join(60)
    assert not waiting.is_alive()
    assert writer.flush(100)
    assert written[0] == "b19" and len(written) == 25
    # The last of one tenant's small writes waits for at most one large write of the other. The order of each owner's is
    # arbitrary, since all are due at the same time.
    last = max(written.index(f"b{number}") for number in range(20))
    assert sum(name.startswith("a") for name in written[:last]) <= 1


def test_memory_has_its_room_until_it_is_released(tmp_path: Path, metrics: Metrics) -> None:
    spool = spool_in(tmp_path / "spool", metrics, share=12 << 20)
    own = spool.of_tenant("own")
    assert write(own, "evicted", LARGE)
    memory = own.memory("blocks", 11 << 20)
    memory.data[:5] = b"12345"
    assert own.read("thing", "evicted") is None
    assert spool.bytes == 11 << 20
    with pytest.raises(BusyError, match="--share"):
        own.memory("blocks", 2 << 20)
    assert write(spool.of_tenant("other"), "kept", LARGE)
    spool.sweep()
    # Memory has no file with a name, so none is left however the process ends.
    assert [path.stat().st_size > 1 << 20 for path in (tmp_path / "spool").rglob("*-*") if path.is_file()] == [True]
    memory.release()
    memory.release()
    assert own.memory("blocks", 12 << 20).data.nbytes == 12 << 20
    assert bytes(memory.data[:5]) == b"12345"


def test_memory_that_the_disk_has_no_room_for_is_refused(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BusyError, match=r"the spool \(--spool\) cannot be written: No space left on device") as told:
        spool.of_tenant("own").memory("blocks", 1 << 20)
    assert spool.bytes == 0 and told.value.retry_seconds


def test_a_folder_that_is_gone_is_no_reason_to_try_again(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "spool").rename(tmp_path / "moved")
    own = spool.of_tenant("own")
    for attempt in (lambda: own.memory("blocks", 1 << 20), lambda: write(own, "thing")):
        with pytest.raises(BusyError, match=r"cannot be written: No such file or directory") as told:
            attempt()
        assert told.value.retry_seconds is None
    assert spool.bytes == 0
