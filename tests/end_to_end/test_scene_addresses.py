"""Scenes that the worker reads itself: files in the folder that the operator serves, by their addresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Frame, Gaussians
from lumigrad.client.errors import InvalidArgument, LumigradError, SceneNotFound
from lumigrad.client.rendering import batch
from lumigrad.client.rendering.request import request_of
from support.gaussians.clouds import post
from support.workers.worker import worker

CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), (0, -1, 0), width=48, height=32)
OPTIONS = ("--device", "cpu", "--max-payload-mib", "1")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files, beside one that is not served."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("scenes", "private", "scenes-2"):
        (folder / name).mkdir()
        post().save(folder / name / "post.ply")
    (folder / "scenes" / "link.ply").symlink_to(folder / "private" / "post.ply")
    (folder / "scenes" / "broken.ply").write_bytes(b"ply\nnothing")
    (folder / "scenes" / "large.ply").write_bytes(bytes((1 << 20) + 1))
    return folder


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[Client]:
    with worker(*OPTIONS, "--scene-files", str(root / "scenes")) as process, Client(process.target) as connected:
        yield connected


def picture(client: Client, scene: object) -> np.ndarray:
    return client.render(scene, CAMERA).color  # type: ignore[arg-type]


def test_a_file_is_stored_by_its_address_and_read_again_where_it_is_gone(client: Client, root: Path) -> None:
    address = (root / "scenes" / "post.ply").as_uri()
    handle = client.put(address)
    assert (handle.kind, handle.count, handle.name) == ("gaussians", len(post()), address)
    expected = picture(client, client.put(Gaussians.load(root / "scenes" / "post.ply")))
    assert np.array_equal(picture(client, handle), expected) and expected.std() > 0.01
    # The worker has the content under an id of its own, which others may delete.
    assert [stored.name for stored in client.list() if stored.content_hash == handle.content_hash] == [address]
    for stored in client.list():
        if stored.scene_id:
            client.delete(stored.scene_id)
    assert np.array_equal(picture(client, handle), expected)


def test_the_reply_to_a_render_of_a_file_is_as_short_as_that_of_its_scene(client: Client, root: Path) -> None:
    file = root / "scenes" / "post.ply"
    most, expected = (request_of(scene, CAMERA).most_reply_bytes for scene in (client.put(file.as_uri()), post()))
    assert most == expected < float("inf")
    assert client.render(client.put(file.as_uri()), CAMERA).color.nbytes <= most


def test_addresses_may_have_any_characters(client: Client, root: Path) -> None:
    file = root / "scenes" / "größer als 100 %.ply"
    post().save(file)
    addresses = file.as_uri(), f"file://{file}".replace("%", "%25")
    encoded, plain = (client.put(address) for address in addresses)
    assert encoded == plain and np.array_equal(picture(client, encoded), picture(client, plain))
    for address in ("file:///a\nb.ply", "file:///a\0b.ply", "file:///\udcff.ply"):
        with pytest.raises(InvalidArgument, match="name: expected the file: address"):
            client.put(address)


def test_a_file_is_drawn_and_not_changed(client: Client, root: Path) -> None:
    handle = client.put((root / "scenes" / "post.ply").as_uri())
    for change in (
        lambda: client.update(handle, opacities=post().opacities),
        lambda: client.delete(handle),
        lambda: client.trainer(handle, [CAMERA], [np.zeros((32, 48, 3), np.uint8)]),
    ):
        with pytest.raises(InvalidArgument, match=r"expected a scene that was sent, got file:.* Gaussians\.load"):
            change()


def test_items_of_a_batch_name_the_file_at_once(client: Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = client.put((root / "scenes" / "post.ply").as_uri())
    # Items whose scene is not found are rendered alone.
    monkeypatch.setattr(batch, "_repaired", lambda *_: pytest.fail("an item was not rendered in the batch"))
    (frame,) = client.render_batch([(handle, CAMERA)])
    assert not isinstance(frame, LumigradError) and np.array_equal(frame.color, picture(client, handle))


def test_a_handle_means_the_file_as_it_is(client: Client, root: Path) -> None:
    file = root / "scenes" / "changing.ply"
    post().save(file)
    handle = client.put(file.as_uri())
    before = picture(client, handle)
    made = post()
    Gaussians(made.means[::2], made.quats[::2], made.scales[::2], made.opacities[::2], colors=made.colors[::2]).save(
        file
    )
    assert not np.array_equal(picture(client, handle), before)
    assert client.put(file.as_uri()).count == len(made.means[::2])


def half(first: int) -> Gaussians:
    """Every second Gaussian of the post."""
    made, part = post(), slice(first, None, 2)
    return Gaussians(
        made.means[part], made.quats[part], made.scales[part], made.opacities[part], colors=made.colors[part]
    )


def replace(file: Path, number: int) -> None:
    new = file.with_name("next.ply")
    half(number).save(new)
    # Files of one size that are written within a tick of the clock would have the same state.
    os.utime(new, (number, number))
    os.replace(new, file)


def test_no_call_or_frame_shows_a_file_that_was_replaced(root: Path) -> None:
    file = root / "scenes" / "replaced.ply"
    # Without the lookup of files for each call, repeated calls would draw the same content for an hour.
    before = ("from lumigrad.server.rpc import prepared_calls", "prepared_calls._LOOK_SECONDS = 3600.0")
    options = (*OPTIONS, "--scene-files", str(root / "scenes"))
    with worker(*options, before=before) as process, Client(process.target) as client:
        replace(file, 0)
        handle = client.put(file.as_uri())
        shown: dict[int, np.ndarray] = {}
        with client.stream(handle) as stream:
            for number in (0, 1, 0, 1):
                replace(file, number)
                for _ in range(4):
                    stream.send(CAMERA)
                    frame, called = stream.receive().color, picture(client, handle)
                    assert np.array_equal(frame, called)
                    assert np.array_equal(called, shown.setdefault(number, called))
        assert not np.array_equal(shown[0], shown[1])


@pytest.mark.parametrize("way", ["render", "batch", "stream"])
def test_gradients_are_of_the_content_that_a_frame_shows(root: Path, way: str) -> None:
    file = root / "scenes" / "differentiated.ply"
    with worker(*OPTIONS, "--scene-files", str(root / "scenes")) as process, Client(process.target) as client:
        replace(file, 0)
        handle = client.put(file.as_uri())
        plain = client.render(Gaussians.load(file), CAMERA, retain=True)
        expected = plain.backward(np.ones_like(plain.color)).means

        def frame() -> Frame:
            if way == "render":
                return client.render(handle, CAMERA)
            if way == "batch":
                (found,) = client.render_batch([(handle, CAMERA)])
                assert isinstance(found, Frame)
                return found
            with client.stream(handle) as stream:
                stream.send(CAMERA)
                return stream.receive()

        def lose() -> None:
            for stored in client.list():
                if stored.scene_id:
                    client.delete(stored.scene_id)

        def assert_differentiated(shown: Frame) -> None:
            assert np.array_equal(shown.backward(np.ones_like(shown.color)).means, expected)

        assert_differentiated(frame())
        shown = frame()
        lose()
        assert_differentiated(shown)
        shown, last = frame(), frame()
        replace(file, 1)
        assert_differentiated(shown)
        lose()
        with pytest.raises(SceneNotFound, match=r"differentiated\.ply has changed since the frame was rendered"):
            last.backward(np.ones_like(last.color))


def test_a_file_that_is_gone_ends_its_frames_and_not_their_stream(root: Path) -> None:
    file = root / "scenes" / "moving.ply"
    post().save(file)
    with worker(*OPTIONS, "--scene-files", str(root / "scenes")) as process, Client(process.target) as client:
        with client.stream(client.put(file.as_uri())) as stream:

            def frames(count: int) -> list[np.ndarray]:
                for _ in range(count):
                    stream.send(CAMERA)
                return [stream.receive().color for _ in range(count)]

            # From the second frame on, they need no Python.
            shown = frames(4)
            file.rename(file.with_name("moved.ply"))
            for _ in range(4):
                with pytest.raises(InvalidArgument, match="name: expected the file: address"):
                    frames(1)
            file.with_name("moved.ply").rename(file)
            assert np.array_equal(frames(4), shown)
        process.wait_for_log("method=RenderService.RenderStream code=OK")
        assert process.log.count("method=RenderService.RenderStream") == 1


@pytest.mark.parametrize(
    "break_it, why",
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "expected at least [0-9,]+ bytes behind the header"),
        (lambda file: file.write_bytes(b"no scene"), "expected a scene of Gaussians"),
        (lambda file: file.write_bytes(file.read_bytes()[:-4] + b"\xff" * 4), "expected finite numbers"),
    ],
)
def test_every_call_for_a_broken_file_names_it_and_what_is_wrong(
    root: Path, break_it: Callable[[Path], object], why: str
) -> None:
    file = root / "scenes" / "broken_later.ply"
    replace(file, 0)
    with worker(*OPTIONS, "--scene-files", str(root / "scenes")) as process, Client(process.target) as client:
        handle = client.put(file.as_uri())
        frame = client.render(handle, CAMERA)
        with client.stream(handle) as stream:

            def streamed() -> None:
                stream.send(CAMERA)
                stream.receive()

            def in_a_batch() -> None:
                (found,) = client.render_batch([(handle, CAMERA)])
                if isinstance(found, LumigradError):
                    raise found

            ways = (
                lambda: client.put(file.as_uri()),
                lambda: picture(client, handle),
                in_a_batch,
                streamed,
                lambda: frame.backward(np.ones_like(frame.color)),
            )
            streamed()
            for stored in client.list():
                if stored.scene_id:
                    client.delete(stored.scene_id)
            break_it(file)
            for way in ways:
                with pytest.raises(InvalidArgument, match=f"refused the call: scene {file.as_uri()}: {why}"):
                    way()
            replace(file, 0)
            assert np.array_equal(picture(client, handle), frame.color)
            streamed()


@pytest.mark.parametrize(
    "address",
    [
        "file:post.ply",
        "file://elsewhere/{root}/scenes/post.ply",
        "file://{root}/private/post.ply",
        "file://{root}/scenes/../private/post.ply",
        "file://{root}/scenes/%2e%2e/private/post.ply",
        "file://{root}/scenes/link.ply",
        "file://{root}/scenes-2/post.ply",
        "file://{root}/scenes",
        "file://{root}/scenes/scene.gltf",
        "file://{root}/scenes/post.ply?x=1",
        "file://{root}/scenes/post.ply%00",
        "file:///etc/passwd",
    ],
)
def test_every_other_address_is_refused_by_name(client: Client, root: Path, address: str) -> None:
    with pytest.raises(InvalidArgument, match=r"name: expected the file: address of a \.ply, .* below the worker's"):
        client.put(address.replace("{root}", str(root)))


def test_files_that_cannot_be_read_are_told_without_paths(client: Client, root: Path) -> None:
    for name, text in (
        ("broken.ply", "broken.ply: expected a PLY header"),
        ("large.ply", "at most 1,048,576 bytes"),
        ("none.ply", "below the"),
    ):
        with pytest.raises(InvalidArgument, match=text) as refused:
            client.put((root / "scenes" / name).as_uri())
        assert str(root / "scenes") not in str(refused.value).replace((root / "scenes" / name).as_uri(), "")


def test_a_worker_for_which_no_addresses_are_allowed_says_so(root: Path) -> None:
    with worker(*OPTIONS) as process, Client(process.target) as client:
        with pytest.raises(InvalidArgument, match="scene: expected a scene, or the file: or https: address of one"):
            client.put("http://example.com/scene.ply")
        for address in ((root / "scenes" / "post.ply").as_uri(), f"https://example.com/scene.ply#sha256={64 * '0'}"):
            with pytest.raises(InvalidArgument, match="name: expected a worker with --scene-files or --scene-urls"):
                client.put(address)
