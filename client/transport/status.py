"""Translates gRPC statuses into the client's exceptions."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any, Literal

import grpc
from google.rpc import error_details_pb2, status_pb2

from lumigrad.client.errors import (
    Cancelled,
    ContextLost,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    LaneLost,
    LumigradError,
    ResourceExhausted,
    SceneNotFound,
    StepMismatch,
    TrainingHeld,
    TrainingLost,
    Unauthenticated,
    Unavailable,
    VersionMismatch,
    Violation,
)
from lumigrad.client.transport.addresses import (
    AUTHORITY,
    CERTIFICATE,
    LARGER_TIMEOUT,
    PLAIN_TEXT,
    TARGET,
    TLS,
    TOKEN,
    Address,
    host_of,
    proxy_of,
    split_target,
)
from lumigrad.protos import details
from lumigrad.v1 import errors_pb2

_OTHER_NAME = "its certificate is for another name; connect by a name that the certificate covers"
# Substrings of TLS and gRPC messages about failed handshakes, and their usual causes.
_HANDSHAKES = {
    "WRONG_VERSION_NUMBER": f"it seems to serve plain text; {PLAIN_TEXT}, or start it with --tls-cert and --tls-key",
    "certificate has expired": "its certificate has expired; renew the file of --tls-cert",
    "CERTIFICATE_VERIFY_FAILED": f"its certificate is not signed by an authority that is trusted here; {AUTHORITY}",
    "Hostname Verification Check failed": _OTHER_NAME,
    "Peer name": _OTHER_NAME,
}
# Substrings of messages for a server that accepts a connection and then rejects its first bytes, or never answers them.
_HUNG_UP = ("Socket closed", "onnection reset")
_SILENT = ("connection attempt timed out before receiving SETTINGS", "Endpoint closing")
# The first bytes of a connection of HTTP/2: the preface and an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# The first byte of an alert of TLS.
_TLS_ALERT = b"\x15"
# The time-out for connecting to a port of this machine, and for its first byte.
_PROBE_S = 1.0
_RESET = "RST_STREAM"
# Metadata that workers send with the status of every call, and in advance of slow replies.
_REQUEST_ID = "x-request-id"
# Substrings of messages of gRPC and Envoy for a broken connection, and of gRPC for one that could not be made.
_BROKEN = ("Stream removed", "Socket closed", "onnection reset", "Broken pipe", "connection termination")
_UNCONNECTED = "failed to connect"

# Rewrites paths in requests to names of the caller's arguments. In distance queries, `spec.spheres` is a tensor.
_TO_ARGUMENTS = (
    (re.compile(r"^items\[\d+\]\."), ""),
    (re.compile(r"^(?:\w+\.)*(?:scene\.(?:spheres|gaussians|mesh|target)|tensors)\."), ""),
    (re.compile(r"^(?:start\.)?spec\.(?:(?:spheres|gaussians|settings|optimizer)\.(?!shape|dtype|region))?"), ""),
    (re.compile(r"^start\.views\[(\d+)\]\.camera"), r"cameras[\1]"),
    (re.compile(r"^start\.views\[(\d+)\]\.target$"), r"target_images[\1]"),
    (re.compile(r"^(?:step|gradients)\."), ""),
    (re.compile(r"^output_dtype$"), "image_format"),
    (re.compile(r"^formats\[\d+\]\.format$"), "image_format"),
)

_Metadata = tuple[tuple[str, str | bytes], ...]


def exception_of(error: grpc.RpcError, target: str, timeout_s: float) -> LumigradError:
    """Returns the exception for a failed call to `target` with time-out `timeout_s`; `error` is also a grpc.Call."""
    call: Any = error
    text = call.details() or "no further details"
    if _was_lost(call):
        text = f"the worker at {target} was lost during the call ({text}); its log may show the reason"
        return Unavailable(text, was_begun=True)
    if call.code() is grpc.StatusCode.CANCELLED:
        # Metadata means that the worker began the call and ended it itself; otherwise a proxy ended it.
        is_answered = any(key == _REQUEST_ID for key, _ in call.trailing_metadata() or ())
        is_foreign = not is_answered and not call.initial_metadata()
        return Cancelled(f"the call to {target} was cancelled: {text}", is_foreign=is_foreign)
    metadata = call.trailing_metadata() or ()
    return _translated(call.code(), text, metadata, target, timeout_s)


def no_answer(target: str, timeout_s: float) -> LumigradError:
    """Returns the exception for a call to `target` whose time-out has expired."""
    return _translated(grpc.StatusCode.DEADLINE_EXCEEDED, "", (), target, timeout_s)


def exception_of_item(status: status_pb2.Status, target: str, timeout_s: float) -> LumigradError:
    """Returns the exception for the status of one item of a call; arguments are named without the item's index."""
    number = status.code
    code = next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
    return _translated(code, status.message, (details.trailer(status),), target, timeout_s)


