"""Client processes that cost little: they send prepared bytes and do not parse replies."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc
import grpc.experimental

from lumigrad.protos.chunks import LARGEST_MESSAGE_BYTES
from lumigrad.protos.service import MESSAGE_BYTES, SINGLE_REPLY
from lumigrad.protos.wire import varint

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_SECONDS = 60.0
_WARM_UP = 8
_OPTIONS = ((grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1), ("grpc.use_local_subchannel_pool", 1))
# The same size as the Python client's.
MESSAGE = ((MESSAGE_BYTES, str(LARGEST_MESSAGE_BYTES)),)
SINGLE = (SINGLE_REPLY, *MESSAGE)


@dataclass(frozen=True)
class Way:
    """How calls are made.

    Attributes:
        kind: "single" (one message there and back), "chunks" (one there, several back), "frames" (a stream both ways,
            one message there and back for each call), "lane" and "lane frames" (as "single" and "frames", with a
            shared-memory lane for the replies), "pair" (a Render with a retained state, and the Backward of this
            state) or "lane pair" (as "pair", with a lane for the image and its gradient).
        target: the server.
        path: of the method.
        requests: what is sent, in turns; of "pair" the Backward's, without the state's name, after the Render's; of
            "frames" the first one once, all without their numbers and lanes.
    """

    kind: str
    target: str
    path: str
    requests: Sequence[bytes]


@dataclass(frozen=True)
class Round:
    """The time of one round of calls, and of each call; seconds."""

    seconds: float
    times: Sequence[float]


Call = Callable[[int], None]


class Callers:
    """Processes with channels of their own; use them in a `with` block."""

    def __init__(self, count: int, ways: Sequence[Way]) -> None:
        """Starts the processes, which call all `ways` a few times."""
        # The processes are forked from a process that has imported this module and has made no call.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        barrier = context.Barrier(count)
        self._pipes, self._processes = [], []
        for _ in range(count):
            near, far = context.Pipe()
            process = context.Process(target=_serve, args=(far, barrier, ways), daemon=True)
            process.start()
            self._pipes.append(near)
            self._processes.append(process)
        for pipe in self._pipes:
            _receive(pipe)

    def round(self, way: int, calls: int) -> Round:
        """Has each process make `calls` calls, one after another, in the way of this index."""
        start = time.perf_counter()
        for pipe in self._pipes:
            pipe.send((way, calls))
        answers = [_receive(pipe) for pipe in self._pipes]
        return Round(time.perf_counter() - start, [each for answer in answers for each in answer])

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.kill()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(_SECONDS):
        raise TimeoutError("a client process does not answer")
    return pipe.recv()


def _serve(pipe: Connection, barrier: Any, ways: Sequence[Way]) -> None:
    """Makes rounds of calls until the other end of the pipe closes."""
    channels = {target: grpc.insecure_channel(target, _OPTIONS) for target in {way.target for way in ways}}
    calls = [_KINDS[way.kind](channels[way.target], way) for way in ways]
    for call in calls:
        _timed(call, _WARM_UP)
    pipe.send(None)
    try:
        while True:
            way, count = pipe.recv()
            barrier.wait()
            pipe.send(_timed(calls[way], count))
    except EOFError:
        # Ending gRPC's threads would take longer, and nothing is left to be written.
        os._exit(0)


def _timed(call: Call, count: int) -> list[float]:
    times = []
    for number in range(count):
        start = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - start)
    return times


def _single(channel: grpc.Channel, way: Way) -> Call:
    method, requests = channel.unary_unary(way.path), way.requests

    def call(number: int) -> None:
        method(requests[number % len(requests)], timeout=_SECONDS, metadata=SINGLE)

    return call


def _chunks(channel: grpc.Channel, way: Way) -> Call:
    method, requests = channel.unary_stream(way.path), way.requests

    def call(number: int) -> None:
        for _ in method(requests[number % len(requests)], timeout=_SECONDS, metadata=MESSAGE):
            pass

    return call


def _frames(channel: grpc.Channel, way: Way) -> Call:
    send = _sender(channel, way)
    return lambda _: send(b"")


def _sender(channel: grpc.Channel, way: Way) -> Callable[[bytes], None]:
    """A function that sends the next frame of a stream, with additional fields in its request."""
    sent: SimpleQueue[bytes | None] = SimpleQueue()
    replies, (first, *others) = channel.stream_stream(way.path)(iter(sent.get, None)), way.requests
    numbers = itertools.count(1)

    def send(fields: bytes) -> None:
        number = next(numbers)
        request = first if number == 1 else others[number % len(others)]
        # Field 1 of a frame.
        sent.put(b"\x08" + varint(number) + request + fields)
        next(replies)

    return send


def _lane(channel: grpc.Channel, way: Way) -> Call:
    method = channel.unary_unary(way.path)

    def ask(number: int, named: tuple[str, str]) -> None:
        method(way.requests[number % len(way.requests)], timeout=_SECONDS, metadata=(named, *SINGLE))

    return _leasing(channel, way, ask)


def _lane_frames(channel: grpc.Channel, way: Way) -> Call:
    send = _sender(channel, way)

    def ask(_: int, named: tuple[str, str]) -> None:
        # Field 6 of a frame.
        send(b"\x32" + varint(len(named[1])) + named[1].encode())

    return _leasing(channel, way, ask)


def _leasing(channel: grpc.Channel, way: Way, ask: Callable[[int, tuple[str, str]], None]) -> Call:
    """Calls `ask` with the metadata of a new lease of a lane, then releases the lease."""
    from lumigrad.protos.lanes import ToWorker
    from support.calls.raw_calls import RawClient
    from support.calls.raw_lane import RawLane

    lane, leases = RawLane(RawClient(way.target, channel=channel)), itertools.count(1)

    def call(number: int) -> None:
        lease = next(leases)
        (named,) = lane.metadata(lease)
        ask(number, named)
        lane.send(ToWorker.RELEASE, lease)

    return call


def _pair(channel: grpc.Channel, way: Way) -> Call:
    from lumigrad.v1 import render_pb2

    render = channel.unary_unary(way.path)
    backward = channel.unary_unary(f"{way.path.rpartition('/')[0]}/Backward")
    first, second = way.requests
    request = render_pb2.BackwardRequest.FromString(second)

    def call(_: int) -> None:
        reply = render_pb2.RenderReply.FromString(render(first, timeout=_SECONDS, metadata=SINGLE))
        request.spec.context_id = reply.context_id
        backward(request.SerializeToString(), timeout=_SECONDS, metadata=SINGLE)

    return call


def _lane_pair(channel: grpc.Channel, way: Way) -> Call:
    """Makes pairs whose images go by a lane, and whose gradients of the images lie in it."""
    from lumigrad.protos.lanes import ToWorker
    from lumigrad.v1 import render_pb2, tensor_pb2
    from support.calls.raw_calls import RawClient
    from support.calls.raw_lane import RawLane

    render = channel.unary_unary(way.path)
    backward = channel.unary_unary(f"{way.path.rpartition('/')[0]}/Backward")
    lane, leases = RawLane(RawClient(way.target, channel=channel)), itertools.count(2)
    first, second = way.requests
    request = render_pb2.BackwardRequest.FromString(second)
    tensor = request.spec.output_gradients[0].tensor
    region = lane.lease(1, request.payload_bytes)
    lane.regions[region][: request.payload_bytes] = memoryview(request.data)
    tensor.region.CopyFrom(tensor_pb2.RegionSpan(region=region, length=request.payload_bytes))
    request.ClearField("data")
    request.ClearField("payload_bytes")

    def ask(method: Callable[..., bytes], raw: bytes) -> bytes:
        lease = next(leases)
        reply = method(raw, timeout=_SECONDS, metadata=(*lane.metadata(lease), *SINGLE))
        lane.send(ToWorker.RELEASE, lease)
        return reply

    def call(_: int) -> None:
        request.spec.context_id = render_pb2.RenderReply.FromString(ask(render, first)).context_id
        ask(backward, request.SerializeToString())

    return call


_KINDS = {
    "single": _single,
    "chunks": _chunks,
    "frames": _frames,
    "lane": _lane,
    "lane frames": _lane_frames,
    "pair": _pair,
    "lane pair": _lane_pair,
}
