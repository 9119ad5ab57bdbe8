"""Processes of `lumigrad` forked from one that has loaded everything, since imports take a process two seconds.

A supervisor that runs in a forked process also forks its fork server, instead of executing another program.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

_TESTS = Path(__file__).parents[2]
_MESSAGE_BYTES = 1 << 18
# The environment variable that holds the folder of the faults that workers meet.
FAULTS = "LUMIGRAD_TEST_FAULTS"
# Modules that take longer to import than the command takes to run, optional packages among them.
_IMPORTED_LATE = (
    "encodings.idna",
    "grpc._channel",
    "lumigrad.client.client",
    "numpy.random",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "plyfile",
    "scipy.ndimage",
    "scipy.spatial",
    "tqdm",
)
# If set, a worker without a supervisor has the emulated device.
EMULATED = "LUMIGRAD_TEST_EMULATED"


class ForkedProcess:
    """A running `lumigrad`, with the parts of `subprocess.Popen` that tests use; its outputs are pipes of text."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """Start `lumigrad` with these arguments, in a folder and an environment, by default those of this process.

        Variables that libraries read when they are loaded have no effect. The statements `before` are run first: they
        change the process and those that it forks.
        """
        ends = [os.pipe() for _ in range(3)]
        try:
            with _LOCK:
                order = {
                    "arguments": list(arguments),
                    "folder": str(folder or Path.cwd()),
                    "environment": dict(os.environ if environment is None else environment),
                    "before": "\n".join(before),
                }
                self.pid = _server().fork(order, [writing for _, writing in ends])
        finally:
            for _, writing in ends:
                os.close(writing)
        output, error, self._status = (reading for reading, _ in ends)
        self.stdout, self.stderr = os.fdopen(output, encoding="utf-8"), os.fdopen(error, encoding="utf-8")
        # Closed no earlier, because threads may be waiting for it.
        weakref.finalize(self, os.close, self._status)
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit code, or raises `subprocess.TimeoutExpired`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise subprocess.TimeoutExpired("lumigrad", timeout or 0.0)
        # The first of several waiting threads reads the code.
        with self._lock:
            if self.returncode is None:
                self.returncode = int(os.read(self._status, _MESSAGE_BYTES))
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            # The server may have noticed the end without having reported it yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Read both streams to their ends; whatever runs after `timeout` seconds is killed."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as readers:
            output, error = (readers.submit(stream.read) for stream in (self.stdout, self.stderr))
            self.wait()
            timer.cancel()
            return output.result(), error.result()


def lumigrad(
    *arguments: str, folder: Path | None = None, timeout: float = 240.0, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run `lumigrad` as `subprocess.run` does; whatever runs after `timeout` seconds is killed, which is an error."""
    process = ForkedProcess(arguments, folder, before=before)
    output, error = process.communicate(timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(["lumigrad", *arguments], process.returncode, output, error)


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python as `subprocess.run` does, in a process that has loaded what most programs import."""
    return lumigrad(*arguments, before=(program, "raise SystemExit"))


class _ForkServer:
    """The handle on the process that forks; that process ends, and kills its children, when this one ends."""

    def __init__(self) -> None:
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "support.workers.forks", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=_TESTS,
                # The setting of the command line and the supervisor, which comes too late in a process that has loaded
                # gRPC.
                env={**os.environ, "GRPC_VERBOSITY": "NONE"},
                pass_fds=[its.fileno()],
            )

    def fork(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have the server fork a process that writes to standard output and error, and at the end its exit code."""
        socket.send_fds(self._line, [json.dumps(order).encode()], descriptors)
        return int(self._line.recv(_MESSAGE_BYTES))


# Held while the one server is started and while it answers.
_LOCK = threading.Lock()


@functools.cache
def _server() -> _ForkServer:
    return _ForkServer()


class _Server:
    """Forks a process for each order, and reports its exit, until the other end of `line` is closed."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._signals, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The descriptors to which the children's exit codes are written.
        self._statuses: dict[int, int] = {}
        self._own = [self._signals, writing, line.fileno()]

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            selector.register(self._line, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                if self._signals in ready:
                    os.read(self._signals, _MESSAGE_BYTES)
                    self._tell_ends()
                if self._line.fileno() in ready:
                    order, descriptors, _, _ = socket.recv_fds(self._line, _MESSAGE_BYTES, 3)
                    if not order:
                        break
                    self._fork(json.loads(order), descriptors, [*self._own, selector.fileno()])
        for pid in self._statuses:
            os.kill(pid, signal.SIGKILL)

    def _fork(self, order: dict[str, Any], descriptors: list[int], own: list[int]) -> None:
        output, error, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(error, 2)
            for descriptor in (*own, *descriptors, *self._statuses.values()):
                os.close(descriptor)
            _become(**order)
        self._statuses[pid] = status
        os.close(output)
        os.close(error)
        self._line.send(str(pid).encode())

    def _tell_ends(self) -> None:
        for pid in list(self._statuses):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with os.fdopen(self._statuses.pop(pid), "w") as told:
                    told.write(str(os.waitstatus_to_exitcode(status)))


def _become(arguments: list[str], folder: str, environment: dict[str, str], before: str) -> NoReturn:
    """Run the command in this process."""
    code = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        if EMULATED in environment:
            importlib.import_module("support.workers.emulated_device")
        sys.argv = ["lumigrad", *arguments]
        exec(before, {"__name__": "__main__"})
        code = cli.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _LoadedForkServer:
    """A supervisor's fork server, with the used part of `subprocess.Popen`. Like a program, it keeps no descriptor."""

    def __init__(self, command: Sequence[str], stdin: int, env: dict[str, str], *, start_new_session: bool) -> None:
        assert command == fork_server.COMMAND
        assert start_new_session
        self._pid = os.fork()
        if self._pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            os.dup2(stdin, 0)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.environ.update(env)
            if FAULTS in env:
                importlib.import_module("support.workers.faulty_engines")
            os._exit(fork_server.main())
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for the end; returns the exit code."""
        return self._reap(0)

    def kill(self) -> None:
        """Kill it."""
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self._pid, options)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code


if __name__ == "__main__":
    # Another build of the native module must be loaded before Lumigrad.
    importlib.import_module("support.backends.native")
    # Modules that commands import only when they are run, loaded before the first fork.
    for _name in _IMPORTED_LATE:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(_name)
    from lumigrad.client import cli
    from lumigrad.client.shell import catalog
    from lumigrad.server.process import fork_server
    from lumigrad.server.process import main as _loaded  # noqa: F401

    for _command in catalog.found_commands().values():
        catalog.loaded(_command, required=False)

    fork_server.Popen = _LoadedForkServer  # type: ignore[assignment, misc]

    # Collections in a child would otherwise copy the pages of all these objects.
    gc.freeze()
    _Server(socket.socket(fileno=int(sys.argv[1]))).run()