def _translated(code: grpc.StatusCode, text: str, metadata: _Metadata, target: str, timeout_s: float) -> LumigradError:
    if code in _TRANSLATIONS:
        return _TRANSLATIONS[code](text, metadata, target)
    about = {"target": target, "text": text, "timeout_s": timeout_s, "code": code.name}
    for detail in details.unpack(metadata):
        if type(detail) in _DETAILS:
            kind, template = _DETAILS[type(detail)]
            facts = {field.name: getattr(detail, field.name) for field in detail.DESCRIPTOR.fields}
            attributes = {name: facts[name] for name in facts if hasattr(kind, name)}
            return kind(template.format(**about, **facts), **attributes)
    kind, template = _CODES.get(code, (Internal, "the worker at {target} answered {code}: {text}"))
    return kind(template.format(**about))


def _was_lost(call: Any) -> bool:
    """Whether the worker ended while it processed the call."""
    if call.code() is grpc.StatusCode.INTERNAL:
        # A proxy in between that loses its worker resets the stream; workers themselves do not.
        return _RESET in (call.details() or "") and _was_begun(call)
    return call.code() is grpc.StatusCode.UNAVAILABLE and _was_begun(call)


def _was_begun(call: Any) -> bool:
    """Whether a worker may have begun the call and did not end it itself; a worker that refuses a call sends RetryInfo.

    Initial metadata comes with the reply or, if that is slow, before it. A call whose connection broke earlier may have
    begun too.
    """
    if details.find(call.trailing_metadata(), error_details_pb2.RetryInfo) is not None:
        return False
    text = call.details() or ""
    is_broken = _UNCONNECTED not in text and any(sign in text for sign in _BROKEN)
    return is_broken or bool(call.initial_metadata())


def _invalid_argument(text: str, metadata: _Metadata, target: str) -> LumigradError:
    request = details.find(metadata, error_details_pb2.BadRequest)
    violations = tuple(
        Violation(_argument_of(violation.field), violation.description)
        for violation in (request.field_violations if request else ())
    )
    message = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
    return InvalidArgument(message or text, violations=violations)


def _argument_of(field: str) -> str:
    """Returns the argument that a path in a request was filled from: "gamma" for "spec.spheres.gamma"."""
    for path, replacement in _TO_ARGUMENTS:
        field = path.sub(replacement, field)
    return field


def _resource_exhausted(text: str, metadata: _Metadata, target: str) -> LumigradError:
    info = details.find(metadata, error_details_pb2.RetryInfo)
    if info is None:
        return ResourceExhausted(f"the worker at {target} refused the call: {text}")
    seconds = info.retry_delay.ToMilliseconds() / 1e3
    return ResourceExhausted(
        f"the worker at {target} is busy: {text}; try again in {seconds:g} s", retry_after_s=seconds
    )


def _unavailable(text: str, metadata: _Metadata, target: str) -> LumigradError:
    if details.find(metadata, error_details_pb2.RetryInfo) is not None:
        return Unavailable(f"the worker at {target} cannot answer just now: {text}")
    for sign, advice in _HANDSHAKES.items():
        if sign in text:
            return Unavailable(f"no connection to the worker at {target} ({text}): {advice}", is_lasting=True)
    proxy = proxy_of(Address(target))
    # gRPC names the address that it connected to, which is the proxy's.
    if proxy is not None and "failed to connect" in text and target not in text:
        return Unavailable(
            f"no connection to the worker at {target} through the proxy of {proxy} ({text}); "
            f"add {host_of(target)} to no_proxy to reach it without the proxy"
        )
    reaction = _reaction(text, target) if "failed to connect" in text else None
    if reaction == "hung up":
        return Unavailable(
            f"the worker at {target} ended the connection at once ({text}): if it asks for TLS, {TLS}; "
            f"if for a client's certificate, {CERTIFICATE}"
        )
    if reaction == "silent":
        return Unavailable(
            f"the worker at {target} accepts connections but does not answer ({text}): it is stopped or too busy, "
            f"or something else has this port"
        )
    return Unavailable(f"no worker at {target} ({text}); start one with `lumigrad serve`, or {TARGET}")


