"""Authentication: finds the tenant of a call by its token or its client certificate."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import threading
from collections.abc import Mapping

import grpc

from lumigrad.server.core import logs
from lumigrad.server.core.call import Metadata
from lumigrad.server.core.config import Config, ConfigError, file_version
from lumigrad.server.core.errors import UnauthenticatedError

# Names of tenants appear in logs and in labels of metrics.
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TOKEN = re.compile(r"[\x21-\x7e]{16,1024}")
_MAX_BYTES = 1 << 20
_FORM = (
    'expected "tenant: token" with a token of 16 to 1024 characters without spaces, or "tenant: sha256:" and 64 '
    "hexadecimal digits; make a token with: openssl rand -hex 32"
)


class Tokens:
    """Tenants by token; stores digests of tokens only."""

    def __init__(self, path: str) -> None:
        """Read the file; raises ConfigError if it is invalid."""
        self._path = path
        self._lock = threading.Lock()
        self._version = file_version(path)
        self._tenant_of = _read(path)

    def tenant_of(self, token: str) -> str | None:
        """Return the tenant with this token, or None."""
        self._refresh()
        presented = hashlib.sha256(token.encode()).hexdigest()
        found = None
        # Compare with all tokens, each in constant time, so that the duration reveals nothing.
        for digest, tenant in self._tenant_of.items():
            if hmac.compare_digest(digest, presented):
                found = tenant
        return found

    def _refresh(self) -> None:
        version = file_version(self._path)
        if version == self._version:
            return
        with self._lock:
            if version == self._version:
                return
            self._version = version
            try:
                self._tenant_of = _read(self._path)
            except ConfigError as error:
                # A half-written file must neither lock tenants out nor admit anyone.
                logs.event(f"{error}; the previous tokens stay valid", logging.ERROR)
            else:
                logs.event("tokens reloaded", tokens=len(self._tenant_of))


def _read(path: str) -> Mapping[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--tokens-file: cannot read {path}: {reason}") from None
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"--tokens-file: expected {path} to have at most {_MAX_BYTES} characters")
    tenant_of: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        tenant, digest = _parsed(content, f"--tokens-file: line {number} of {path}")
        if tenant_of.setdefault(digest, tenant) != tenant:
            raise ConfigError(f"--tokens-file: line {number} of {path}: another tenant above has the same token")
    if not tenant_of:
        raise ConfigError(f"--tokens-file: {path} has no token, so all calls would be refused; {_FORM}")
    return tenant_of


def _parsed(line: str, where: str) -> tuple[str, str]:
    """Parse a line into tenant and digest. Errors do not quote the line, which may contain a token."""
    tenant, colon, secret = (part.strip() for part in line.partition(":"))
    if not colon:
        raise ConfigError(f"{where}: {_FORM}")
    if not _TENANT.fullmatch(tenant):
        raise ConfigError(f"{where}: expected a tenant's name of up to 64 letters, digits and ._-")
    digest = _DIGEST.fullmatch(secret.lower())
    if digest:
        return tenant, digest[1]
    if secret.startswith("sha256:") or not _TOKEN.fullmatch(secret):
        raise ConfigError(f"{where}: {_FORM}")
    return tenant, hashlib.sha256(secret.encode()).hexdigest()


_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]{0,63}")
_SUBJECT = "x509_subject"


class Authentication:
    """Finds the tenants of calls."""

    def __init__(self, tokens: Tokens | None) -> None:
        """Find tenants by `tokens`, or without them by the certificates of clients."""
        self._tokens = tokens

    def tenant_of(self, context: grpc.ServicerContext) -> str:
        """Return the tenant of a call; raises UnauthenticatedError if it has none."""
        if self._tokens is None:
            return _by_certificate(context)
        return _by_token(self._tokens, context.invocation_metadata() or ())

    def check(self, tenant: str, metadata: Metadata) -> None:
        """Raise UnauthenticatedError if a call of this tenant with this metadata would not be admitted again."""
        # A certificate is valid as long as its connection.
        if self._tokens is not None and _by_token(self._tokens, metadata) != tenant:
            raise UnauthenticatedError("the token is another tenant's now")


def _by_token(tokens: Tokens, metadata: Metadata) -> str:
    given = [value for key, value in metadata if key == "authorization"]
    if len(given) != 1 or not isinstance(given[0], str):
        raise UnauthenticatedError('expected a bearer token, as metadata "authorization: Bearer TOKEN"')
    scheme, _, token = given[0].partition(" ")
    if scheme.lower() != "bearer":
        raise UnauthenticatedError('expected "authorization" of the form "Bearer TOKEN"')
    tenant = tokens.tenant_of(token.strip())
    if tenant is None:
        raise UnauthenticatedError("the token is not valid here")
    return tenant


def _by_certificate(context: grpc.ServicerContext) -> str:
    """Return the subject of the client's certificate, or a digest of it if it is not valid as a tenant's name.

    TLS has verified the certificate in the handshake.
    """
    subject = b"".join(context.auth_context().get(_SUBJECT, ()))
    if not subject:
        raise UnauthenticatedError("the client's certificate has no subject")
    text = subject.decode("ascii", "replace")
    return text if _PLAIN.fullmatch(text) else "subject-" + hashlib.sha256(subject).hexdigest()[:32]


def authentication_of(config: Config) -> Authentication | None:
    """Return the configured authentication, tokens before certificates; None if all callers are one tenant."""
    if not config.has_tenants:
        return None
    return Authentication(Tokens(config.tokens_file) if config.tokens_file else None)
