"""The id of a call that takes long is sent ahead of its reply, never after it: gRPC would not report the call's end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lumigrad.client import Camera, Client, Gaussians
from support.calls.raw_calls import RawClient
from support.gaussians.clouds import post
from support.workers.slow_render import SlowRender, wait_until
from support.workers.worker import worker

CAMERA = Camera.look_at((0, -1, -5), (0, 0, 0), up=(0, -1, 0), width=32, height=24)
# Housekeeping is about to send an id when the call ends, and gRPC learns that the status was sent after that.
LATE = """
import threading, time
from pathlib import Path
from grpc import _server
from lumigrad.server.rpc import handler, short_calls

folder = Path({folder!r})

def wait(name):
    until = time.monotonic() + 60
    while not (folder / name).exists() and time.monotonic() < until:
        time.sleep(0.005)

def late(announce):
    def announce_late(request_id, context):
        is_late = threading.current_thread().name == "housekeeping"
        if is_late:
            (folder / "announcing").touch()
            wait("go")
        announce(request_id, context)
        if is_late:
            (folder / "announced").touch()
    return announce_late

handler.announce, short_calls.announce = late(handler.announce), late(short_calls.announce)
send_status = _server._send_status_from_server

def status_sent(state, token):
    end = send_status(state, token)

    def end_late(event):
        if (folder / "announcing").exists():
            wait("announced")
        return end(event)

    return end_late

_server._send_status_from_server = status_sent
"""


@pytest.mark.parametrize("is_prepared", [False, True], ids=["general", "prepared"])
def test_a_call_that_ends_while_it_is_announced_leaves_nothing_behind(tmp_path: Path, is_prepared: bool) -> None:
    before = (LATE.format(folder=str(tmp_path)),)
    # The worker checks at its end that all calls have released their resources.
    with (
        worker("--device", "cpu", before=before) as process,
        Client(process.target) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        scene: Gaussians = post()
        handle, slow = client.put(scene), SlowRender(RawClient(process.target))
        expected = [client.render(handle, CAMERA).color for _ in range(3 if is_prepared else 0)]
        ahead = slow.start_alone(process)
        renders = process.log.count("method=RenderService.Render")
        waiting = pool.submit(client.render, handle, CAMERA)
        wait_until((tmp_path / "announcing").exists, "an announcement")
        ahead.cancel()
        process.wait_for_log("method=RenderService.Render", count=renders + 2)
        (tmp_path / "go").touch()
        color = waiting.result().color
        assert all((color == each).all() for each in expected)
