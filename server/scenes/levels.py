"""Scenes with levels of detail: their tables are kept in memory, their rows in the spool."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.call import Allocate, Call
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import require
from lumigrad.server.core.record import StageTimes
from lumigrad.server.core.streams import PayloadStream
from lumigrad.server.engines import gaussians
from lumigrad.server.engines.content import Outline, Tensors
from lumigrad.server.engines.levels import KIND, LevelTable, check_header
from lumigrad.server.scenes.building import Owner
from lumigrad.server.scenes.clouds import Arrival, Make, Prepare
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import scene_pb2, tensor_pb2


@dataclass(frozen=True, eq=False)
class LevelsContent:
    """The table of a scene with levels."""

    header: scene_pb2.GaussianLevels
    table: LevelTable
    kind = KIND
    needs = ()
    outline = Outline()

    @property
    def tensors(self) -> Tensors:
        """Empty, because rows are drawn from pages."""
        return {}

    @property
    def bytes(self) -> int:
        """The size of the table."""
        return self.table.bytes

    @property
    def count(self) -> int:
        """The number of Gaussians of the finest level."""
        return int(self.table.counts[:, 0].sum())

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Add nothing."""

    def message(self, _: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """Return the scene as the message that stores it."""
        return scene_pb2.Scene(levels=self.header)


class LevelsKind:
    """Scenes with levels."""

    name = KIND
    engine = gaussians.KIND

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check the header of a scene; its tables are then read from the beginning of the payload."""
        header = scene.levels
        table_bytes = check_header(header, runtime.limits, field)

        def receive(reader: PayloadReader) -> Prepare:
            content = LevelsContent(header, LevelTable.of(header, reader, table_bytes, field))

            def prepare(_: Owner) -> Make:
                return lambda _: content

            return prepare

        return Arrival(Outline(), receive)

    def change(self, content: LevelsContent, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Refuse an update."""
        del content, request, runtime
        raise InvalidArgumentError("scene_id", "another kind of scene: levels do not change; put new ones", KIND)


def checked_rows(
    table: LevelTable, stream: PayloadStream, allocate: Allocate, field: str, call: Call
) -> Iterator[memoryview]:
    """Yield the rows of all levels as they arrive, one level at a time in one buffer.

    Raises InvalidArgumentError if the rows do not match the table.

    The rows of a level are checked in a turn, which is not held while rows arrive or are used.
    """
    pages, levels = table.counts.shape
    buffer = allocate(int(table.counts.max()) * table.row_bytes)
    for page in range(pages):
        for level in range(levels):
            rows = stream.fill(buffer[: int(table.counts[page, level]) * table.row_bytes])
            where = f"{field}.rows of page {page} and level {level}"
            call.turn.take(call.check)
            actual = hashlib.sha256(rows).digest()
            require(actual == table.digests[page, level].tobytes(), where, "the rows of the digests", "others")
            if rows.nbytes:
                table.check_rows(rows, where)
            call.turn.give()
            yield rows
    stream.expect_end()


def content_of(arrival: Arrival, reader: PayloadReader, owner: Owner) -> LevelsContent:
    """Make the content of an arrival."""
    content = arrival.receive(reader)(owner)(StageTimes())
    assert isinstance(content, LevelsContent)
    return content
