"""`lumigrad health`: reports whether a worker serves, by its exit status, for containers and scripts."""

from __future__ import annotations

import argparse
import sys

import grpc

from lumigrad.client.commands.options import add_connection, option, tls_of
from lumigrad.client.errors import LumigradError
from lumigrad.client.shell import exits
from lumigrad.client.shell.catalog import Command
from lumigrad.client.transport.addresses import Address, Targets
from lumigrad.client.transport.channel import credentials_of, open_channel, resolve_tls
from lumigrad.client.transport.status import exception_of

_METHOD = "/grpc.health.v1.Health/Check"
# The numbers of grpc.health.v1.HealthCheckResponse.ServingStatus. A client has no stubs for it, and needs none.
_STATUS = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_SERVING = 1
_TIMEOUT_S = 5.0
_EXAMPLES = """\
examples:
  lumigrad health                                       of the worker at LUMIGRAD_TARGET
  lumigrad health --service lumigrad.v1.RenderService   of one service
  until lumigrad health; do sleep 1; done               waits for a worker
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    option(parser, "--service", "a gRPC service (default: the whole worker)", type=_service, metavar="NAME")
    add_connection(parser, _TIMEOUT_S)


def _run(arguments: argparse.Namespace) -> int:
    """Prints each worker's status; returns 0 if all are SERVING, else the code of the first that is not."""
    targets = Targets(arguments.target)
    certificate = tuple(arguments.certificate) if arguments.certificate else None
    credentials = credentials_of(resolve_tls(tls_of(arguments)), certificate)
    codes = []
    for address in targets.addresses():
        try:
            status = _asked(address, credentials, arguments)
        except grpc.RpcError as error:
            problem = _problem(error, address.target, arguments)
            print(f"lumigrad: error: {exits.error_message(problem, {})}", file=sys.stderr)
            codes.append(exits.exit_code(problem))
        else:
            name = _STATUS.get(status, str(status))
            print(name if targets.is_lone else f"{address.target} {name}")
            codes.append(exits.OK if status == _SERVING else exits.NOT_SO)
    return next((code for code in codes if code != exits.OK), exits.OK)


def _problem(error: grpc.RpcError, target: str, arguments: argparse.Namespace) -> LumigradError:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return LumigradError(f"the worker at {target} has no service {arguments.service}; omit --service")
    return exception_of(error, target, arguments.timeout)


def _asked(address: Address, credentials: grpc.ChannelCredentials | None, arguments: argparse.Namespace) -> int:
    with open_channel(address, credentials) as channel:
        return _status_of(channel.unary_unary(_METHOD)(_request(arguments.service or ""), timeout=arguments.timeout))


def _service(text: str) -> str:
    """Parses a service's name, short enough for a one-byte length."""
    if len(text.encode()) > 127:
        raise argparse.ArgumentTypeError(f"expected at most 127 bytes, got {len(text.encode())}")
    return text


def _request(service: str) -> bytes:
    """Encodes a HealthCheckRequest: one string, field 1, absent if empty."""
    name = service.encode()
    return bytes((0x0A, len(name))) + name if name else b""


def _status_of(reply: bytes) -> int:
    """Decodes a HealthCheckResponse: one enumerator, field 1, absent if 0."""
    return reply[1] if len(reply) == 2 and reply[0] == 0x08 else 0


command = Command("exit with 0 if a worker is serving", _add_arguments, _run)
