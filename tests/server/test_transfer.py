"""Memory for payloads on the host that a GPU reads from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lumigrad.server.device.transfer import Transfer
from lumigrad.server.rpc.status import answer_to


@pytest.mark.parametrize(
    ("text", "code"), [("CUDA error: out of memory", "RESOURCE_EXHAUSTED"), ("CUDA error: no such thing", "INTERNAL")]
)
def test_no_pinned_memory_is_a_call_that_comes_again(monkeypatch: pytest.MonkeyPatch, text: str, code: str) -> None:
    def fail(*_: Any, pin_memory: bool, **__: Any) -> torch.Tensor:
        assert pin_memory
        raise RuntimeError(text)

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises((MemoryError, RuntimeError)) as error:
        Transfer(torch.device("cuda", 0)).allocate(100)
    answer = answer_to(error.value, "id")
    assert (answer.code.name, bool(answer.details)) == (code, code == "RESOURCE_EXHAUSTED")
