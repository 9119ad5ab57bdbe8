"""`lumigrad health`, whose exit status containers and scripts rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from lumigrad.client.transport.addresses import TARGET
from support.deploy.certificates import Authority
from support.workers.forks import lumigrad
from support.workers.worker import LUMIGRAD, worker


def health(*arguments: str) -> tuple[int, str, str]:
    done = lumigrad("health", *arguments, timeout=120)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_a_worker_serves_until_it_drains() -> None:
    with worker("--device", "cpu", "--lame-duck-seconds", "120") as process:
        target = ("--target", process.target, "--timeout", "60")
        assert health(*target) == (0, "SERVING", "")
        assert health(*target, "--service", "lumigrad.v1.RenderService") == (0, "SERVING", "")
        assert health(*target, "--service", "nobody's") == (
            1,
            "",
            f"lumigrad: error: the worker at {process.target} has no service nobody's; omit --service",
        )
        # All of several targets must serve.
        nobody = "127.0.0.1:1"
        code, output, said = health("--target", f"{process.target},{nobody}", "--timeout", "60")
        assert (code, output) == (4, f"{process.target} SERVING")
        assert said.startswith(f"lumigrad: error: no worker at {nobody} (")
        assert said.endswith("start one with `lumigrad serve`, or " + TARGET.shell)
        process.signal(signal.SIGTERM)
        process.wait_for_log("draining")
        assert health(*target) == (3, "NOT_SERVING", "")
        process.signal(signal.SIGKILL)
        process.wait()
        code, _, said = health(*target)
        assert code == 4
        assert said.startswith(f"lumigrad: error: no worker at {process.target} (")


def test_a_worker_with_tls_is_asked_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, tokens = authority.sign("worker"), tmp_path / "tokens"
    tokens.write_text("lab: 0123456789abcdef\n")
    files = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--tokens-file", str(tokens))
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with worker("--device", "cpu", *files, credentials=credentials) as process:
        target = ("--target", f"localhost:{process.port}", "--timeout", "60")
        # Callers without a token may ask for health.
        assert health(*target, "--tls-ca", str(authority.certificate)) == (0, "SERVING", "")
        code, _, said = health(*target, "--timeout", "60")
        assert code == 4 and "if it asks for TLS, use --tls or --tls-ca FILE" in said


def test_an_error_is_one_line_without_the_log_of_grpc() -> None:
    # A separate process, because gRPC reads its variable when it is imported, and other tests set it.
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    with worker("--device", "cpu") as process:
        for command in ("health", "info"):
            line = [LUMIGRAD, command, "--tls", "--target", process.target, "--timeout", "60"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=250, env=environment)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1), done.stderr
            assert done.stderr.startswith(f"lumigrad: error: no connection to the worker at {process.target} (")


def test_the_client_does_not_pass_its_log_level_of_grpc_on() -> None:
    code = "import os, lumigrad.client; print(os.environ.get('GRPC_VERBOSITY'))"
    for level in (None, "INFO"):
        environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        environment |= {} if level is None else {"GRPC_VERBOSITY": level}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=250
        )
        assert done.stdout.strip() == str(level)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--timeout", "0"), "expected a number > 0"), (("--service", "a" * 200), "expected at most 127 bytes, got 200")],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], text: str) -> None:
    code, _, said = health("--target", "localhost:1", *arguments)
    assert (code, text in said) == (2, True)
