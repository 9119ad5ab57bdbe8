"""Scenes that the worker downloads: files below the operator's https: addresses, by address and digest."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import http.server
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from lumigrad.client.aio import AsyncClient
from lumigrad.client.errors import DeadlineExceeded, InvalidArgument, LumigradError, ResourceExhausted, Unavailable
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2
from support.calls.raw_calls import scene_of, sphere_cloud
from support.deploy.certificates import Authority
from support.gaussians.clouds import post
from support.workers.slow_render import wait_until
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker

CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), (0, -1, 0), width=48, height=32)
OPTIONS = ("--device", "cpu", "--max-payload-mib", "1")
LIMITS = ("--transit-mib", "8", "--tenant-transit-mib", "2")
REFUSED = r"you have \d+ of 2097152 bytes of payloads in progress \(--tenant-transit-mib\)"
HALVES = ("/scenes/half.ply", "/scenes/unknown.ply")
HALF_BYTES = 500_000
TOKENS = {"one": "a-token-of-the-first", "other": "a-token-of-the-other"}


@dataclass
class Site:
    """A server of files over https, and the paths that it was asked for."""

    root: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)
    # The second parts of answers with HALVES and slow.ply wait for this event.
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
        if self.path == "/scenes/busy.ply" and self.site.asked.count(self.path) % 2:
            self.send_error(503)
            return
        if self.path == "/scenes/cut.ply" and self.site.asked.count(self.path) % 2:
            content = (self.site.root / self.path[1:]).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:-100])
            return
        if self.path in (*HALVES, "/scenes/slow.ply"):
            content = (self.site.root / self.path[1:]).read_bytes()
            self.send_response(200)
            if self.path != "/scenes/unknown.ply":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            at = min(HALF_BYTES, len(content) // 2)
            with contextlib.suppress(OSError):
                self.wfile.write(content[:at])
                # A worker gives up after half a minute without a byte.
                while not self.site.may_answer.wait(5):
                    self.wfile.write(content[at : at + 1])
                    at += 1
                self.wfile.write(content[at:])
            return
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
    for path in HALVES:
        post(15_000).save(folder / path[1:])
    for count, name in ((2, "busy"), (3, "cut")):
        post(count).save(folder / "scenes" / f"{name}.ply")
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
    options = (*OPTIONS, "--scene-urls", f"https://example.com/other, {site.url}/scenes")
    with worker(*options, variables=trusting(site)) as process, Client(process.target) as connected:
        yield connected


def trusting(site: Site) -> dict[str, str]:
    """Variables of a worker that trusts the site."""
    return {"SSL_CERT_FILE": str(site.root / "authority.pem")}


@pytest.fixture
def halfway(site: Site) -> Iterator[None]:
    """Answers with HALVES and slow.ply stop in the middle until `site.may_answer`."""
    site.may_answer.clear()
    yield
    site.may_answer.set()


def taken(process: WorkerProcess, tenant: str) -> float:
    """The bytes of the payloads in progress of a tenant that has made a call."""
    return process.metric("lumigrad_tenant_taken", resource="transit", tenant=tenant)


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
    # The content of this address stays the same for as long as the worker has it.
    assert client.put(address).count == len(post())
    with pytest.raises(LumigradError, match="expected a file with the SHA-256 digest 0000"):
        client.put(f"{site.url}/scenes/changing.ply#sha256={64 * '0'}")


def test_redirections_lead_to_allowed_addresses_alone(client: Client, site: Site) -> None:
    assert client.put(site.address("scenes/near.ply", "scenes/post.ply")).count == len(post())
    site.asked.clear()
    with pytest.raises(LumigradError, match="redirects to an address that is not below --scene-urls"):
        client.put(site.address("scenes/far.ply", "scenes/post.ply"))
    assert site.asked == ["/scenes/far.ply"]


def test_a_download_outlives_the_call_that_began_it(client: Client, site: Site, halfway: None) -> None:
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
        ("broken.ply", r"broken\.ply: expected a PLY header"),
    ):
        address = site.address(f"scenes/{name}", "scenes/post.ply" if name == "none.ply" else "")
        with pytest.raises(LumigradError, match=text) as refused:
            client.put(address)
        assert "/tmp" not in str(refused.value)
    with pytest.raises(InvalidArgument, match="name: expected an address that ends in #sha256="):
        client.put(f"{site.url}/scenes/post.ply")


@pytest.mark.parametrize(("name", "why"), [("busy", "503"), ("cut", "the connection ended after")])
def test_a_server_that_fails_for_a_moment_is_asked_again(client: Client, site: Site, name: str, why: str) -> None:
    address, path = site.address(f"scenes/{name}.ply"), f"/scenes/{name}.ply"
    site.asked.clear()
    said = rf"cannot answer just now: https://localhost:\d+{path}: the worker cannot read it: {why}"
    with Client(client.target, retry_s=0) as hasty, pytest.raises(Unavailable, match=said):
        hasty.put(address)
    site.asked.clear()
    client.put(address)
    assert site.asked == [path, path]


def test_a_server_whose_certificate_nobody_vouches_for_is_not_trusted(site: Site) -> None:
    with worker(*OPTIONS, "--scene-urls", site.url) as process, Client(process.target) as client:
        with pytest.raises(LumigradError, match="CERTIFICATE_VERIFY_FAILED"):
            client.put(site.address("scenes/post.ply"))
        with pytest.raises(InvalidArgument, match="name: expected a worker with --scene-files"):
            client.put("file:///etc/scene.ply")


@contextlib.contextmanager
def stalled_puts(process: WorkerProcess, count: int, beside: int = 0) -> Iterator[None]:
    """Puts of the first tenant, each waiting for a payload of 700 KB; `beside` are the tenant's other bytes."""
    over = threading.Event()

    def frames() -> Iterator[Frame[scene_pb2.PutRequest]]:
        payload = PayloadWriter()
        scene = scene_of(sphere_cloud(25_000), payload)
        yield Frame(scene_pb2.PutRequest(scene=scene, payload_bytes=payload.length))
        over.wait(250)

    with process.channel() as channel:
        put = tenant_client(channel, TOKENS["one"]).scene_stub.Put
        calls = [put.future(frames(), timeout=250) for _ in range(count)]
        wait_until(lambda: taken(process, "one") >= beside + count * 700_000, "payloads that do not come")
        yield
        for call in calls:
            call.cancel()
        over.set()
        wait_until(lambda: taken(process, "one") < beside + 700_000, "the end of these payloads")


