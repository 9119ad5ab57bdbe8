"""An actor that runs `lumigrad serve` where Ray has placed it. No call of a client passes through Ray."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import ray

from lumigrad.ray.options import Options

_LISTENING = re.compile(r"listening on (\S+) \(metrics (\d+)\)")
_SAMPLE = re.compile(r"^(lumigrad_queue_depth|lumigrad_calls_in_progress) (\S+)$", re.MULTILINE)
# Runs `lumigrad` so that it ends with its actor, since Ray would give its resources to another one. Workers end with
# their supervisor.
_PROGRAM = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if str(os.getppid()) != sys.argv.pop(1):
    sys.exit(1)
from lumigrad.client.cli import main
sys.exit(main())
"""
_ANSWER_S = 10.0
# Time for `lumigrad serve` to kill the remaining processes after `drain_s`.
_STOP_S = 15.0


@dataclass(frozen=True)
class Look:
    """A worker's report of its state.

    Attributes:
        target: the worker's address.
        node_id: the id of the worker's Ray node.
        is_serving: whether the worker answers calls.
        waiting: the number of calls that wait for the device.
        under_way: the number of calls that have not ended.
    """

    target: str
    node_id: str
    is_serving: bool
    waiting: int = 0
    under_way: int = 0


class ServingWorker:
    """One worker under its supervisor. If the supervisor ends, so does the actor, and Ray restarts both."""

    def __init__(self, options: Options, token: str) -> None:
        """Starts the worker and waits until it listens."""
        self._options = options
        self._host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._node_id = ray.get_runtime_context().get_node_id()
        self._folder = Path(tempfile.mkdtemp(prefix="lumigrad-"))
        tokens = self._folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"cluster: {token}\n")
        device = "cuda:0" if options.gpus else "cpu"
        encrypted = any(option.startswith("--tls-cert") for option in options.serve)
        command = [sys.executable, "-c", _PROGRAM, str(os.getpid()), "serve"]
        command += ["--device", device, "--host", self._host, "--port", "0"]
        command += ["--metrics-host", self._host, "--metrics-port", "0"]
        command += ["--tokens-file", str(tokens), *(() if encrypted else ("--insecure",)), *options.serve]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._target, self._metrics_port = self._wait_until_listening()

    def look(self) -> Look:
        """Returns the worker's state; ends the actor if its supervisor has ended."""
        if self._process.poll() is not None:
            # Exit, so that Ray starts another actor; an exception would leave an actor without a worker.
            os._exit(1)
        try:
            self._ask("/health")
            samples = {name: int(float(value)) for name, value in _SAMPLE.findall(self._ask("/metrics"))}
        except (OSError, urllib.error.URLError):
            # The worker reports NOT_SERVING, or its supervisor is restarting it.
            return Look(self._target, self._node_id, False)
        waiting, under_way = samples["lumigrad_queue_depth"], samples["lumigrad_calls_in_progress"]
        return Look(self._target, self._node_id, True, waiting, under_way)

    def stop(self) -> int:
        """Lets the worker finish its calls and ends it; returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(self._options.drain_s + _STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def pid(self) -> int:
        """Returns the process id of the supervisor."""
        return self._process.pid

    def _ask(self, path: str) -> str:
        url = f"http://{self._host}:{self._metrics_port}{path}"
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as response:
            return str(response.read().decode())

    def _wait_until_listening(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = _LISTENING.search(line)
            if found:
                threading.Thread(target=self._drop_lines, name="lumigrad lines", daemon=True).start()
                return found[1], int(found[2])
        code = self._process.wait()
        raise RuntimeError(
            f"`lumigrad serve` ended with code {code} before it served; Ray's log of this actor shows the reason"
        )

    def _drop_lines(self) -> None:
        """Reads and drops lines: a restarted worker prints its address again, and unread lines would fill the pipe."""
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            pass