_Reaction = Literal["hung up", "silent"]


def _reaction(text: str, target: str) -> _Reaction | None:
    """Returns how the server at the other end reacted to a connection; None if there was none."""
    if any(sign in text for sign in _HUNG_UP):
        return "hung up"
    if any(sign in text for sign in _SILENT):
        return "silent"
    # Another address of localhost may accept connections, although gRPC's error names one that refused.
    host, port = split_target(target)
    return _probed(port) if host == "localhost" and port is not None and "refused" in text else None


def _probed(port: int) -> _Reaction | None:
    """Connects to a port of this machine, and returns the reaction to a connection without TLS."""
    try:
        with socket.create_connection(("localhost", port), _PROBE_S) as probe:
            probe.sendall(_PREFACE)
            first = probe.recv(1)
    except TimeoutError:
        return "silent"
    except OSError as error:
        return "hung up" if isinstance(error, ConnectionResetError) else None
    # A worker with TLS sends an alert, or nothing; one without TLS answers, so it has come back meanwhile.
    return "hung up" if first in (b"", _TLS_ALERT) else None


_TRANSLATIONS: dict[grpc.StatusCode, Callable[[str, _Metadata, str], LumigradError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: _invalid_argument,
    grpc.StatusCode.OUT_OF_RANGE: _invalid_argument,
    grpc.StatusCode.RESOURCE_EXHAUSTED: _resource_exhausted,
    grpc.StatusCode.UNAVAILABLE: _unavailable,
}

# Exceptions and their texts: by the status detail, whose fields become attributes, or else by the status code.
_REPORTED = "the worker at {target} reports: {text}"
_REFUSED = Unauthenticated, "the worker at {target} refused the caller: {text}; " + TOKEN.python
_DETAILS: dict[type, tuple[type[LumigradError], str]] = {
    errors_pb2.SceneNotFound: (SceneNotFound, "the worker at {target} has no scene {scene_id}; put it again"),
    errors_pb2.ContextLost: (
        ContextLost,
        "the worker at {target} no longer has the context {context_id}; render again",
    ),
    errors_pb2.LaneLost: (LaneLost, "the worker at {target} has closed the lane of shared memory"),
    errors_pb2.VersionMismatch: (
        VersionMismatch,
        "scene {scene_id} at {target} has version {actual}, not {expected}: it was updated meanwhile, or "
        "its worker has an older spool; fetch a new handle with Client.get",
    ),
    errors_pb2.TrainingHeld: (TrainingHeld, _REPORTED),
    errors_pb2.TrainingLost: (TrainingLost, _REPORTED),
    errors_pb2.StepMismatch: (StepMismatch, _REPORTED),
    errors_pb2.DeadlineTooNear: (
        DeadlineExceeded,
        "the worker at {target} refused the call: it needs at least {needed_seconds:.3g} s including the queue, and "
        "{left_seconds:.3g} of {timeout_s:g} s are left; " + LARGER_TIMEOUT.python,
    ),
}
_CODES: dict[grpc.StatusCode, tuple[type[LumigradError], str]] = {
    grpc.StatusCode.NOT_FOUND: (SceneNotFound, "the worker at {target} has no such scene; put it again"),
    # A file that the worker reads itself is missing or damaged.
    grpc.StatusCode.FAILED_PRECONDITION: (InvalidArgument, "the worker at {target} refused the call: {text}"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        DeadlineExceeded,
        f"no answer from {{target}} within {{timeout_s:g}} s; {LARGER_TIMEOUT}, or see `lumigrad info` for its queue",
    ),
    grpc.StatusCode.UNAUTHENTICATED: _REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: _REFUSED,
}
