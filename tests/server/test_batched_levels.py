"""Items of a batch whose pages find no room do not affect the other items."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from lumigrad.protos import details
from lumigrad.server.core.errors import BusyError
from lumigrad.server.engines.runner import Source
from lumigrad.server.rpc import render_batch


class Full(Source):
    """A view of a scene with levels whose pages find no room."""

    def gather(self) -> None:
        raise BusyError("bytes of payloads are in use (--transit-mib)", 1.5)


def group(index: int, scene: Source) -> Any:
    task = SimpleNamespace(engine=SimpleNamespace(name="gaussians"), scene=None, cut=SimpleNamespace())
    return SimpleNamespace(
        items=[SimpleNamespace(index=index)], request=SimpleNamespace(scene=scene), task=task, formats=None
    )


def test_no_room_for_pages_is_the_error_of_their_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_batch._Batch, "_cost", lambda *_: None)
    executor = SimpleNamespace(deliver_steps=lambda *_, **__: SimpleNamespace(outputs={}, more={}))
    runner = SimpleNamespace(batch_entry=lambda *_: None, forward=lambda *_, **__: None)
    runtime: Any = SimpleNamespace(executor=executor, runner=runner)
    call: Any = SimpleNamespace(use_engine=lambda name: None, record=SimpleNamespace(request_id="id"))
    batch = render_batch._Batch(runtime, call, 3, lambda *_: pytest.fail("an item was checked again"))
    for index, scene in enumerate((Source(), Full(), Source())):
        batch.render(group(index, scene))
    assert [part.items[0].index for part, _ in batch._rendered] == [0, 2]
    assert [item.HasField("status") for item in batch.reply.items] == [False, True, False]
    status = batch.reply.items[1].status
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert "--transit-mib" in status.message
    retry = details.find((details.trailer(status),), error_details_pb2.RetryInfo)
    assert retry is not None
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5
