"""Every field of a request that repeats or has a size has a bound, which is checked before anything else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import grpc
import psutil
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings

from lumigrad.protos.service import Method
from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import Limits
from lumigrad.server.rpc.request_check import BOUNDS, RequestCheck, bound_of
from lumigrad.v1.world_pb2 import Obstacle
from support.calls.message_strategies import messages
from support.calls.raw_calls import RawClient, failure, spec_of, sphere_cloud, violation
from support.calls.raw_messages import send, varint
from support.calls.valid_requests import ALL_METHODS, METHODS, request_kinds
from support.workers.tenant import tenant_fixture
from support.workers.worker import WorkerProcess, worker_fixture

TOKENS = {"alice": "0123456789abcdef", "mallory": "fedcba9876543210"}
# The size of a message that gRPC accepts, full of empty messages.
BOMB_BYTES = 3_800_000
MIB = 1 << 20


def test_the_table_has_every_text_and_every_field_that_repeats_and_no_other() -> None:
    found = set()
    for kind in request_kinds().values():
        for field in kind.fields:
            bound_of(kind, field)
            found |= {field.name, f"{kind.name}.{field.name}"}
    assert set(BOUNDS) <= found


def test_bounds_that_are_limits_of_the_worker_exist() -> None:
    limits = Limits.of(Config())
    for name, bound in BOUNDS.items():
        assert (getattr(limits, bound) if isinstance(bound, str) else bound) > 0, name


@pytest.mark.parametrize("kind", [method.request for method in ALL_METHODS], ids=lambda kind: str(kind.name))
def test_bytes_are_refused_just_when_the_message_in_them_is_over_a_bound(kind: Descriptor) -> None:
    limits = replace(Limits.of(Config(max_cameras=1)), channels=12, obstacles=1)
    request_check = RequestCheck(limits)

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(messages(kind))
    def agrees(message: Message) -> None:
        if is_within(message, limits):
            request_check.check(kind, message.SerializeToString())
        else:
            with pytest.raises(InvalidArgumentError):
                request_check.check(kind, message.SerializeToString())

    agrees()


def is_within(message: Message, limits: Limits) -> bool:
    """Returns whether a message is within the bounds, by the objects that protobuf makes of it."""
    for field, value in message.ListFields():
        bound = bound_of(field.containing_type, field)
        most = getattr(limits, bound) if isinstance(bound, str) else bound
        if field.is_repeated:
            size = len(value)
        else:
            size = len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0
        if max(size, value if isinstance(value, int) and not isinstance(value, bool) else 0) > most:
            return False
        if field.message_type is not None:
            is_map = field.message_type.GetOptions().map_entry
            if is_map and any(len(key.encode()) > BOUNDS["key"] for key in value):
                return False
            inner = value.values() if is_map else value if field.is_repeated else [value]
            if not all(is_within(one, limits) for one in inner):
                return False
    return True


Path = tuple[FieldDescriptor, ...]


def repeated_messages(kind: Descriptor, path: Path = ()) -> Iterator[Path]:
    """Yields the path from a message to each repeated field of messages in it."""
    for field in kind.fields:
        if field.message_type is None:
            continue
        if field.is_repeated:
            yield (*path, field)
        yield from repeated_messages(field.message_type, (*path, field))


BOMBS = [(method, path) for method in ALL_METHODS for path in repeated_messages(method.request)]


def nested(path: Path, count: int, part: bytes = b"") -> bytes:
    """Returns a message whose field at the end of a path holds `count` messages, which consist of `part`."""
    inner = (_tag(path[-1]) + varint(len(part)) + part) * count
    for field in reversed(path[:-1]):
        inner = _tag(field) + varint(len(inner)) + inner
    return inner


def _tag(field: FieldDescriptor) -> bytes:
    return varint(field.number << 3 | 2)


process = worker_fixture(tokens=TOKENS)
alice = tenant_fixture(TOKENS["alice"])


def render(client: RawClient) -> None:
    assert client.render(spec_of(), cloud=sphere_cloud(5)).arrays


def render_among(
    process: WorkerProcess, channel: grpc.Channel, method: Method, bombs: list[bytes], alice: RawClient
) -> tuple[float, set[grpc.StatusCode]]:
    """Sends all bombs at once as Mallory, while Alice renders.

    Returns the most processor seconds that the worker takes during a render, and how Mallory's calls end.
    """
    mallory = [("authorization", f"Bearer {TOKENS['mallory']}")]
    calls = [channel.stream_stream(method.path)(iter([bomb]), metadata=mallory, timeout=60) for bomb in bombs]
    ended = [threading.Thread(target=call.code) for call in calls]
    for thread in ended:
        thread.start()
    taken = []
    while not taken or any(thread.is_alive() for thread in ended):
        before = process.processor_seconds()
        render(alice)
        taken.append(process.processor_seconds() - before)
    return max(taken), {call.code() for call in calls}


def codes_of_undelaying(
    process: WorkerProcess,
    channel: grpc.Channel,
    method: Method,
    bombs: list[bytes],
    alice: RawClient,
    most_seconds: float,
) -> set[grpc.StatusCode]:
    """How Mallory's calls end; fails if renders take the worker more processor seconds each time.

    On a busy machine Alice may be late to ask, or to see her picture.
    """
    found = []
    for _ in range(5):
        taken, codes = render_among(process, channel, method, bombs, alice)
        if taken < most_seconds:
            return codes
        found.append(taken)
    pytest.fail(f"a render took {found} s of the processors, expected less than {most_seconds}")


@pytest.mark.parametrize(
    ("method", "path"), BOMBS, ids=[f"{m.name}-" + ".".join(field.name for field in p) for m, p in BOMBS]
)
def test_two_million_empty_messages_in_any_field_are_over_a_bound(method: Method, path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{path[-1].name}.*expected at most"):
        RequestCheck(Limits.of(Config())).check(method.request, nested(path, BOMB_BYTES // 2))


# The longest path of each method.
DEEPEST = {method.path: (method, path) for method, path in sorted(BOMBS, key=lambda bomb: len(bomb[1]))}


@pytest.mark.parametrize(("method", "path"), DEEPEST.values(), ids=DEEPEST)
def test_two_million_empty_messages_are_refused_before_there_are_any(
    process: WorkerProcess, alice: RawClient, method: Method, path: Path
) -> None:
    bomb = nested(path, BOMB_BYTES // 2)
    with process.channel() as channel:
        mallory = [("authorization", f"Bearer {TOKENS['mallory']}")]
        render(alice)
        before = psutil.Process(process.process.pid).memory_info().rss
        error = failure(lambda: send(channel, method, [bomb], metadata=mallory))
        field, description = violation(error)
        assert field.endswith(path[-1].name)
        assert "expected at most" in description
        # Mallory sends several at once, while Alice renders.
        codes = codes_of_undelaying(process, channel, method, [bomb] * 4, alice, 0.5)
        assert codes == {grpc.StatusCode.INVALID_ARGUMENT}
        assert psutil.Process(process.process.pid).memory_info().rss - before < 64 * MIB


UNKNOWN = b"\xc0\x0c\x00"
OBSTACLES = 16_000
# Many obstacles or views, each of which is within every bound.
SWARMS: dict[str, tuple[str, bytes]] = {
    "31 unknown fields each": ("SceneService/Put", UNKNOWN * 31),
    "60 unknown fields each": ("SceneService/Put", UNKNOWN * 60),
    "60 cuboids and grids each": ("SceneService/Put", b"\x1a\x00\x22\x00" * 30),
    "small and valid": (
        "SceneService/Put",
        Obstacle(
            name="obstacle", cuboid={"size": [1, 2, 3]}, pose={"values": [0, 0, 0, 1, 0, 0, 0]}
        ).SerializeToString(),
    ),
    "two cameras each, and again": ("TrainingService/Train", b"\x0a\x78" + b"\x2a\x00\x22\x00" * 30),
}


# Sixteen at once take turns whatever is in them, so only those that take longest are tested.
@pytest.mark.parametrize(("swarm", "at_once"), [*((swarm, 1) for swarm in SWARMS), ("60 unknown fields each", 16)])
def test_many_parts_within_their_bounds_delay_nobody(
    process: WorkerProcess, alice: RawClient, swarm: str, at_once: int
) -> None:
    name, part = SWARMS[swarm]
    method = METHODS[name]
    path = next(path for known, path in BOMBS if known is method and path[-1].name in ("obstacles", "views"))
    bomb = nested(path, OBSTACLES, part)
    assert len(bomb) < 4 * MIB
    with process.channel() as channel:
        render(alice)
        # Sixteen at once may delay a render by a little more.
        most_seconds = 1.0 if at_once == 16 else 0.5
        codes = codes_of_undelaying(process, channel, method, [bomb] * at_once, alice, most_seconds)
        assert grpc.StatusCode.OK not in codes


def test_a_valid_header_of_many_obstacles_is_within_the_bounds() -> None:
    swarm = SWARMS["small and valid"][1]
    path = next(
        path for method, path in BOMBS if path[-1].name == "obstacles" and method is METHODS["SceneService/Put"]
    )
    request_check = RequestCheck(Limits.of(Config()))
    request_check.check(METHODS["SceneService/Put"].request, nested(path, OBSTACLES, swarm))


def test_parts_too_small_to_be_over_a_bound_have_no_room_for_millions_of_messages() -> None:
    path = next(path for method, path in BOMBS if path[-1].name == "views" and method.name == "Train")
    request_check = RequestCheck(Limits.of(Config()))
    request_check.check(METHODS["TrainingService/Train"].request, nested(path, OBSTACLES, b"\x0a\x00"))
    views = nested(path, OBSTACLES, (b"\x0a\x7c" + b"\x2a\x00\x22\x00" * 31) * 2)
    with pytest.raises(InvalidArgumentError, match="fields in all"):
        request_check.check(METHODS["TrainingService/Train"].request, views)
