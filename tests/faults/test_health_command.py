"""`lumigrad health`: the exit status that containers and scripts go by."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import grpc
import pytest

from lumigrad.client.transport.addresses import TARGET
from support.deploy.certificates import Authority
from support.workers.worker import LUMIGRAD, worker


def health(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([LUMIGRAD, "health", *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_a_worker_serves_until_it_drains() -> None:
    with worker("--device", "cpu", "--lame-duck-seconds", "120") as process:
        target = ("--target", process.target, "--timeout", "30")
        assert health(*target) == (0, "SERVING", "")
        assert health(*target, "--service", "lumigrad.v1.RenderService") == (0, "SERVING", "")
        assert health(*target, "--service", "nobody's") == (
            1,
            "",
            f"lumigrad: error: the worker at {process.target} has no service nobody's; omit --service",
        )
        # Of several all must serve.
        nobody = "127.0.0.1:1"
        code, output, said = health("--target", f"{process.target},{nobody}", "--timeout", "2")
        assert (code, output) == (4, f"{process.target} SERVING")
        assert said.startswith(f"lumigrad: error: no worker at {nobody} (")
        assert said.endswith("start one with `lumigrad serve`, or " + TARGET.shell)
        process.signal(signal.SIGTERM)
        process.wait_for_log("draining")
        assert health(*target) == (3, "NOT_SERVING", "")
        process.signal(signal.SIGKILL)
        process.wait()
        code, _, said = health(*target, "--timeout", "1")
        assert code == 4
        assert said.startswith(f"lumigrad: error: no worker at {process.target} (")


def test_a_worker_with_tls_is_asked_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, tokens = authority.sign("worker"), tmp_path / "tokens"
    tokens.write_text("lab: 0123456789abcdef\n")
    files = ("--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--tokens-file", str(tokens))
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with worker("--device", "cpu", *files, credentials=credentials) as process:
        target = ("--target", f"localhost:{process.port}", "--timeout", "30")
        # Health is open to callers without a token.
        assert health(*target, "--tls-ca", str(authority.certificate)) == (0, "SERVING", "")
        assert health(*target, "--timeout", "2")[0] == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--timeout", "0"), "expected a number > 0"), (("--service", "a" * 200), "expected at most 127 bytes, got 200")],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], text: str) -> None:
    code, _, said = health("--target", "localhost:1", *arguments)
    assert (code, text in said) == (2, True)
