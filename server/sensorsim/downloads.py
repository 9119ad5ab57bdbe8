"""Files of Gaussians that callers store by `https:` address, below addresses that the operator allows."""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import SplitResult, unquote, urlsplit

from lumigrad.protos.drive.manifest import GaussianFile, Manifest
from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.core.call import Allocate, Reserve
from lumigrad.server.core.config import ConfigError
from lumigrad.server.core.errors import SceneFilesBusyError, SceneFilesError
from lumigrad.server.core.limits import require
from lumigrad.server.sensorsim.addresses import SUFFIXES
from lumigrad.server.sensorsim.catalog import DriveScene, gaussian_reader
from lumigrad.server.storage.named import NamedScene
from lumigrad.v1 import scene_pb2

_OPTION = "--scene-urls"
_ADDRESS_LIMIT = f"the https: address of a {', '.join(SUFFIXES)} below one of the worker's {_OPTION}"
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})")
_DIGEST_LIMIT = "an address that ends in #sha256= and the 64 digits that `sha256sum` prints for the file"
_SHOWN = 200
# The number of addresses whose content is remembered; a file is downloaded again after this many others.
_MOST_KNOWN = 1024
_BLOCK_BYTES = 1 << 20
# The longest wait for the next bytes, and for the whole file.
_SILENCE_S, _LONGEST_S = 30.0, 1800.0
# Answers of servers that may have the file a little later.
_PASSING = {408, 425, 429, 500, 502, 503, 504}


class SceneDownloads:
    """The files below a few https: addresses."""

    def __init__(self, roots: Sequence[str], read: Callable[[Path], Any], most_bytes: int) -> None:
        """`read` reads a file of at most `most_bytes`."""
        self._roots = [urlsplit(root if root.endswith("/") else f"{root}/") for root in roots]
        self._read, self._most_bytes = read, most_bytes
        self._opener = urllib.request.build_opener(_Redirects(self._is_below))
        # The file at an address never changes, because its digest is part of the address.
        self.at = lru_cache(_MOST_KNOWN)(self._scene)

    @staticmethod
    def open(roots: str, most_bytes: int) -> SceneDownloads:
        """Serve addresses, separated by commas; raises ConfigError if one is not an https: address."""
        found = [root.strip() for root in roots.split(",")]
        for root in found:
            try:
                parts = urlsplit(root)
                is_plain = parts.scheme == "https" and parts.hostname and parts.port != 0 and not {*root} & {*"?#"}
            except ValueError:
                is_plain = False
            if not is_plain or not _is_canonical(parts):
                raise ConfigError(f"{_OPTION}: expected https://HOST/FOLDER, several separated by commas, got {root!r}")
        return SceneDownloads(found, gaussian_reader(_OPTION), most_bytes)

    def _scene(self, address: str) -> NamedScene:
        """Return the scene at an address."""
        shown = address[:_SHOWN]
        try:
            parts = urlsplit(address)
        except ValueError:
            parts = urlsplit("")
        suffix = PurePosixPath(parts.path).suffix.lower()
        require(self._is_below(parts) and suffix in SUFFIXES, "name", _ADDRESS_LIMIT, shown)
        digest = _DIGEST.fullmatch(parts.fragment)
        require(digest is not None, "name", _DIGEST_LIMIT, shown)
        assert digest is not None
        url = parts._replace(fragment="").geturl()

        def load(allocate: Allocate, reserve: Reserve) -> tuple[scene_pb2.Scene, PayloadReader]:
            # The file is unnamed, so that nothing of it stays if the process is killed; readers open it through a link.
            with tempfile.TemporaryFile() as content, tempfile.TemporaryDirectory(prefix="lumigrad-") as folder:
                self._download(url, digest[1], content, reserve)
                file = Path(folder) / f"scene{suffix}"
                file.symlink_to(f"/proc/self/fd/{content.fileno()}")
                only = (GaussianFile(file, file.name),)
                manifest = Manifest(file.parent, url, None, (0.0, 0.0, 0.0), only, (), (), (), ())
                return DriveScene(manifest, self._read).load(allocate, reserve)

        return NamedScene(address, load, lambda *_: None, is_remote=True)

    def _is_below(self, parts: SplitResult) -> bool:
        """Return whether an address is below one of those that the operator allows."""
        try:
            place = parts.scheme, parts.hostname, parts.port, parts.username
        except ValueError:
            return False
        return _is_canonical(parts) and any(
            place == (root.scheme, root.hostname, root.port, root.username) and parts.path.startswith(root.path)
            for root in self._roots
        )

    def _download(self, url: str, digest: str, to: IO[bytes], reserve: Reserve) -> None:
        """Download an address to a file, reserving its bytes; raises SceneFilesError unless it has this digest."""
        try:
            with self._opener.open(url, timeout=_SILENCE_S) as answer:
                found = self._copied(url, answer, to, reserve)
            to.flush()
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = f"{error.code} {error.reason}" if isinstance(error, urllib.error.HTTPError) else error
            kind = SceneFilesBusyError if _is_passing(error) else SceneFilesError
            raise kind(f"{url[:_SHOWN]}: the worker cannot read it: {why}") from error
        if found != digest:
            raise SceneFilesError(f"{url[:_SHOWN]}: expected a file with the SHA-256 digest {digest}, got {found}")

    def _copied(self, url: str, answer: Any, to: IO[bytes], reserve: Reserve) -> str:
        """Copy an answer, and return its digest."""
        until, size, digest = time.monotonic() + _LONGEST_S, 0, hashlib.sha256()
        announced, counted = int(answer.headers.get("Content-Length") or 0), 0
        while True:
            # A single read: if this waited for a whole block, a server that sends single bytes could exceed the time
            # limit.
            block = answer.read1(_BLOCK_BYTES)
            size += len(block)
            known = max(size, announced)
            if known > self._most_bytes:
                raise SceneFilesError(f"{url[:_SHOWN]}: expected at most {self._most_bytes:,} bytes, got more")
            if known > counted:
                reserve(known - counted)
                counted = known
            if not block and size < announced:
                raise ConnectionError(f"the connection ended after {size:,} of {announced:,} bytes")
            if not block:
                return digest.hexdigest()
            if time.monotonic() > until:
                raise TimeoutError(f"it takes more than {_LONGEST_S:g} s")
            digest.update(block)
            to.write(block)


def _is_passing(error: Exception) -> bool:
    """Return whether another attempt can read an address: its server is busy or away, or the connection broke."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in _PASSING
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    is_unknown = isinstance(why, socket.gaierror) and why.errno == socket.EAI_AGAIN
    return is_unknown or isinstance(why, ConnectionError | TimeoutError | http.client.IncompleteRead)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections only to addresses that the operator allows."""

    def __init__(self, is_allowed: Callable[[SplitResult], bool]) -> None:
        self._is_allowed = is_allowed

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not self._is_allowed(urlsplit(newurl)):
            raise urllib.error.URLError(f"it redirects to an address that is not below {_OPTION}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_canonical(parts: SplitResult) -> bool:
    """Return whether servers see the path as written, without "." or ".." segments, escaped or not."""
    once = unquote(parts.path)
    readings = [path.replace("\\", "/").split("/") for path in (once, unquote(once))]
    seen = parts.path + parts.query
    is_plain = seen.isascii() and seen.isprintable() and " " not in seen and parts.username is None
    # Some servers ignore what follows a semicolon in a segment.
    return is_plain and not any(step.partition(";")[0] in (".", "..") for steps in readings for step in steps)
