"""The fork server: a process that loads everything once, and forks workers in milliseconds."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from subprocess import Popen
from typing import NoReturn

from lumigrad.server.process.child import WorkerProcess

# prctl(2): the signal sent to a process when its parent dies; the name that `ps` and `top` show; adopting orphaned
# descendants.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
# The descriptor, standard input, on which a process gets its socket to the supervisor.
_SOCKET_FD = 0
# The environment variable that holds the supervisor's process id.
_SUPERVISOR = "LUMIGRAD_SUPERVISOR"

# The current directory is removed from the path, because a torch.py there would shadow the module.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from lumigrad.server.process.fork_server import main; sys.exit(main())",
)

_ENVIRONMENT = {
    # Otherwise gRPC's core would log an unformatted line for each failed handshake.
    "GRPC_VERBOSITY": "ERROR",
    # glibc gives the worker's 150 threads separate heaps, up to eight per core. Each heap keeps the free memory of its
    # busiest moment, so memory use would grow for hours.
    "MALLOC_ARENA_MAX": "4",
}
_MESSAGE_BYTES = 256
_LOADED = b"loaded"
# Loading takes seconds and a fork milliseconds, but both take longer on a busy machine.
_LOAD_SECONDS = 120.0
_FORK_SECONDS = 10.0
_ADOPTION_POLL_SECONDS = 0.001


def main() -> int:
    """Load everything, then fork a worker for each order, until the supervisor closes the socket."""
    name_process("lumigrad-fork")
    _die_with(int(os.environ[_SUPERVISOR]))
    # Imports take most of a worker's start. None of them may use a device, because a CUDA context does not survive a
    # fork.
    import lumigrad.server.process.main  # noqa: F401

    # Otherwise garbage collections in a worker would copy the pages of all objects that it shares with other workers.
    gc.collect()
    gc.freeze()
    line = socket.socket(fileno=os.dup(_SOCKET_FD))
    line.send(_LOADED)
    while True:
        order, descriptors, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, 1)
        if not order:
            return 0
        (worker_line,) = descriptors
        _fork(line, worker_line)
        os.close(worker_line)


def _fork(line: socket.socket, worker_line: int) -> None:
    """Fork a worker as the supervisor's child: it is orphaned at once, and the supervisor adopts it."""
    try:
        intermediate_pid = os.fork()
        if intermediate_pid == 0:
            _fork_and_exit(line, worker_line)
        _, status = os.waitpid(intermediate_pid, 0)
        code = os.waitstatus_to_exitcode(status)
    except OSError as error:
        code = error.errno or 1
    if code:
        line.send(f"{-abs(code)}".encode())


def _fork_and_exit(line: socket.socket, worker_line: int) -> NoReturn:
    try:
        intermediate_pid = os.getpid()
        if os.fork() == 0:
            _become_worker(intermediate_pid, line, worker_line)
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


def _become_worker(intermediate_pid: int, line: socket.socket, worker_line: int) -> NoReturn:
    from lumigrad.server.core.link import WorkerEnd
    from lumigrad.server.process.main import run

    code = 1
    try:
        name_process("lumigrad-worker")
        while os.getppid() == intermediate_pid:
            time.sleep(_ADOPTION_POLL_SECONDS)
        _die_with(int(os.environ[_SUPERVISOR]))
        os.setsid()
        line.send(str(os.getpid()).encode())
        line.close()
        os.dup2(worker_line, _SOCKET_FD)
        os.close(worker_line)
        end = WorkerEnd(socket.socket(fileno=_SOCKET_FD))
        order = end.order()
        code = 0 if order is None else run(*order, end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with(supervisor: int) -> None:
    """Have the kernel kill this process when the supervisor ends, so that the port and the device are freed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The supervisor may have ended before `prctl`.
    if os.getppid() != supervisor:
        os._exit(0)


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show for this process; the system truncates it to 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option: int, value: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


class ForkServer:
    """The supervisor's handle on the fork server. Creating it starts the process, which then loads everything."""

    def __init__(self, command: Sequence[str]) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.line, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(_FORK_SECONDS)
        self._load_by = time.monotonic() + _LOAD_SECONDS
        self.is_loaded = False
        with child_end:
            self._process = Popen(
                command,
                stdin=child_end.fileno(),
                env={**_ENVIRONMENT, **os.environ, _SUPERVISOR: str(os.getpid())},
                # Only the supervisor gets a terminal's Control-C; it forwards the signal.
                start_new_session=True,
            )

    @property
    def is_overdue(self) -> bool:
        """Whether the fork server should have loaded everything by now."""
        return not self.is_loaded and time.monotonic() > self._load_by

    def receive(self) -> bool:
        """Read a message, which reports that everything is loaded; returns False once the socket is closed."""
        message = self.line.recv(_MESSAGE_BYTES)
        self.is_loaded = self.is_loaded or message == _LOADED
        return bool(message)

    def fork(self) -> WorkerProcess:
        """Fork a process that serves once it gets an order.

        Raises:
            OSError: The fork server could not fork, or has ended.
        """
        line, child_end = socket.socketpair()
        try:
            with child_end:
                socket.send_fds(self.line, [b"fork"], [child_end.fileno()])
            answer = self.line.recv(_MESSAGE_BYTES)
            if not answer:
                raise ConnectionError("the fork server has ended")
            pid = int(answer)
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            return WorkerProcess(pid, line)
        except (TimeoutError, ConnectionError):
            # Otherwise a late answer would be read as the answer to the next order.
            self._process.kill()
            line.close()
            raise
        except BaseException:
            line.close()
            raise

    def poll(self) -> int | None:
        """Return the exit code, once it has ended."""
        return self._process.poll()

    def end(self) -> None:
        """Kill the fork server and wait for its end; its workers continue."""
        self._process.kill()
        self._process.wait()
        self.line.close()
