"""One live call of Train: requests go out as they come, replies are read by a thread of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from lumigrad.client import cancellation
from lumigrad.client.connection import Connection
from lumigrad.client.errors import DeadlineExceeded, Internal, LumigradError, Unavailable
from lumigrad.client.status import exception_of
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import training_pb2

# No reply can be as long; a header that says so is broken.
_REPLY_LIMIT_BYTES = 1 << 36
# For the worker to end a call that asks for nothing more.
_END_SECONDS = 1.0


@dataclass(frozen=True)
class TrainReply:
    """One reply, complete."""

    message: training_pb2.TrainReply
    reader: PayloadReader

    @property
    def kind(self) -> str:
        """The field that says what it is."""
        return str(self.message.WhichOneof("kind"))


class Exchange:
    """A call until it breaks or is closed."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        """Starts the call; `timeout_s` is how long a reply may take."""
        self._target = connection.target
        self._timeout_s = timeout_s
        self._outgoing: queue.SimpleQueue[tuple[training_pb2.TrainRequest, PayloadWriter] | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[TrainReply | BaseException] = queue.SimpleQueue()
        self._has_ended = threading.Event()
        self._call = connection.open_stream(connection.training.Train, self._frames())
        threading.Thread(target=self._read, name="lumigrad training", daemon=True).start()

    def send(self, message: training_pb2.TrainRequest, payload: PayloadWriter) -> None:
        """Sends a request after those before it; does not wait."""
        self._outgoing.put((message, payload))

    def receive(self) -> TrainReply:
        """The next reply; waits for it."""
        try:
            # Who stops waiting ends the call, whose reader then puts an error there.
            with cancellation.watching(self._call):
                reply = self._incoming.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            raise DeadlineExceeded(
                f"no reply from {self._target} within {self._timeout_s:g} s; pass a larger timeout_s"
            ) from None
        if isinstance(reply, BaseException):
            # Whoever asks again hears the same.
            self._incoming.put(reply)
            raise reply
        return reply

    def close(self, *, is_answered: bool = False) -> None:
        """Ends the call; what was not sent yet is not sent.

        Args:
            is_answered: that nothing is waited for: the worker ends the call itself, if it does so soon.
        """
        self._outgoing.put(None)
        if is_answered:
            self._has_ended.wait(_END_SECONDS)
        self._call.cancel()

    def _frames(self) -> Iterator[Frame[training_pb2.TrainRequest]]:
        while (item := self._outgoing.get()) is not None:
            yield from frames_of(*item)

    def _read(self) -> None:
        try:
            frames = iter(self._call)
            for frame in frames:
                self._incoming.put(_complete(frame, frames))
            self._incoming.put(Unavailable(f"the worker at {self._target} ended the training's call"))
        except grpc.RpcError as error:
            self._incoming.put(self._translated(error))
        except ProtocolError as error:
            self._incoming.put(Internal(f"the worker at {self._target} broke the contract: {error}"))
        finally:
            self._has_ended.set()

    def _translated(self, error: Any) -> LumigradError:
        translated = exception_of(error, self._target, self._timeout_s)
        translated.__cause__ = error
        return translated


def _complete(first: Frame[Any], frames: Iterator[Frame[Any]]) -> TrainReply:
    message = first.message
    if message is None or message.WhichOneof("kind") is None:
        raise ProtocolError("kind", "a known kind of reply", "none")
    assembler = PayloadAssembler(message.payload_bytes, _REPLY_LIMIT_BYTES)
    assembler.add(first.data)
    while not assembler.is_full:
        frame = next(frames, None)
        if frame is None:
            break
        assembler.add(frame.data)
    return TrainReply(message, PayloadReader(assembler.finish()))
