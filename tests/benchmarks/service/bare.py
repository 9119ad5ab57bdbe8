"""A gRPC server that only hands each request to one thread, and gets a reply of a given size from it.

A path names the kind of the method and the sizes of a reply's messages, such as "/bare.single/2450".
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import grpc

_THREADS = 16


def path_of(kind: str, sizes: Sequence[int]) -> str:
    """The path of a method whose reply has messages of these sizes; `kind` is "single", "chunks" or "frames"."""
    return f"/bare.{kind}/{','.join(map(str, sizes))}"


class Device:
    """The thread that all requests go through, one after another, by the cheapest means that Python has."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[bytes, Callable[[bytes], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def run(self, request: bytes) -> bytes:
        """The thread's answer."""
        answers: list[bytes] = []
        waiting = threading.Lock()
        waiting.acquire()

        def done(answer: bytes) -> None:
            answers.append(answer)
            waiting.release()

        self._jobs.put((request, done))
        waiting.acquire()
        return answers[0]

    def _serve(self) -> None:
        while True:
            request, done = self._jobs.get()
            done(request)


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Methods by their paths."""

    def __init__(self) -> None:
        self._device = Device()
        self._method = cache(self._made)

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        """The method of a path."""
        return self._method(details.method)

    def _made(self, path: str) -> grpc.RpcMethodHandler:
        service, sizes = path[1:].split("/")
        replies = [os.urandom(int(size)) for size in sizes.split(",")]
        run = self._device.run

        def single(request: bytes, _: Any) -> bytes:
            run(request)
            return replies[0]

        def chunks(request: bytes, _: Any) -> Iterator[bytes]:
            run(request)
            yield from replies

        def frames(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
            for request in requests:
                run(request)
                yield from replies

        if service == "bare.single":
            return grpc.unary_unary_rpc_method_handler(single)
        if service == "bare.chunks":
            return grpc.unary_stream_rpc_method_handler(chunks)
        return grpc.stream_stream_rpc_method_handler(frames)


def main() -> None:
    """Serves until the process is ended."""
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((Handlers(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
