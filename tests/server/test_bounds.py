"""Every field of a request that repeats or has a size has a bound, which is looked at before anything else is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings

from lumigrad.protos.service import Method
from lumigrad.server.bounds import BOUNDS, needs_bound
from lumigrad.server.config import Config
from lumigrad.server.errors import InvalidArgumentError
from lumigrad.server.limits import Limits
from lumigrad.server.request_check import RequestCheck
from support.message_strategies import messages
from support.raw_calls import RawClient, failure, spec_of, sphere_cloud, violation
from support.raw_messages import send
from support.tenant import tenant_client
from support.valid_requests import ALL_METHODS
from support.worker import WorkerProcess, worker

TOKENS = {"alice": "0123456789abcdef", "mallory": "fedcba9876543210"}
# A message that gRPC takes, full of empty ones.
BOMB_BYTES = 3_800_000
MIB = 1 << 20


def reachable(kind: Descriptor, seen: dict[str, Descriptor]) -> dict[str, Descriptor]:
    if kind.full_name not in seen:
        seen[kind.full_name] = kind
        for field in kind.fields:
            if field.message_type is not None:
                reachable(field.message_type, seen)
    return seen


def request_kinds() -> dict[str, Descriptor]:
    seen: dict[str, Descriptor] = {}
    for method in ALL_METHODS:
        reachable(method.request, seen)
    return seen


def test_the_table_has_every_field_that_repeats_or_has_a_size_and_no_other() -> None:
    fields = {
        f"{kind.name}.{field.name}" for kind in request_kinds().values() for field in kind.fields if needs_bound(field)
    }
    assert set(BOUNDS) == fields


def test_bounds_that_are_limits_of_the_worker_exist() -> None:
    limits = Limits.of(Config())
    for name, bound in BOUNDS.items():
        assert (getattr(limits, bound) if isinstance(bound, str) else bound) > 0, name


@pytest.mark.parametrize("kind", [method.request for method in ALL_METHODS], ids=lambda kind: str(kind.name))
def test_bytes_are_refused_just_when_the_message_in_them_is_over_a_bound(kind: Descriptor) -> None:
    limits = Limits.of(Config(max_cameras=1, max_channels=12, max_obstacles=1))
    request_check = RequestCheck(limits)

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages(kind))
    def agrees(message: Message) -> None:
        if is_within(message, limits):
            request_check.check(kind, message.SerializeToString())
        else:
            with pytest.raises(InvalidArgumentError):
                request_check.check(kind, message.SerializeToString())

    agrees()


def is_within(message: Message, limits: Limits) -> bool:
    """By the objects that protobuf makes."""
    for field, value in message.ListFields():
        bound = BOUNDS.get(f"{field.containing_type.name}.{field.name}", 1 << 64)
        most = getattr(limits, bound) if isinstance(bound, str) else bound
        if field.is_repeated:
            size = len(value)
        else:
            size = len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0
        if max(size, value if needs_bound(field) and isinstance(value, int) else 0) > most:
            return False
        if field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            if is_map and any(len(key.encode()) > BOUNDS[f"{field.message_type.name}.key"] for key in value):
                return False
            inner = value.values() if is_map else value if field.is_repeated else [value]
            if not all(is_within(one, limits) for one in inner):
                return False
    return True


Path = tuple[FieldDescriptor, ...]


def repeated_messages(kind: Descriptor, path: Path = ()) -> Iterator[Path]:
    """The ways from a message to each repeated field of messages in it."""
    for field in kind.fields:
        if field.message_type is None:
            continue
        if field.is_repeated:
            yield (*path, field)
        yield from repeated_messages(field.message_type, (*path, field))


BOMBS = [(method, path) for method in ALL_METHODS for path in repeated_messages(method.request)]


def nested(path: Path, count: int) -> bytes:
    """A message whose field at the end of a path is `count` empty messages."""
    inner = (_tag(path[-1]) + b"\x00") * count
    for field in reversed(path[:-1]):
        inner = _tag(field) + _varint(len(inner)) + inner
    return inner


def _tag(field: FieldDescriptor) -> bytes:
    return _varint(field.number << 3 | 2)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text("".join(f"{tenant}: {token}\n" for tenant, token in TOKENS.items()))
    with worker("--device", "cpu", "--tokens-file", str(tokens)) as started:
        yield started


@pytest.fixture(scope="module")
def alice(process: WorkerProcess) -> Iterator[RawClient]:
    with process.channel() as channel:
        yield tenant_client(channel, TOKENS["alice"])


def render_seconds(client: RawClient) -> float:
    started = time.monotonic()
    assert client.render(spec_of(), cloud=sphere_cloud(5)).arrays
    return time.monotonic() - started


@pytest.mark.alone
@pytest.mark.parametrize(
    ("method", "path"), BOMBS, ids=[f"{m.name}-" + ".".join(field.name for field in p) for m, p in BOMBS]
)
def test_two_million_empty_messages_in_any_field_are_refused_before_there_are_any(
    process: WorkerProcess, alice: RawClient, method: Method, path: Path
) -> None:
    bomb = nested(path, BOMB_BYTES // 2)
    with process.channel() as channel:
        mallory = [("authorization", f"Bearer {TOKENS['mallory']}")]
        alone = max(render_seconds(alice) for _ in range(3))
        before = psutil.Process(process.process.pid).memory_info().rss
        error = failure(lambda: send(channel, method, [bomb], metadata=mallory))
        field, description = violation(error)
        assert field.endswith(path[-1].name)
        assert "expected at most" in description
        # Several at once, and somebody else's render among them.
        calls = [channel.stream_stream(method.path)(iter([bomb]), metadata=mallory, timeout=60) for _ in range(4)]
        ended = [threading.Thread(target=call.code) for call in calls]
        for thread in ended:
            thread.start()
        delays = [render_seconds(alice)]
        while any(thread.is_alive() for thread in ended):
            delays.append(render_seconds(alice))
        assert max(delays) < 0.5 + alone
        assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
        assert psutil.Process(process.process.pid).memory_info().rss - before < 64 * MIB
