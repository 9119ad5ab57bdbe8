"""A process that repeats a call, several at a time, until it is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc


class Flood:
    """A separate process, so that its work takes no time of the test's interpreter."""

    def __init__(self, target: str, token: str, path: str, messages: Sequence[bytes], at_once: int) -> None:
        """Start the process, and wait until the first call has ended. `path` is that of the method."""
        command = [sys.executable, "-m", "support.workers.flood", target, token, path, str(at_once)]
        self._process = subprocess.Popen(
            command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for message in messages:
            self._process.stdin.write(len(message).to_bytes(8, "little") + message)
        self._process.stdin.close()
        self.first = self._process.stdout.readline().decode().strip()

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(target: str, token: str, path: str, at_once: str) -> None:
    """Make the call whose messages come on standard input; print the first status."""
    messages = []
    while length := sys.stdin.buffer.read(8):
        messages.append(sys.stdin.buffer.read(int.from_bytes(length, "little")))
    metadata = [("authorization", f"Bearer {token}")]

    def flood(channel: grpc.Channel) -> None:
        while True:
            call = channel.stream_stream(path)(iter(messages), metadata=metadata, timeout=240)
            try:
                for _ in call:
                    pass
            except grpc.RpcError:
                pass
            print(call.code().name, call.details(), flush=True)

    own = [("grpc.use_local_subchannel_pool", 1)]
    threads = [threading.Thread(target=flood, args=(grpc.insecure_channel(target, own),)) for _ in range(int(at_once))]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
