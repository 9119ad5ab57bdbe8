"""A process that requests a large reply and reads its first message.

It then prints "reading", and reads the rest after a line on standard input.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import RawClient, opencv_camera, spec_of


class Reader:
    """A process that requests the colours of a stored scene, and pauses after the first message."""

    def __init__(self, target: str, scene_id: str, width: int, height: int, token: str = "") -> None:
        """Start the process, and wait until its reply has begun; a `token` that is not empty is sent with the call."""
        self.request_id = f"reader-{uuid.uuid4().hex}"
        arguments = [target, scene_id, str(width), str(height), self.request_id, token]
        command = [sys.executable, "-m", "support.workers.reader", *arguments]
        folder = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._line() == "reading"

    def go_on(self) -> str:
        """Let the process read the rest; returns "done", or the code of the error that ended the call."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        return self._line()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def main(target: str, scene_id: str, width: str, height: str, request_id: str, token: str) -> None:
    # gRPC would otherwise widen its window on a busy machine, until it holds the whole reply unread.
    client = RawClient(target, [("grpc.http2.bdp_probe", 0)])
    request = render_pb2.RenderRequest(spec=spec_of(opencv_camera(int(width), int(height)), scene_id=scene_id))
    metadata = [("x-request-id", request_id), *([("authorization", f"Bearer {token}")] if token else [])]
    reply = client.render_stub.Render(iter([Frame(request)]), metadata=metadata)
    next(reply)
    print("reading", flush=True)
    sys.stdin.readline()
    try:
        for _ in reply:
            pass
    except Exception:
        print(reply.code().name, flush=True)
    else:
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
