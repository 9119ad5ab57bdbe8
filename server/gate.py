"""Who calls: the tenant behind a token or a client's certificate."""

from __future__ import annotations

import hashlib
import re
from typing import Protocol

import grpc

from lumigrad.server.config import Config
from lumigrad.server.errors import UnauthenticatedError
from lumigrad.server.tokens import Tokens

# The one tenant of a worker that asks nobody who they are.
EVERYBODY = ""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]{0,63}")
_SUBJECT = "x509_subject"


class Gate(Protocol):
    """Tells tenants apart."""

    def tenant_of(self, context: grpc.ServicerContext) -> str:
        """The tenant of a call; an UnauthenticatedError if it may not be made."""


class OpenGate:
    """Lets everybody in, as one tenant."""

    def tenant_of(self, _: grpc.ServicerContext) -> str:
        """The same for all."""
        return EVERYBODY


class TokenGate:
    """Asks for a bearer token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def tenant_of(self, context: grpc.ServicerContext) -> str:
        """Whose token it is."""
        given = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        if len(given) != 1 or not isinstance(given[0], str):
            raise UnauthenticatedError('expected a bearer token, as metadata "authorization: Bearer TOKEN"')
        scheme, _, token = given[0].partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError('expected "authorization" of the form "Bearer TOKEN"')
        tenant = self._tokens.tenant_of(token.strip())
        if tenant is None:
            raise UnauthenticatedError("the token is not valid here")
        return tenant


class CertificateGate:
    """Goes by the client's certificate, which the handshake has verified."""

    def tenant_of(self, context: grpc.ServicerContext) -> str:
        """Its subject; of one with unusual letters, a digest."""
        subject = b"".join(context.auth_context().get(_SUBJECT, ()))
        if not subject:
            raise UnauthenticatedError("the client's certificate has no subject")
        text = subject.decode("ascii", "replace")
        return text if _PLAIN.fullmatch(text) else "subject-" + hashlib.sha256(subject).hexdigest()[:32]


def gate_of(config: Config) -> Gate:
    """As the worker was told; where tokens and certificates are asked for, the token tells the tenant."""
    if config.tokens_file:
        return TokenGate(Tokens(config.tokens_file))
    return CertificateGate() if config.tls_client_ca else OpenGate()