@pytest.mark.parametrize(("path", "how"), [(HALVES[0], "overdue"), (HALVES[1], "overdue"), (HALVES[0], "cancelled")])
def test_a_download_counts_as_a_payload_of_its_tenant_until_it_ends(
    path: str, how: str, site: Site, halfway: None
) -> None:
    """The download counts even after its call is over. Other tenants have their own share."""
    address, size = site.address(path[1:]), (site.root / path[1:]).stat().st_size
    counted = range(size, size + 1) if path == HALVES[0] else range(HALF_BYTES, size)
    with (
        worker(*OPTIONS, *LIMITS, "--scene-urls", site.url, tokens=TOKENS, variables=trusting(site)) as process,
        Client(process.target, token=TOKENS["one"], retry_s=0) as one,
        Client(process.target, token=TOKENS["other"], retry_s=0) as other,
    ):
        one.put(post())
        # The bytes of that put are given back after its reply.
        wait_until(lambda: taken(process, "one") == 0, "the end of the put")
        if how == "cancelled":
            asyncio.run(cancelled_put(process, address))
        # On a busy machine a deadline may pass before anything is downloaded.
        while not taken(process, "one"):
            with pytest.raises(DeadlineExceeded):
                one.put(address, timeout_s=2.0)
        wait_until(lambda: taken(process, "one") in counted, "bytes of the download")
        with stalled_puts(process, 1, counted.start), pytest.raises(ResourceExhausted, match=REFUSED):
            one.put(post(18_000))
        assert other.put(post(18_000)).count == 18_000
        site.may_answer.set()
        assert one.put(address).count == 15_000
        wait_until(lambda: taken(process, "one") == 0, "the end of the download")
        assert one.put(post(18_000)).count == 18_000


async def cancelled_put(process: WorkerProcess, address: str) -> None:
    async with AsyncClient(process.target, token=TOKENS["one"]) as client:
        task = asyncio.create_task(client.put(address))
        while not taken(process, "one"):
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_download_for_which_there_is_no_room_is_refused(site: Site) -> None:
    site.may_answer.set()
    with (
        worker(*OPTIONS, *LIMITS, "--scene-urls", site.url, tokens=TOKENS, variables=trusting(site)) as process,
        Client(process.target, token=TOKENS["one"], retry_s=0) as one,
        Client(process.target, token=TOKENS["other"], retry_s=0) as other,
    ):
        one.put(post())
        for path in HALVES:
            with stalled_puts(process, 2), pytest.raises(ResourceExhausted, match=REFUSED):
                one.put(site.address(path[1:]))
            assert other.put(site.address(path[1:])).count == 15_000
            assert one.put(site.address(path[1:])).count == 15_000


def test_nothing_of_a_download_is_counted_after_its_worker_was_killed(
    site: Site, halfway: None, tmp_path: Path
) -> None:
    address = site.address("scenes/half.ply")
    options = (*OPTIONS, "--scene-urls", f"{site.url}/scenes", "--crash-seconds", "0.1")
    variables = {**trusting(site), "TMPDIR": str(tmp_path)}
    with (
        worker(*options, tokens=TOKENS, variables=variables, supervised=True) as process,
        Client(process.target, token=TOKENS["one"], retry_s=60, timeout_s=150) as one,
        ThreadPoolExecutor(1) as threads,
    ):
        one.put(post())
        found = threads.submit(one.put, address)
        wait_until(lambda: taken(process, "one") > HALF_BYTES, "bytes of the download")
        os.kill(process.worker_pid, signal.SIGKILL)
        process.wait_for_log("worker started", count=2)
        site.may_answer.set()
        assert found.result(200).count == 15_000
        wait_until(lambda: taken(process, "one") == 0, "the end of the download")
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]
