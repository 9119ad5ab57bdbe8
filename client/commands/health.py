"""`lumigrad health`: reports whether a worker serves, by its exit status, for containers and scripts."""

from __future__ import annotations

import argparse

import grpc

from lumigrad.client.commands.options import add_connection, option, tls_of
from lumigrad.client.errors import LumigradError
from lumigrad.client.shell import exits
from lumigrad.client.shell.catalog import Command
from lumigrad.client.transport.addresses import Address, Targets
from lumigrad.client.transport.channel import credentials_of, open_channel, resolve_tls
from lumigrad.client.transport.status import exception_of

_METHOD = "/grpc.health.v1.Health/Check"
# Numbers of grpc.health.v1.HealthCheckResponse.ServingStatus: a client has no stubs for it, and needs none.
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
            status = _status(address, credentials, arguments)
        except LumigradError as error:
            exits.say(f"error: {exits.error_message(error, {})}")
            codes.append(exits.exit_code(error))
        else:
            name = _STATUS.get(status, str(status))
            print(name if targets.is_lone else f"{address.target} {name}")
            codes.append(exits.OK if status == _SERVING else exits.NOT_SO)
    return next((code for code in codes if code != exits.OK), exits.OK)


def _status(address: Address, credentials: grpc.ChannelCredentials | None, arguments: argparse.Namespace) -> int:
    """Asks a worker. Both messages have at most one field, number 1: a string, and an enumerator."""
    name = (arguments.service or "").encode()
    request = bytes((0x0A, len(name))) + name if name else b""
    try:
        with open_channel(address, credentials) as channel:
            reply = channel.unary_unary(_METHOD)(request, timeout=arguments.timeout)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            text = f"the worker at {address.target} has no service {arguments.service}; omit --service"
            raise LumigradError(text) from error
        raise exception_of(error, address.target, arguments.timeout) from error
    return int(reply[1]) if len(reply) == 2 and reply[0] == 0x08 else 0


def _service(text: str) -> str:
    """Parses a service's name, short enough for a one-byte length."""
    if len(text.encode()) > 127:
        raise argparse.ArgumentTypeError(f"expected at most 127 bytes, got {len(text.encode())}")
    return text


command = Command("exit with 0 if a worker is serving", _add_arguments, _run)
