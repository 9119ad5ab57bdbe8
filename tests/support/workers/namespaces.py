"""Workers in separate network namespaces, each behind a link that can be cut or delayed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from support.workers.worker import WorkerProcess


def obstacle() -> str:
    """The reason why namespaces are impossible here; empty if they are possible."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} (iproute2)"
    name = f"lgtry{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "exec", name, "true")
    except subprocess.CalledProcessError as error:
        return f"the system refuses network namespaces: {error.stderr.strip()}"
    finally:
        with suppress(subprocess.CalledProcessError):
            _run("ip", "netns", "del", name)
    return ""


class Network:
    """A bridge on this machine, and machines behind links of their own."""

    def __init__(self) -> None:
        """Makes the bridge, with an address that no other test run uses."""
        self._tag = f"lg{os.getpid() % 1_000_000}"
        self._prefix = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._machines = 0
        _run("ip", "link", "add", self._tag, "type", "bridge")
        _run("ip", "addr", "add", f"{self._prefix}.1/24", "dev", self._tag)
        _run("ip", "link", "set", self._tag, "up")

    def add(self) -> int:
        """A machine; returns its number."""
        number = self._machines
        self._machines += 1
        here, there, name = self._link(number), f"{self._tag}t{number}", self._namespace(number)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        _run("ip", "link", "set", there, "netns", name)
        _run("ip", "link", "set", here, "master", self._tag)
        _run("ip", "link", "set", here, "up")
        for command in (
            ("addr", "add", f"{self.address(number)}/24", "dev", there),
            ("link", "set", there, "up"),
            ("link", "set", "lo", "up"),
        ):
            _run("ip", "-n", name, *command)
        return number

    def address(self, number: int) -> str:
        """The address of a machine."""
        return f"{self._prefix}.{number + 2}"

    def worker(self, number: int, *options: str) -> WorkerProcess:
        """A worker on a machine, with one thread for its kernels."""
        # `--insecure` lets a worker listen to a network without TLS.
        public = "--device", "cpu", "--host", self.address(number), "--insecure"
        moved = (
            "import ctypes, os",
            f"namespace = os.open('/run/netns/{self._namespace(number)}', os.O_RDONLY | os.O_CLOEXEC)",
            "assert ctypes.CDLL(None).setns(namespace, 0x40000000) == 0, 'not in the network namespace'",
        )
        return WorkerProcess(*public, *options, before=moved, variables={"LUMIGRAD_NUM_THREADS": "1"})

    def cut(self, number: int) -> None:
        """Drops all packets of a machine's link, without notifying either side."""
        _run("ip", "link", "set", self._link(number), "down")

    def mend(self, number: int) -> None:
        """Restores the link, without delay."""
        _run("ip", "link", "set", self._link(number), "up")
        with suppress(subprocess.CalledProcessError):
            _run("tc", "qdisc", "del", "dev", f"{self._tag}t{number}", "root", where=self._namespace(number))

    def slow(self, number: int, megabits: float) -> None:
        """Delays the packets that a machine sends."""
        shape = "rate", f"{megabits}mbit", "burst", "64kb", "latency", "400ms"
        arguments = "tc", "qdisc", "replace", "dev", f"{self._tag}t{number}", "root", "tbf", *shape
        _run(*arguments, where=self._namespace(number))

    def close(self) -> None:
        """Removes the network; workers must have ended."""
        for number in range(self._machines):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", self._namespace(number))
        _run("ip", "link", "del", self._tag)

    def _link(self, number: int) -> str:
        return f"{self._tag}h{number}"

    def _namespace(self, number: int) -> str:
        return f"{self._tag}-{number}"


@contextmanager
def network() -> Iterator[Network]:
    """A network for the length of a `with` block."""
    made = Network()
    try:
        yield made
    finally:
        made.close()


def _run(*command: str, where: str = "") -> None:
    inside = ("ip", "netns", "exec", where) if where else ()
    subprocess.run([*inside, *command], check=True, capture_output=True, text=True, timeout=250)
