"""The worker's certificate and key, and its clients' certificate authorities, reloaded when the files change."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path

import grpc

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError, FileVersion, file_version


class Certificates:
    """Provides each new connection with the current content of the files."""

    def __init__(self, config: Config) -> None:
        """Read the files; raises ConfigError if one is invalid."""
        self._certificate, self._key, self._client_ca = config.tls_cert, config.tls_key, config.tls_client_ca
        self._lock = threading.Lock()
        self._versions = self._file_versions()
        self._current = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port; with --tls-client-ca clients must present a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._current, self._renewed, require_client_authentication=bool(self._client_ca)
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration if the files have changed, otherwise None. gRPC calls this at each handshake."""
        with self._lock:
            versions = self._file_versions()
            if versions == self._versions:
                return None
            try:
                renewed = self._read()
            except ConfigError as error:
                # Certificate and key are replaced one after the other; the next handshake reads them again.
                logs.event(f"{error}; the previous certificate stays in use", logging.WARNING)
                return None
            if self._file_versions() != versions:
                return None
            self._versions, self._current = versions, renewed
            logs.event("certificate reloaded")
            return renewed

    def _file_versions(self) -> tuple[FileVersion, ...]:
        return tuple(file_version(path) for path in (self._certificate, self._key, self._client_ca))

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = _content("--tls-cert", self._certificate), _content("--tls-key", self._key)
        authorities = _content("--tls-client-ca", self._client_ca) if self._client_ca else None
        _check_pair(self._certificate, self._key)
        if authorities is not None:
            _check_authorities(self._client_ca)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)


def _content(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}") from None


def _check_pair(certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Prevents OpenSSL from prompting for a password on the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"--tls-key: {key} is not the key of the certificate in {certificate}") from None
        raise ConfigError(
            f"--tls-cert, --tls-key: expected a certificate chain and its key without a password, both PEM, got "
            f"{certificate} and {key}"
        ) from None


def _check_authorities(path: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ConfigError(f"--tls-client-ca: expected certificates of authorities, PEM, got {path}") from None
