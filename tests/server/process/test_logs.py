"""The log: a line for each call and each event, in one form, whoever writes it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import pytest

from lumigrad.v1 import render_pb2, worker_pb2
from support.calls.raw_calls import RawClient, failure, spec_of, sphere_cloud
from support.workers.forks import ForkedProcess
from support.workers.worker import worker

OTHERS = """
import logging, sys, threading, warnings
from lumigrad.server.core import logs
logs.configure(sys.argv[1])
logs.event("ours", number=1)
logging.getLogger("grpc._server").error("theirs\\nin two lines")
logging.getLogger("chatty").info("never shown")
warnings.warn("be warned")
divider = threading.Thread(target=lambda: 1 / 0, name="divider")
divider.start()
divider.join()
raise RuntimeError("the end")
"""


def lines(log_format: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", OTHERS, log_format], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_every_line_is_json_whoever_wrote_it() -> None:
    entries = [json.loads(line) for line in lines("json")]
    assert [entry["level"] for entry in entries] == ["INFO", "ERROR", "WARNING", "ERROR", "CRITICAL"]
    assert [entry["message"] for entry in entries[:2]] == ["ours", "theirs\nin two lines"]
    assert "logger" not in entries[0]
    assert [entry["logger"] for entry in entries[1:3]] == ["grpc._server", "py.warnings"]
    assert "be warned" in entries[2]["message"]
    assert entries[3]["thread"] == "divider"
    assert "ZeroDivisionError" in entries[3]["traceback"]
    assert "RuntimeError: the end" in entries[4]["traceback"]


def test_plain_lines_of_others_cannot_look_like_two() -> None:
    shown = lines("plain")
    assert shown[0].endswith(" INFO ours number=1")
    assert shown[1].endswith(' ERROR "theirs\\nin two lines" logger=grpc._server')


def test_each_call_is_one_line_however_it_goes() -> None:
    count = 40
    with worker("--device", "cpu", "--log-format", "json") as process:
        client = RawClient(process.target)
        for number in range(count):
            name = (("x-request-id", f"call-{number}"),)
            if number % 4 == 0:
                client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=name)
            elif number % 4 == 1:
                client.render(spec_of(), cloud=sphere_cloud(), metadata=name)
            elif number % 4 == 2:
                failure(lambda name=name: client.render(render_pb2.RenderSpec(), metadata=name))
            else:
                failure(lambda name=name: client.render(spec_of(scene_id="x" * 16), metadata=name))
        client.close()
        process.wait_for_log('"request_id": "call-', count=count)
        entries = [json.loads(line) for line in process.log.splitlines()]
        ended = [entry["request_id"] for entry in entries if entry["message"] == "call"]
        assert Counter(ended) == Counter(f"call-{number}" for number in range(count))
        info, refused = (next(entry for entry in entries if entry.get("request_id") == f"call-{n}") for n in (0, 2))
        assert info["method"] == "WorkerService.Info" and info["ms"] > 0
        assert (refused["code"], refused["level"]) == ("INVALID_ARGUMENT", "INFO")
        assert refused["why"].startswith("spec: expected scene_ref or scene")
        serving = next(entry for entry in entries if entry["message"] == "serving")
        assert (serving["device"], serving["port"]) == ("cpu", process.port)
        totals = [line for line in process.metrics().splitlines() if line.startswith("lumigrad_calls_total{")]
        assert sum(float(line.split()[-1]) for line in totals) == count


@pytest.mark.skipif(
    not shutil.which("ip")
    or subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True).returncode != 0,
    reason="may not make namespaces of networks here",
)
def test_a_start_with_the_defaults_has_no_line_about_options() -> None:
    # The default ports may be in use on this machine, but not in a network of its own.
    apart = (
        "import ctypes, subprocess",
        "assert ctypes.CDLL(None).unshare(0x40000000) == 0, 'no network of its own'",
        "subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)",
    )
    process = ForkedProcess(["serve"], before=apart)
    announced = process.stdout.readline()
    process.kill()
    _, log = process.communicate(timeout=60)
    assert announced == "listening on 127.0.0.1:50051 (metrics 9464)\n", log
    assert "worker started" in log and "options that differ" not in log


def calls_on_a_terminal(*options: str) -> list[str]:
    """The log of a worker whose standard error is a terminal, after a good call and a bad one."""
    ours, its = os.openpty()
    process = ForkedProcess(
        ["serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", *options],
        before=("import os", f"os.dup2(os.open({os.ttyname(its)!r}, os.O_RDWR | os.O_NOCTTY), 2)"),
    )
    client = RawClient(process.stdout.readline().split()[2])
    client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=(("x-request-id", "good"),))
    failure(lambda: client.render(render_pb2.RenderSpec(), metadata=(("x-request-id", "bad"),)))
    client.close()
    os.close(its)
    process.send_signal(signal.SIGTERM)
    text = b""
    # The terminal ends with the last process that has it open.
    with suppress(OSError):
        while part := os.read(ours, 1 << 16):
            text += part
    os.close(ours)
    process.communicate(timeout=60)
    assert process.returncode == 0
    return text.decode().splitlines()


@pytest.mark.parametrize("level", ["auto", "calls"])
def test_a_terminal_shows_calls_that_failed(level: str) -> None:
    shown = calls_on_a_terminal("--log-level", level)
    # A start takes seconds, so it is shown.
    assert "INFO starting: " in shown[0]
    assert any("request_id=bad" in line for line in shown)
    assert any("request_id=good" in line for line in shown) == (level == "calls")


def test_a_level_hides_what_is_below_it() -> None:
    def shown(level: str) -> set[str]:
        with worker("--device", "cpu", "--log-format", "json", "--log-level", level) as process:
            client = RawClient(process.target)
            client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=(("x-request-id", "good"),))
            failure(lambda: client.render(render_pb2.RenderSpec(), metadata=(("x-request-id", "bad"),)))
            client.close()
            process.stop()
            entries = [json.loads(line) for line in process.log.splitlines()]
        return {entry.get("request_id", entry["level"]) for entry in entries}

    assert shown("info") == {"INFO", "bad"}
    assert shown("error") == set()
