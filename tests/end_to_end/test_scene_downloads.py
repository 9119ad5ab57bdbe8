"""Scenes that the worker downloads: files below the operator's https: addresses, by address and digest."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.errors import DeadlineExceeded, InvalidArgument, LumigradError
from support.deploy.certificates import Authority
from support.gaussians.clouds import post
from support.workers.worker import worker

CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), (0, -1, 0), width=48, height=32)
OPTIONS = ("--device", "cpu", "--max-payload-mib", "1")


@dataclass
class Site:
    """A server of files over https, and the paths that it was asked for."""

    root: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)
    # Answers to slow.ply wait for it.
    may_answer: threading.Event = field(default_factory=threading.Event)

    def address(self, path: str, file: str = "") -> str:
        digest = hashlib.sha256((self.root / (file or path)).read_bytes()).hexdigest()
        return f"{self.url}/{path}#sha256={digest}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, site: Site, *arguments: object) -> None:
        self.site = site
        super().__init__(*arguments, directory=str(site.root))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.site.asked.append(self.path)
        moved = {"/scenes/near.ply": "/scenes/post.ply", "/scenes/far.ply": "/private/post.ply"}.get(self.path)
        if self.path == "/scenes/slow.ply":
            assert self.site.may_answer.wait(60)
        if moved is None:
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("Location", self.site.url + moved)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    for name in ("scenes", "private"):
        (folder / name).mkdir()
        post().save(folder / name / "post.ply")
    (folder / "scenes" / "broken.ply").write_bytes(b"ply\nnothing")
    (folder / "scenes" / "large.ply").write_bytes(bytes((1 << 20) + 1))
    identity = Authority(folder).sign("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    found = Site(folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, found)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        found.url = f"https://localhost:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[Client]:
    environment = {**os.environ, "SSL_CERT_FILE": str(site.root / "authority.pem")}
    options = (*OPTIONS, "--scene-urls", f"https://example.com/other, {site.url}/scenes")
    with worker(*options, environment=environment) as process, Client(process.target) as connected:
        yield connected


def picture(client: Client, scene: object) -> np.ndarray:
    return client.render(scene, CAMERA).color  # type: ignore[arg-type]


def test_a_file_is_downloaded_once_and_again_where_it_is_gone(client: Client, site: Site) -> None:
    address = site.address("scenes/post.ply")
    site.asked.clear()
    handle = client.put(address)
    assert (handle.kind, handle.count, handle.name) == ("gaussians", len(post()), address)
    expected = picture(client, client.put(Gaussians.load(site.root / "scenes" / "post.ply")))
    assert np.array_equal(picture(client, handle), expected) and expected.std() > 0.01
    assert client.put(address) == handle
    frame = client.render(handle, CAMERA, retain=True)
    assert np.any(frame.backward(np.ones_like(frame.color))["means"])
    assert site.asked == ["/scenes/post.ply"]
    for stored in client.list():
        if stored.scene_id:
            client.delete(stored.scene_id)
    assert np.array_equal(picture(client, handle), expected)
    assert site.asked == 2 * ["/scenes/post.ply"]


def test_another_file_than_that_of_the_digest_is_refused(client: Client, site: Site) -> None:
    file = site.root / "scenes" / "changing.ply"
    post().save(file)
    address = site.address("scenes/changing.ply")
    client.put(address)
    file.write_bytes(file.read_bytes() + b"\n")
    # The content of this address stays what it was, for as long as the worker has it.
    assert client.put(address).count == len(post())
    with pytest.raises(LumigradError, match="expected a file with the SHA-256 digest 0000"):
        client.put(f"{site.url}/scenes/changing.ply#sha256={64 * '0'}")


def test_redirections_lead_to_allowed_addresses_alone(client: Client, site: Site) -> None:
    assert client.put(site.address("scenes/near.ply", "scenes/post.ply")).count == len(post())
    site.asked.clear()
    with pytest.raises(LumigradError, match="redirects to an address that is not below --scene-urls"):
        client.put(site.address("scenes/far.ply", "scenes/post.ply"))
    assert site.asked == ["/scenes/far.ply"]


def test_a_download_outlives_the_call_that_began_it(client: Client, site: Site) -> None:
    post().save(site.root / "scenes" / "slow.ply")
    address = site.address("scenes/slow.ply")
    site.asked.clear()
    with pytest.raises(DeadlineExceeded):
        client.put(address, timeout_s=1.0)
    # Other scenes are stored and drawn meanwhile.
    assert picture(client, client.put(post())).std() > 0.01
    site.may_answer.set()
    assert client.put(address).count == len(post())
    assert site.asked == ["/scenes/slow.ply"]


@pytest.mark.parametrize(
    "address",
    [
        "{url}/private/post.ply",
        "{url}/scenes/../private/post.ply",
        "{url}/scenes/%2e%2e/private/post.ply",
        "{url}/scenes/%252e%252e/private/post.ply",
        "{url}/scenes/..%5cprivate/post.ply",
        "{url}/scenes-2/post.ply",
        "{url}/scenes/scene.gltf",
        "https://user@localhost/scenes/post.ply",
        "https://localhost/scenes/post.ply",
        "https://localhost:x/scenes/post.ply",
        "https://[/scenes/post.ply",
        "https://169.254.169.254/scenes/post.ply",
    ],
)
def test_every_other_address_is_refused_and_nobody_is_asked(client: Client, site: Site, address: str) -> None:
    site.asked.clear()
    with pytest.raises(InvalidArgument, match=r"name: expected the https: address of a \.ply, .*'s --scene-urls"):
        client.put(f"{address.replace('{url}', site.url)}#sha256={64 * '0'}")
    assert not site.asked


def test_what_cannot_be_read_is_told(client: Client, site: Site) -> None:
    for name, text in (
        ("none.ply", "cannot read it: 404"),
        ("large.ply", "at most 1,048,576 bytes"),
        ("broken.ply", r"scene\.ply"),
    ):
        address = site.address(f"scenes/{name}", "scenes/post.ply" if name == "none.ply" else "")
        with pytest.raises(LumigradError, match=text) as refused:
            client.put(address)
        assert "/tmp" not in str(refused.value)
    with pytest.raises(InvalidArgument, match="name: expected an address that ends in #sha256="):
        client.put(f"{site.url}/scenes/post.ply")


def test_a_server_whose_certificate_nobody_vouches_for_is_not_trusted(site: Site) -> None:
    with worker(*OPTIONS, "--scene-urls", site.url) as process, Client(process.target) as client:
        with pytest.raises(LumigradError, match="CERTIFICATE_VERIFY_FAILED"):
            client.put(site.address("scenes/post.ply"))
        with pytest.raises(InvalidArgument, match="name: expected a worker with --scene-files"):
            client.put("file:///etc/scene.ply")
