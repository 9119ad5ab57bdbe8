"""Typed error details travel in the trailing metadata, and garbage there does no harm."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from lumigrad.protos import details
from lumigrad.v1 import errors_pb2

DETAILS: list[Message] = [
    details.bad_request("spec.spheres.gamma", "a value in [1e-5, 1]", 2.0),
    details.retry_info(0.25),
    errors_pb2.ContextLost(context_id="c"),
    errors_pb2.DeadlineTooNear(needed_seconds=2.5, left_seconds=0.5),
    errors_pb2.DeviceMemoryShort(asked_bytes=1 << 40, available_bytes=3),
    errors_pb2.SceneNotFound(scene_id="s"),
    errors_pb2.VersionMismatch(scene_id="s", expected=1, actual=2),
]


def test_details_come_back_in_order() -> None:
    trailer = details.pack(3, "text", DETAILS)
    assert details.unpack([("other", "value"), trailer]) == DETAILS
    assert status_pb2.Status.FromString(trailer[1]).code == 3


@pytest.mark.parametrize("detail", DETAILS)
def test_one_kind_is_found_among_others(detail: Message) -> None:
    assert details.find([details.pack(3, "", DETAILS)], type(detail)) == detail


def test_a_violation_says_field_limit_and_value() -> None:
    violation = details.bad_request("a.b", "at most 3", 4).field_violations[0]
    assert (violation.field, violation.description) == ("a.b", "expected at most 3, got 4")


@pytest.mark.parametrize("metadata", [None, [], [(details.TRAILER, b"\xff\xff")], [(details.TRAILER, "text")]])
def test_missing_or_malformed_details_are_no_details(metadata: list[tuple[str, str | bytes]] | None) -> None:
    assert details.unpack(metadata) == []
    assert details.find(metadata, errors_pb2.ContextLost) is None


def test_kinds_from_the_future_are_left_out() -> None:
    stranger = error_details_pb2.Help()
    assert details.unpack([details.pack(3, "", [stranger, DETAILS[1]])]) == [DETAILS[1]]
