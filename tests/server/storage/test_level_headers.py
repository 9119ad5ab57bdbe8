"""Headers and tables of scenes with levels are checked before anything is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.protos import dtypes
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2
from support.calls.raw_calls import RawClient, failure, violation
from support.workers.slow_render import wait_until
from support.workers.spooling import files
from support.workers.worker import worker

PAGES, LEVELS = 3, 2
ROW_BYTES = 4 * (11 + 3)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spool")


@pytest.fixture(scope="module")
def raw(folder: Path) -> Iterator[RawClient]:
    with worker("--device", "cpu", "--spool", str(folder)) as process, RawClient(process.target) as client:
        yield client


def tables() -> dict[str, Any]:
    return {
        "bounds": np.tile(np.array([[-1, -1, -1], [1, 1, 1]], np.float32), (PAGES, LEVELS, 1, 1)),
        "counts": np.array([[4, 1]] * PAGES, np.int64),
        "errors": np.array([[0, 1]] * PAGES, np.float32),
        "digests": np.zeros((PAGES, LEVELS, 32), np.uint8),
    }


def test_a_put_that_is_cancelled_leaves_nothing(raw: RawClient, folder: Path) -> None:
    sent, go_on = threading.Event(), threading.Event()

    def frames() -> Iterator[Frame[scene_pb2.PutRequest]]:
        payload = PayloadWriter()
        request = scene_pb2.PutRequest()
        for name, array in tables().items():
            getattr(request.scene.levels, name).CopyFrom(payload.add_to_payload(array))
        table = b"".join(payload.buffers)
        request.payload_bytes = payload.length + -payload.length % 64 + PAGES * 5 * ROW_BYTES
        yield Frame(request, memoryview(table + bytes(-len(table) % 64)))
        sent.set()
        go_on.wait(60)

    call = raw.scene_stub.Put.future(frames(), timeout=60)
    sent.wait(60)
    wait_until(lambda: bool(files(folder)), "a part of a file")
    call.cancel()
    go_on.set()
    wait_until(lambda: not files(folder), "no part of a file")


def put(raw: RawClient, arrays: dict[str, Any], change: Callable[[scene_pb2.PutRequest], object] | None = None) -> None:
    payload = PayloadWriter()
    request = scene_pb2.PutRequest()
    request.scene.levels.SetInParent()
    for name, array in arrays.items():
        getattr(request.scene.levels, name).CopyFrom(payload.add_to_payload(array))
    rows = [bytes(int(count) * ROW_BYTES) for count in np.ravel(arrays.get("counts", ())) if 0 <= count < 100]
    payload.end_with(map(memoryview, rows), sum(map(len, rows)))
    frames = frames_of(request, payload)
    if change is not None:
        frames = list(frames)
        change(frames[0].message)
    raw.scene_stub.Put(iter(frames), timeout=60)


TABLES: dict[str, tuple[Change, str, str]] = {
    "no bounds": (lambda it: it.pop("bounds"), "scene.levels.bounds", "a tensor"),
    "bounds of three levels": (
        lambda it: it.update(bounds=np.repeat(it["bounds"][:, :1], 3, axis=1)),
        "scene.levels.bounds.shape",
        "[3, 2, 2, 3]",
    ),
    "shrinking boxes": (lambda it: it["bounds"][1, 1].fill(0), "scene.levels.bounds", "contain those of finer levels"),
    "float counts": (
        lambda it: it.update(counts=it["counts"].astype(np.float32)),
        "scene.levels.counts.dtype",
        "INT64",
    ),
    "no pages": (lambda it: it.update(counts=np.zeros((0, 2), np.int64)), "scene.levels.counts", "shape [P, L]"),
    "many levels": (
        lambda it: it.update(counts=np.ones((1, 65), np.int64)),
        "scene.levels.counts",
        "L = 1 to 64",
    ),
    "other pages": (lambda it: it.update(errors=it["errors"][:2]), "scene.levels.errors.shape", "[3, 2]"),
    "short digests": (
        lambda it: it.update(digests=it["digests"][..., :16]),
        "scene.levels.digests.shape",
        "[3, 2, 32]",
    ),
    "negative counts": (lambda it: it["counts"].put(0, -1), "scene.levels.counts", "0 to 65536"),
    "huge counts": (lambda it: it["counts"].put(0, 1 << 40), "scene.levels.counts", "0 to 65536"),
    "infinite bounds": (lambda it: it["bounds"].put(0, np.inf), "scene.levels.bounds", "finite"),
    "empty boxes": (lambda it: it["bounds"].put(0, 5), "scene.levels.bounds", "the lowest first"),
    "falling errors": (lambda it: it["errors"].put(0, 3), "scene.levels.errors", "do not fall"),
    "no errors": (lambda it: it["errors"].put(1, np.nan), "scene.levels.errors", "finite"),
    "other rows": (lambda it: it, "scene.levels.rows of page 0 and level 0", "the digests"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_checked(raw: RawClient, folder: Path, name: str) -> None:
    change, field, limit = TABLES[name]
    arrays = tables()
    change(arrays)
    where, text = violation(failure(lambda: put(raw, arrays)))
    assert where == field
    assert limit in text
    assert not files(folder)


HEADERS: dict[str, tuple[Callable[[scene_pb2.PutRequest], object], str]] = {
    "long span": (lambda it: setattr(it.scene.levels.counts.payload, "length", 1 << 30), "scene.levels.counts.payload"),
    "far span": (lambda it: setattr(it.scene.levels.counts.payload, "offset", 1 << 40), "scene.levels"),
    "inline": (lambda it: setattr(it.scene.levels.counts, "inline", bytes(48)), "scene.levels.counts.payload"),
    "degree": (lambda it: setattr(it.scene.levels, "sh_degree", 5), "scene.levels.sh_degree"),
    "huge shape": (lambda it: it.scene.levels.counts.shape.__setitem__(0, 1 << 30), "scene.levels.counts"),
    "short payload": (lambda it: setattr(it, "payload_bytes", it.payload_bytes - 4), "payload_bytes"),
    "hash": (lambda it: setattr(it, "content_hash", "0" * 64), "content_hash"),
    "type": (lambda it: setattr(it.scene.levels.digests, "dtype", dtypes.FLOAT32), "scene.levels.digests.dtype"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_are_checked(raw: RawClient, folder: Path, name: str) -> None:
    change, field = HEADERS[name]
    where, _ = violation(failure(lambda: put(raw, tables(), change)))
    assert where.startswith(field)
    assert not files(folder)
