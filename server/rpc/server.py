"""The gRPC server: its threads, its options, and the port that it listens on."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec

import grpc

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.ports import reserved
from lumigrad.server.rpc.certificates import Certificates
from lumigrad.server.rpc.health import MOST_HEALTH_CALLS

P = ParamSpec("P")


class Task:
    """Work of one thread. gRPC only needs to know when it is done, for which a Future's locks would be slow."""

    __slots__ = ("_callbacks", "_function", "_is_done")

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._is_done = False
        # Appending and removing are atomic, so each callback is called once, whichever thread removes it.
        self._callbacks: deque[Callable[[Task], object]] = deque()

    def add_done_callback(self, callback: Callable[[Task], object]) -> None:
        """Call `callback` when the work is done, at once if it is done already."""
        self._callbacks.append(callback)
        if self._is_done:
            self._tell()

    def run(self) -> None:
        """Do the work; logs errors, since nobody else handles them."""
        try:
            self._function()
        except BaseException as error:
            logs.event("an error in a thread of calls", logging.ERROR, error=error)
        self._is_done = True
        self._tell()

    def _tell(self) -> None:
        with suppress(IndexError):
            while True:
                self._callbacks.popleft()(self)


# Threads that a worker starts later: those of the kernels, of gRPC and of its own. They are only tried at the start.
_THREADS_BESIDE = 32 + len(os.sched_getaffinity(0))


class CallThreads:
    """A thread pool that starts all its threads when it is created.

    If a thread could not be started later, the exception would end gRPC's own thread, and no more calls would be
    answered. Work goes to the thread that became idle last, whose stack is in the processor's cache and whose heap has
    free memory. A ThreadPoolExecutor, which uses the thread that has been idle longest, handled a third fewer small
    calls per second.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        # The queues of idle threads, in the order in which they became idle.
        self._idle: list[SimpleQueue[Task]] = []
        self._waiting: deque[Task] = deque()
        _spread_waiting_threads(count)
        least = count + _THREADS_BESIDE
        everybody = threading.Barrier(least + 1)
        for number in range(least):
            target, arguments = (self._answer, (everybody,)) if number < count else (everybody.wait, ())
            thread = threading.Thread(target=target, args=arguments, name=f"call_{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise _too_few(number, count) from None
        everybody.wait()

    @property
    def busy(self) -> int:
        """The number of threads that are working."""
        return self.count - len(self._idle)

    def answers(self, seconds: float) -> bool:
        """Check whether a thread becomes available within `seconds`."""
        is_here = threading.Event()
        self.submit(is_here.set)
        return is_here.wait(seconds)

    def submit(self, function: Callable[P, object], /, *arguments: P.args, **options: P.kwargs) -> Task:
        """Call a function on a thread, as soon as one is idle."""
        task = Task(partial(function, *arguments, **options))
        with self._lock:
            if self._idle:
                self._idle.pop().put(task)
            else:
                self._waiting.append(task)
        return task

    def _answer(self, everybody: threading.Barrier) -> None:
        mine: SimpleQueue[Task] = SimpleQueue()
        everybody.wait()
        while True:
            with self._lock:
                if self._waiting:
                    mine.put(self._waiting.popleft())
                else:
                    self._idle.append(mine)
            mine.get().run()


def _too_few(number: int, count: int) -> ConfigError:
    return ConfigError(
        f"--queue-size, --max-streams and --max-trainings need {count} threads for calls, and the worker "
        f"{_THREADS_BESIDE} more, but the system allows only {number}; lower these options, or raise the limit of "
        "threads (of the container, the service's TasksMax, or ulimit -u)"
    )


# prctl(2) of Linux 6.16 and later: the number of lists in which the kernel keeps the waiting threads of a process.
_PR_FUTEX_HASH, _PR_FUTEX_HASH_SET_SLOTS = 78, 1


def _spread_waiting_threads(count: int) -> None:
    """Let the kernel find each of `count` waiting threads without searching.

    By default it keeps them in four lists per processor, and waking a thread searches one list: with two processors,
    this takes longer than everything that Python does for a call. Other kernels have many lists shared by all
    processes.
    """
    slots = 1 << (2 * count).bit_length()
    ctypes.CDLL(None).prctl(_PR_FUTEX_HASH, _PR_FUTEX_HASH_SET_SLOTS, slots, 0, 0)


# The minimum number of concurrent calls of one connection, health checks included.
_STREAMS = 128


def make_server(threads: CallThreads, handlers: Sequence[grpc.GenericRpcHandler], max_calls: int) -> grpc.Server:
    """Create a server of these services; one connection may have `max_calls` concurrent calls."""
    options = (
        # Otherwise a second worker could bind the same port and would get half of the calls.
        ("grpc.so_reuseport", 0),
        # Detect dead peers, by TCP's acknowledgements and by HTTP/2 pings.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Silent connections hold descriptors.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # No compressed requests: a few KiB could expand to any size. Bit 0 is "identity".
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # gRPC's default, set explicitly: the limit on the metadata of a call.
        ("grpc.max_metadata_size", 8 << 10),
        ("grpc.absolute_max_metadata_size", 16 << 10),
        # One connection may have as many calls as there are slots; further calls wait in the client. gRPC counts reset
        # calls until Python has seen them and refuses further ones of that connection cheaply, so that resets cannot
        # fill the queue in which the calls of all connections wait for Python.
        ("grpc.max_concurrent_streams", max(_STREAMS, max_calls)),
    )
    server = grpc.server(
        threads,
        options=options,
        # Counted over all connections, health checks included; further calls are refused.
        maximum_concurrent_rpcs=threads.count + MOST_HEALTH_CALLS,
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    return server


def bind(server: grpc.Server, config: Config) -> int:
    """Listen on the configured address, with TLS if configured; returns the port.

    Raises ConfigError if the port is in use, or the address is none of this machine.
    """
    address = f"{config.url_host}:{config.port}"
    try:
        if config.tls_cert:
            return int(server.add_secure_port(address, Certificates(config).credentials()))
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        # gRPC does not tell the reason, and binding the address again does.
        reserved("--port", config.host, config.port).close()
        raise ConfigError(f"--port: cannot listen on {address}") from error
