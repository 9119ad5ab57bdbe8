"""The HTTP port that shows the metrics and the worker's health, with or without TLS."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from lumigrad.server import logs
from lumigrad.server.config import Config, ConfigError
from lumigrad.server.stamp import Stamp, stamp_of

# Who connects and says nothing holds a thread.
_SILENT_SECONDS = 10.0
# For whoever can speak HTTP only, such as the probes of Kubernetes where calls are encrypted.
HEALTH_PATH = "/health"

_Start = Callable[[str, list[tuple[str, str]]], Any]


class MetricsPort:
    """Answers whoever asks for the metrics."""

    def __init__(self, config: Config, registry: CollectorRegistry, is_serving: Callable[[], bool]) -> None:
        """Listen; a port in use is a ConfigError. The files of --tls-cert have been found good already."""
        self._config, self._is_serving = config, is_serving
        self._metrics = make_wsgi_app(registry)
        self._stamps = self._look()
        tls: dict[str, Any] = {}
        if config.metrics_tls:
            tls = {"certfile": config.tls_cert, "keyfile": config.tls_key}
        if config.metrics_tls and config.tls_client_ca:
            tls |= {"client_cafile": config.tls_client_ca, "client_auth_required": True}
        host, port = config.metrics_address, config.metrics_port
        try:
            self._server, _ = start_http_server(port, host, registry, **tls)
        except OSError:
            what = f"--metrics-port: cannot listen on {host}:{port}; is another process using it?"
            raise ConfigError(f"{what} --metrics-port 0 takes a free one") from None
        self._server.set_app(self._answer)
        self._server.RequestHandlerClass.timeout = _SILENT_SECONDS  # type: ignore[attr-defined]
        self.port = int(self._server.server_port)
        socket = self._server.socket
        if isinstance(socket, ssl.SSLSocket):
            # Else the one thread that accepts connections would wait for each caller's handshake.
            socket.do_handshake_on_connect = False  # type: ignore[attr-defined]

    def refresh(self) -> None:
        """Use a certificate that has been replaced; one that does not work changes nothing."""
        socket = self._server.socket
        stamps, config = self._look(), self._config
        if stamps == self._stamps or not isinstance(socket, ssl.SSLSocket):
            return
        try:
            # Into a context of its own first: a key that does not fit would leave half of the pair in the one in use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key, lambda: "")
            socket.context.load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:
            logs.event("the metrics' certificate read before stays in use", logging.WARNING, why=type(error).__name__)
            return
        self._stamps = stamps

    def _answer(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] != HEALTH_PATH:
            page: Iterable[bytes] = self._metrics(environ, start)
            return page
        is_serving = self._is_serving()
        start("200 OK" if is_serving else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"SERVING\n" if is_serving else b"NOT_SERVING\n"]

    def _look(self) -> tuple[Stamp, ...]:
        return stamp_of(self._config.tls_cert), stamp_of(self._config.tls_key)
