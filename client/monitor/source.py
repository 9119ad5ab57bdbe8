"""Where the metrics of a worker come from."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from urllib.parse import urlsplit, urlunsplit

from lumigrad.client.errors import InvalidArgument, Unavailable
from lumigrad.client.worker_info import WorkerInfo

_TIMEOUT_S = 3.0
# Beyond what any worker shows.
_MOST_BYTES = 16 << 20
_PATH = "/metrics"


class Unreadable(Unavailable):
    """There are no metrics to be had just now."""


class Source:
    """Reads the metrics of one worker."""

    def __init__(self, address: str, ask: Callable[[], WorkerInfo], tls: ssl.SSLContext | None = None) -> None:
        """Sets up, without connecting.

        Args:
            address: a URL, or the target of a worker, which is asked for it.
            ask: asks that worker what it is.
            tls: whom to trust where the URL begins with https.
        """
        self.address = address
        self._url = _url(address) if "://" in address else None
        self._ask = ask
        self._is_given = self._url is not None
        # Metrics are read inside of a network, not through a proxy for the web.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )

    def read(self) -> str:
        """The page of metrics; a LumigradError if there is none just now."""
        url = self._url or self._asked()
        # The next worker there may have another port for them.
        self._url = url if self._is_given else None
        try:
            with self._opener.open(url, timeout=_TIMEOUT_S) as reply:
                text: str = reply.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise Unreadable(f"no metrics at {url}: {_why(error)}") from error
        if "\nlumigrad_up " not in text:
            raise Unreadable(f"expected the metrics of a worker at {url}, got something else")
        self._url = url
        return text

    def _asked(self) -> str:
        url = self._ask().metrics_url
        if url is None:
            raise Unreadable(
                f"{self.address} does not tell where its metrics are; name their URL, such as http://HOST:9464/metrics"
            )
        return url


def _why(error: Exception) -> str:
    if isinstance(error, HTTPException):
        # What was answered instead may be anything.
        return "what answers there does not speak HTTP"
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason)


def _url(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument.of("target", f"expected HOST:PORT, or http(s)://HOST:PORT/metrics, got {address!r}")
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") or _PATH))
