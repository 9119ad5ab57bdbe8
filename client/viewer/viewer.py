"""The web server of the viewer, with a session for each browser."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import viser
from viser import _messages

from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.panel import headline
from lumigrad.client.viewer.session import Session

# The browser's near and far planes, relative to the initial distance to the orbited point.
_NEAR, _FAR = 1e-3, 1e3

Begin = Callable[[viser.ClientHandle], Session]


class Viewer:
    """Serves pages until it is closed.

    Attributes:
        server: the viser server, for objects that all browsers show.
        title: title of the page.
    """

    def __init__(self, host: str, port: int, first: Viewpoint) -> None:
        """Starts listening.

        Args:
            host: the address to listen on.
            port: the port to listen on; if it is in use, one of the next ones. 0: any.
            first: initial viewpoint; its `up` is the axis of orbits.
        """
        # Browsers open connections ahead and drop them, which websockets reports with a traceback.
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
        self._host, self.title = host, ""
        self._sessions: dict[int, Session] = {}
        self._lock = threading.Lock()
        with _silence():
            self.server = viser.ViserServer(host=host, port=port, label="Lumigrad", verbose=False)
        self.server.scene.set_up_direction(first.up)
        self.server.gui.configure_theme(dark_mode=True, show_logo=False, show_share_button=False)
        distance = float(np.linalg.norm(first.look_at - first.position))
        camera = self.server.initial_camera
        camera.position, camera.look_at, camera.up, camera.fov = first.position, first.look_at, first.up, first.fov
        camera.near, camera.far = _NEAR * distance, _FAR * distance

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the page."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.server.get_port()}"

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions of connected browsers, in order of connection."""
        with self._lock:
            return tuple(self._sessions.values())

    def show_headline(self, title: str, facts: Mapping[str, str]) -> None:
        """Shows a headline in every panel, and the title in the browser's tab."""
        self.title = title
        script = f"document.title = {json.dumps(title)}"
        self.server.gui._websock_interface.queue_message(_messages.RunJavascriptMessage(script))
        self.server.gui.add_html(headline(title, [f"{name}: {fact}" for name, fact in facts.items()]), order=-1.0)

    def serve(self, begin: Begin) -> None:
        """Starts a session for each browser from now on."""

        @self.server.on_client_connect
        def _(browser: viser.ClientHandle) -> None:
            session = begin(browser)
            with self._lock:
                self._sessions[browser.client_id] = session
            if browser.client_id not in self.server.get_clients():
                self._end(browser)

        @self.server.on_client_disconnect
        def _(browser: viser.ClientHandle) -> None:
            self._end(browser)

    def close(self) -> None:
        """Ends all sessions and the server."""
        for session in self.sessions:
            session.close()
        with _silence():
            self.server.stop()

    def _end(self, browser: viser.ClientHandle) -> None:
        with self._lock:
            session = self._sessions.pop(browser.client_id, None)
        if session is not None:
            session.close()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppresses viser's table, because the command prints the URL."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
