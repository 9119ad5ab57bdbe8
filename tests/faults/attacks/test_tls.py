"""TLS on real sockets: who is let in, which errors clients get, and certificates that are replaced at run time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lumigrad import client as lumigrad
from lumigrad.client import Client
from lumigrad.client.default import default_client
from lumigrad.client.transport import addresses as targets
from support.calls.raw_calls import sphere_cloud
from support.deploy.certificates import Authority, Identity
from support.workers import forks
from support.workers.worker import WorkerProcess, worker, worker_fixture

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def own(authority: Authority) -> Identity:
    return authority.sign("worker")


@pytest.fixture(scope="module")
def robot(authority: Authority) -> Identity:
    return authority.sign("robot")


def credentials(authority: Authority, identity: Identity | None = None) -> grpc.ChannelCredentials:
    roots = authority.certificate.read_bytes()
    if identity is None:
        return grpc.ssl_channel_credentials(roots)
    return grpc.ssl_channel_credentials(roots, identity.key.read_bytes(), identity.certificate.read_bytes())


def files(identity: Identity) -> list[str]:
    return ["--tls-cert", str(identity.certificate), "--tls-key", str(identity.key)]


@pytest.fixture(scope="module")
def encrypted(authority: Authority, own: Identity) -> Iterator[WorkerProcess]:
    with worker("--device", "cpu", *files(own), credentials=credentials(authority)) as process:
        yield process


@pytest.fixture(scope="module")
def mutual(authority: Authority, own: Identity, robot: Identity) -> Iterator[WorkerProcess]:
    options = [*files(own), "--tls-client-ca", str(authority.certificate)]
    with worker("--device", "cpu", *options, credentials=credentials(authority, robot)) as process:
        yield process


plain = worker_fixture()


def refusal(target: str, **options: object) -> str:
    """The error of a client that is not let in; it must come at once."""
    with (
        Client(target, **{"retry_s": 0, "timeout_s": 60, **options}) as client,
        pytest.raises(lumigrad.Unavailable) as error,
    ):
        client.info()
    return str(error.value)


def scene() -> lumigrad.Spheres:
    return lumigrad.Spheres(**sphere_cloud(20))


def test_calls_are_encrypted(encrypted: WorkerProcess, authority: Authority) -> None:
    with Client(encrypted.target, tls=authority.certificate) as client:
        assert client.put(scene()).scene_id


def test_a_plain_client_of_an_encrypted_worker_is_told_what_to_pass(encrypted: WorkerProcess) -> None:
    assert "if it asks for TLS, pass tls=True or tls=FILE" in refusal(encrypted.target)
    # IPv6 refuses the connection, and gRPC reports only the error of the last address.
    assert "if it asks for TLS, pass tls=True or tls=FILE" in refusal(f"localhost:{encrypted.port}")


def test_handshakes_that_fail_write_no_lines_of_another_form(authority: Authority, own: Identity) -> None:
    options = ["--device", "cpu", *files(own), "--log-format", "json"]
    with worker(*options, credentials=credentials(authority), supervised=True) as process:
        refusal(process.target)
        assert all(line.startswith('{"time"') for line in process.log.splitlines())


def test_an_encrypting_client_of_a_plain_worker_is_told_what_to_leave_out(
    plain: WorkerProcess, authority: Authority
) -> None:
    assert "it seems to serve plain text; omit tls" in refusal(plain.target, tls=authority.certificate)
    began = time.monotonic()
    refusal(plain.target, tls=authority.certificate, timeout_s=600, retry_s=600)
    assert time.monotonic() - began < 120, "trying again would not help"


def test_a_worker_of_another_authority_is_not_trusted(encrypted: WorkerProcess, tmp_path: Path) -> None:
    text = refusal(encrypted.target, tls=Authority(tmp_path, "stranger").certificate)
    assert "not signed by an authority that is trusted here" in text


def test_an_expired_certificate_is_named_as_such(authority: Authority, plain: WorkerProcess) -> None:
    expired = authority.sign("expired", days=-0.5)
    process = forks.ForkedProcess(["serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", *files(expired)])
    try:
        target = process.stdout.readline().split()[2]
        assert "has expired" in refusal(target, tls=authority.certificate)
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_clients_show_a_certificate_and_are_its_subject(
    mutual: WorkerProcess, authority: Authority, robot: Identity
) -> None:
    other = authority.sign("other")
    with (
        Client(mutual.target, tls=authority.certificate, certificate=(robot.certificate, robot.key)) as mine,
        Client(mutual.target, tls=authority.certificate, certificate=(other.certificate, other.key)) as theirs,
    ):
        handle = mine.put(scene())
        assert mine.get(handle.scene_id).scene_id == handle.scene_id
        with pytest.raises(lumigrad.SceneNotFound):
            theirs.get(handle.scene_id)
        assert not theirs.list()
    mutual.wait_for_log("tenant=CN=robot")
    assert mutual.metric("lumigrad_tenant_calls_total", tenant="CN=robot") >= 2


def test_clients_without_a_certificate_or_with_a_strangers_are_not_let_in(
    mutual: WorkerProcess, authority: Authority, tmp_path: Path
) -> None:
    assert "if for a client's certificate, certificate=(FILE, KEY)" in refusal(mutual.target, tls=authority.certificate)
    stranger = Authority(tmp_path, "stranger").sign("robot")
    pair = stranger.certificate, stranger.key
    assert "ended the connection" in refusal(mutual.target, tls=authority.certificate, certificate=pair)
    expired = authority.sign("expired-robot", days=-0.5)
    pair = expired.certificate, expired.key
    assert "ended the connection" in refusal(mutual.target, tls=authority.certificate, certificate=pair)


def test_a_certificate_that_is_replaced_is_used_from_the_next_connection_on(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    first, second = old.sign("first"), new.sign("second")
    live = Identity(tmp_path / "live.pem", tmp_path / "live.key")
    shutil.copy(first.certificate, live.certificate)
    shutil.copy(first.key, live.key)
    with worker("--device", "cpu", *files(live), credentials=credentials(old)) as process:
        with Client(process.target, tls=old.certificate) as before:
            before.info()
            os.replace(second.certificate, live.certificate)
            # The new key is missing, so the old pair stays in use.
            with Client(process.target, tls=old.certificate) as between:
                between.info()
            process.wait_for_log("the previous certificate stays in use")
            os.replace(second.key, live.key)
            with Client(process.target, tls=new.certificate) as after:
                after.info()
            before.info()
        assert "not signed by an authority that is trusted here" in refusal(process.target, tls=old.certificate)
        process.wait_for_log("certificate reloaded")


def test_where_both_are_asked_for_the_token_tells_the_tenant_and_either_can_be_taken_away(
    authority: Authority, own: Identity, robot: Identity, tmp_path: Path
) -> None:
    tokens, clients = tmp_path / "tokens", tmp_path / "clients.pem"
    tokens.write_text(f"alice: {TOKEN}\n")
    shutil.copy(authority.certificate, clients)
    options = [*files(own), "--tls-client-ca", str(clients), "--tokens-file", str(tokens)]
    known = {"tls": authority.certificate, "certificate": (robot.certificate, robot.key)}
    with worker("--device", "cpu", *options, credentials=credentials(authority, robot)) as process:
        with Client(process.target, **known) as client, pytest.raises(lumigrad.Unauthenticated):
            client.info()
        with Client(process.target, token=TOKEN, **known) as client:
            client.info()
        process.wait_for_log("tenant=alice")
        assert "ended the connection" in refusal(process.target, tls=authority.certificate, token=TOKEN)
        # The clients' authority is replaced.
        shutil.copy(Authority(tmp_path, "later").certificate, tmp_path / "beside.pem")
        os.replace(tmp_path / "beside.pem", clients)
        assert "ended the connection" in refusal(process.target, token=TOKEN, **known)


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return forks.lumigrad("serve", "--port", "0", "--metrics-port", "0", *options)


def test_files_that_do_not_work_end_the_worker_with_code_2(authority: Authority, own: Identity, tmp_path: Path) -> None:
    certificate, key = str(own.certificate), str(own.key)
    other = str(authority.sign("another").key)
    absent, junk = str(tmp_path / "absent.pem"), str(tmp_path / "junk.pem")
    Path(junk).write_text("no certificate\n")
    cases = {
        ("--tls-cert", certificate): "--tls-key: expected a PEM file, since --tls-cert is set",
        ("--tls-client-ca", certificate): "--tls-client-ca: expected --tls-cert and --tls-key too",
        ("--tls-cert", absent, "--tls-key", key): f"--tls-cert: cannot read {absent}: No such file",
        ("--tls-cert", certificate, "--tls-key", other): f"--tls-key: {other} is not the key of the certificate in",
        ("--tls-cert", junk, "--tls-key", key): "expected a certificate chain and its key without a password",
        (*files(own), "--tls-client-ca", junk): "--tls-client-ca: expected certificates of authorities, PEM",
        ("--host", "0.0.0.0", *files(own)): "set --tokens-file or --tls-client-ca; or set --insecure",
        ("--tokens-file", absent): f"--tokens-file: cannot read {absent}",
    }
    for options, text in cases.items():
        result = serve(*options)
        assert (result.returncode, text in result.stderr) == (2, True), (options, result.stderr)
        assert "Traceback" not in result.stderr


def test_a_public_address_needs_tls_and_tokens_and_no_more(
    authority: Authority, own: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice: {TOKEN}\n")
    result = serve("--host", "0.0.0.0", "--tokens-file", str(tokens))
    assert (result.returncode, "set --tls-cert and --tls-key; or set" in result.stderr) == (2, True), result.stderr
    arguments = [
        "serve", "--device", "cpu", "--host", "0.0.0.0", "--port", "0", "--metrics-port", "0",
        *files(own), "--tokens-file", str(tokens), "--lame-duck-seconds", "0",
    ]  # fmt: skip
    process = forks.ForkedProcess(arguments)
    try:
        port = process.stdout.readline().split()[2].rpartition(":")[2]
        with Client(f"127.0.0.1:{port}", tls=authority.certificate, token=TOKEN) as client:
            assert client.info().device == "cpu"
        monkeypatch.setenv("LUMIGRAD_TOKEN", TOKEN)
        shown = forks.lumigrad("info", "--target", f"127.0.0.1:{port}", "--tls-ca", str(authority.certificate))
        assert re.search(r"^device +cpu", shown.stdout, re.MULTILINE)
        for name, value in (("TLS", str(authority.certificate)), ("TARGET", f"localhost:{port}")):
            monkeypatch.setenv(f"LUMIGRAD_{name}", value)
        assert default_client().info().device == "cpu"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_client_arguments_are_checked(own: Identity, robot: Identity, tmp_path: Path) -> None:
    pair = robot.certificate, robot.key
    with pytest.raises(lumigrad.InvalidArgument, match=r"^certificate: expected tls=True or tls=FILE with it"):
        Client(certificate=pair)
    with pytest.raises(lumigrad.InvalidArgument, match=r"^certificate: expected two files"):
        Client(tls=True, certificate=str(robot.certificate))
    with pytest.raises(lumigrad.InvalidArgument, match=r"^certificate: expected a PEM file of its key"):
        Client(tls=True, certificate=(robot.certificate, tmp_path / "absent"))
    with pytest.raises(lumigrad.InvalidArgument, match=r"^certificate: expected a certificate and its key"):
        Client(tls=True, certificate=(robot.certificate, own.key))
    with pytest.raises(lumigrad.InvalidArgument, match=r"^token: expected printable ASCII without spaces"):
        Client(token="secret\n")


def test_a_name_that_is_looked_up_here_is_the_one_that_the_certificate_is_for(
    authority: Authority, encrypted: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(f"dns:///localhost:{encrypted.port}", tls=authority.certificate) as client:
        assert client.info().target in (encrypted.target, f"[::1]:{encrypted.port}")
    monkeypatch.setattr(targets, "resolve_name", lambda _, port: (f"127.0.0.1:{port}",))
    with (
        Client(f"dns:///elsewhere:{encrypted.port}", tls=authority.certificate) as client,
        pytest.raises(lumigrad.Unavailable, match="its certificate is for another name"),
    ):
        client.info()
