"""The log: a line for each call and each event, in one form, whoever writes it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter

import pytest

from lumigrad.v1 import render_pb2, worker_pb2
from support.calls.raw_calls import RawClient, failure, spec_of, sphere_cloud
from support.workers.worker import LUMIGRAD, worker

OTHERS = """
import logging, sys, threading, warnings
from lumigrad.server.core import logs
logs.configure(sys.argv[1])
logs.event("ours", number=1)
logging.getLogger("grpc._server").error("theirs\\nin two lines")
logging.getLogger("chatty").info("never shown")
warnings.warn("be warned")
threading.Thread(target=lambda: 1 / 0, name="divider").start()
raise RuntimeError("the end")
"""


def lines(log_format: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", OTHERS, log_format], capture_output=True, text=True, timeout=60)
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
        totals = [line for line in process.metrics().splitlines() if line.startswith("lumigrad_calls_total{")]
        assert sum(float(line.split()[-1]) for line in totals) == count


# The default ports may be in use on this machine; in a network of its own they are not.
APART = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


@pytest.mark.skipif(
    not shutil.which("ip") or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="may not make namespaces of networks here",
)
def test_a_start_with_the_defaults_has_no_line_about_options() -> None:
    with subprocess.Popen(
        [*APART, LUMIGRAD, "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        announced = process.stdout.readline()
        process.kill()
        log = process.stderr.read()
    assert announced == "listening on 127.0.0.1:50051 (metrics 9464)\n", log
    assert "worker started" in log and "options that differ" not in log
