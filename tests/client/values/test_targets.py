"""The names that workers may have as targets, and what they mean."""

from __future__ import annotations

import socket

import pytest

from lumigrad.client import Client, InvalidArgument, Unavailable
from lumigrad.client.transport import addresses as targets_module
from lumigrad.client.transport.addresses import Address, Targets


def addresses(named) -> list[str]:
    return [address.target for address in Targets(named).addresses()]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("a:1", ["a:1"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        (["a:1", "b:2", "a:1"], ["a:1", "b:2"]),
        ("ipv4:1.2.3.4:5,1.2.3.5:5", ["1.2.3.4:5", "1.2.3.5:5"]),
        ("ipv6:[::1]:5,[::2]:5", ["[::1]:5", "[::2]:5"]),
        ("ipv4:1.2.3.4:5", ["ipv4:1.2.3.4:5"]),
        ("ipv6:[::1]:5", ["ipv6:[::1]:5"]),
        ("[::1]:5", ["[::1]:5"]),
        ("[fe80::1%eth0]:5", ["[fe80::1%eth0]:5"]),
        ("my_worker-2.example.:65535", ["my_worker-2.example.:65535"]),
        ("unix:/run/worker", ["unix:/run/worker"]),
        ("unix:///run/worker", ["unix:///run/worker"]),
        ("unix-abstract:worker", ["unix-abstract:worker"]),
        ("vsock:2:50051", ["vsock:2:50051"]),
        ("xds:///workers", ["xds:///workers"]),
        ("dns://8.8.8.8/a", ["dns://8.8.8.8/a"]),
        (lambda: ["c:3"], ["c:3"]),
        (None, ["localhost:50051"]),
    ],
)
def test_addresses(named, expected, monkeypatch) -> None:
    monkeypatch.delenv("LUMIGRAD_TARGET", raising=False)
    assert addresses(named) == expected


def test_one_address_is_one_worker_for_good() -> None:
    assert Targets("a:1").is_lone and Targets(["a:1"]).is_lone and Targets("dns://8.8.8.8/a:1").is_lone
    for several in ("a:1,b:2", "dns:///a:1", lambda: ["a:1"]):
        assert not Targets(several).is_lone


def test_the_environment_may_name_several(monkeypatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", "a:1,b:2")
    assert addresses(None) == ["a:1", "b:2"]
    with Client() as client:
        assert client.target == "a:1,b:2"


def test_names_stand_for_all_their_addresses(monkeypatch) -> None:
    def resolve(host: str, port: int) -> tuple[str, ...]:
        if host == "nobody":
            raise socket.gaierror("Name or service not known")
        return (f"10.0.0.1:{port}", f"10.0.0.2:{port}")

    monkeypatch.setattr(targets_module, "resolve_name", resolve)
    assert Targets("dns:///workers:7").addresses() == (
        Address("10.0.0.1:7", "workers"),
        Address("10.0.0.2:7", "workers"),
    )
    assert addresses("dns:workers") == ["10.0.0.1:50051", "10.0.0.2:50051"]
    assert addresses(["dns:///workers:7", "a:1", "dns:///nobody:7"]) == ["10.0.0.1:7", "10.0.0.2:7", "a:1"]
    with pytest.raises(Unavailable, match=r"no worker at dns:///nobody:7: dns:///nobody:7 cannot be resolved"):
        addresses("dns:///nobody:7")


def test_localhost_is_looked_up_once_for_both_kinds_of_addresses() -> None:
    assert addresses("dns:///localhost:7") in (["127.0.0.1:7"], ["[::1]:7"])


@pytest.mark.parametrize("wrong", ["a:1, b:2", "a:1,,b:2", ["a:1", ""], ["a:1", 7], "a b"])
def test_what_is_no_address_is_refused(wrong) -> None:
    with pytest.raises(InvalidArgument, match=r'^target: expected addresses such as "localhost:50051"'):
        Targets(wrong)


@pytest.mark.parametrize(
    ("named", "meant", "wrong"),
    [
        ("localhost", "localhost:50051", "localhost"),
        ("localhost:", "localhost:50051", "localhost:"),
        ("localhost:0", "localhost:50051", "localhost:0"),
        (":50051", "localhost:50051", ":50051"),
        ("10.0.0.7", "10.0.0.7:50051", "10.0.0.7"),
        ("::1", "[::1]:50051", "::1"),
        ("a:1,b", "b:50051", "b"),
        ("ipv4:1.2.3.4", "ipv4:1.2.3.4:50051", "ipv4:1.2.3.4"),
        ("ftp://a:1", "localhost:50051", "ftp://a:1"),
    ],
)
def test_an_address_without_a_port_is_refused_with_the_form_that_is_meant(named, meant, wrong) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Client(named)
    assert str(refused.value) == f'target: expected "host:port", such as "{meant}", got {wrong!r}'


def test_no_name_is_looked_up_before_a_call(monkeypatch) -> None:
    def resolve(host: str, port: int) -> tuple[str, ...]:
        raise AssertionError(host)

    monkeypatch.setattr(targets_module, "resolve_name", resolve)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for named in ("localhost:1", "dns:///workers", "a:1,dns:b:7"):
        Client(named).close()


def test_a_function_that_tells_nobody_is_unavailable() -> None:
    def workers() -> list[str]:
        return []

    with (
        Client(workers, retry_s=0) as client,
        pytest.raises(Unavailable, match="no worker at workers: the look-up returned no address"),
    ):
        client.info()


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("https://gpu.example:443/", 'target: expected "host:port", such as "gpu.example:443", got .*; pass tls=True'),
        ("grpc://gpu.example", 'target: expected "host:port", such as "gpu.example:50051", got'),
    ],
)
def test_addresses_of_the_web_are_refused_with_the_form_that_is_meant(named: str, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        Client(named)
