"""Pages that nearer ones hide are neither read nor drawn, and no bit of a picture or of a gradient changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians, PinholeLens, SceneHandle
from lumigrad.client.aio import AsyncClient
from lumigrad.client.errors import DeadlineExceeded, ResourceExhausted
from lumigrad.client.formats.levels import GaussianLevels
from support.gaussians.levels import as_drawn, joined
from support.held_disk import HeldDisk
from support.workers.cuda_machines import MACHINES, Machine
from support.workers.slow_render import wait_until
from support.workers.spooling import kill, spooling
from support.workers.worker import WorkerProcess

ROWS, WALLS = 1024, 16
# Distance between walls, which are as wide and as high.
GAP = 4.0
# Largest standard deviation of a Gaussian in a wall, whose Gaussians are 1 apart.
SIGMA = 0.7
OUTPUTS = ("color", "alpha", "depth", "contributors")
# Cameras that look along the walls' normals, in front of the first wall and behind the last; ASIDE is beside the walls.
SIZE = {"width": 64, "height": 48}
FRONT = Camera.look_at((0, 0, -2), (0, 0, 5), (0, -1, 0), **SIZE, fov_degrees=50)
BACK = Camera.look_at((0.3, 0.2, GAP * WALLS), (0, 0, 0), (0, -1, 0), **SIZE, fov_degrees=50)
# This camera is in the boxes of two walls.
BETWEEN = Camera.look_at((0, 0, 3.5 * GAP), (0, 0, 5 * GAP), (0, -1, 0), **SIZE, fov_degrees=50)
# A camera near the floor of the walls, which sees them through windows.
LOW = Camera.look_at((0, 7, -2), (0, -3, 16), (0, -1, 0), **SIZE, fov_degrees=60)
ASIDE = Camera.look_at((-80, 0, 30), (0, 0, 30), (0, -1, 0), **SIZE, fov_degrees=50)


def walls(seed: int = 0, holes: int = 3, opacity: float = 1.0) -> GaussianLevels:
    """Parallel walls of one level; each of the first few has a window, which the next wall closes in part."""
    x, y, layer = (axis.ravel() for axis in np.meshgrid(np.arange(16), np.arange(16), np.arange(4), indexing="ij"))
    grid = np.stack([(x - 7.5) / 4, (y - 7.5) / 4, layer * 0.02], axis=1)

    def read(page: int, _: int) -> Gaussians:
        random = np.random.default_rng((seed, page))
        window = (abs(x - 4 - 2 * page) < 2) & (abs(y - 8) < 3) & (page < holes)
        return Gaussians(
            grid * (GAP, GAP, 1) + (0, 0, GAP * page),
            np.tile((1.0, 0, 0, 0), (ROWS, 1)),
            SIGMA * random.uniform(0.7, 1.0, (ROWS, 3)),
            np.where(window, 0.01, opacity * random.uniform(0.95, 1.0, ROWS)),
            sh=random.normal(scale=0.5, size=(ROWS, 4, 3)),
        )

    reach = np.abs(grid).max(axis=0) * (GAP, GAP, 1) + 3 * SIGMA + 1e-3
    centres = np.stack([np.zeros(WALLS), np.zeros(WALLS), GAP * np.arange(WALLS)], axis=1)
    bounds = np.stack([centres - reach, centres + reach], axis=1)[:, None]
    return GaussianLevels(
        bounds=bounds.astype(np.float32),
        counts=np.full((WALLS, 1), ROWS),
        errors=np.zeros((WALLS, 1), np.float32),
        sh_degree=1,
        antialiased=False,
        source=read,
    )


LEVELS = walls()
PLACES = [(page, 0) for page in range(WALLS)]
ALL, ROUNDED = joined(LEVELS, PLACES), as_drawn(LEVELS, PLACES)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> HeldDisk:
    return HeldDisk(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def process(disk: HeldDisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with spooling(tmp_path_factory.mktemp("spool"), supervised=False, environment=disk.environment) as started:
        yield started


@pytest.fixture
def client(process: WorkerProcess) -> Iterator[Client]:
    with Client(process.target) as connected:
        yield connected
        for scene in connected.list():
            connected.delete(scene)


@pytest.fixture
def scene(client: Client) -> SceneHandle:
    return client.put(LEVELS)


def drawn(levels: object) -> int:
    """The number of walls that a frame shows."""
    return sum(levels.counts) // ROWS  # type: ignore[attr-defined]


@pytest.mark.parametrize("camera", [FRONT, BACK, BETWEEN], ids=["front", "back", "between"])
def test_a_picture_and_its_gradients_are_those_of_all_pages(client: Client, scene: SceneHandle, camera: Camera) -> None:
    frame = client.render(scene, camera, outputs=OUTPUTS, retain=True)
    plain = client.render(ALL, camera, outputs=OUTPUTS, retain=True)
    assert 1 <= drawn(frame.levels) < WALLS / 2
    assert (frame.levels.coarse_pages, frame.levels.late_pages, frame.levels.missing_pages) == (0, 0, 0)
    for name in OUTPUTS:
        assert np.array_equal(frame[name], plain[name]), name
    upstream = np.random.default_rng(1).normal(size=frame.color.shape).astype(np.float32)
    again = client.render(scene, camera, outputs=OUTPUTS)
    for mine in (frame.backward(upstream), again.backward(upstream)):
        theirs = plain.backward(upstream, sparse=True)
        assert np.array_equal(mine.index, theirs.index)
        for name in ("means", "quats", "scales", "opacities", "sh"):
            # The sums group the Gaussians differently.
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-5 * np.abs(theirs[name]).max())


def test_all_is_drawn_where_nothing_hides_or_nobody_knows(client: Client, scene: SceneHandle) -> None:
    assert drawn(client.render(scene, ASIDE).levels) == WALLS
    view, k = FRONT.view_matrix, FRONT.K
    lens = PinholeLens(fx=k[0, 0], fy=k[1, 1], cx=k[0, 2], cy=k[1, 2])
    sensor = Camera.sensor(lens, view[:3, :3], view[:3, 3], *SIZE.values())
    assert drawn(client.render(scene, sensor).levels) == WALLS
    assert drawn(client.render(scene, FRONT, transmittance_min=0.0).levels) == WALLS
    # Pictures with more pixels than Gaussians would gain nothing.
    large = Camera.look_at((0, 0, -2), (0, 0, 5), (0, -1, 0), width=160, height=120, fov_degrees=50)
    assert drawn(client.render(scene, large).levels) == WALLS


def test_two_gaussians_for_each_pixel_are_enough_to_hide_some(client: Client, scene: SceneHandle) -> None:
    camera = Camera.look_at((0, 0, -2), (0, 0, 5), (0, -1, 0), width=104, height=78, fov_degrees=50)
    frame = client.render(scene, camera)
    assert drawn(frame.levels) < WALLS / 2
    assert np.array_equal(frame.color, client.render(ROUNDED, camera).color)


@pytest.mark.parametrize("opacity", [0.05, 1.0])
def test_a_handful_of_gaussians_in_a_handful_of_pixels_is_drawn(client: Client, opacity: float) -> None:
    """The search begins with a sixteenth of all Gaussians, which is none here."""
    count = 12
    plain = Gaussians(
        np.linspace((0, 0, 4), (0, 0, 92), count),
        np.tile((1.0, 0, 0, 0), (count, 1)),
        np.full((count, 3), 2.0),
        np.full(count, opacity),
        sh=np.random.default_rng(2).normal(scale=0.5, size=(count, 1, 3)),
    )
    bounds = np.stack([plain.means - 6.1, plain.means + 6.1], axis=1)[:, None]
    counts, errors = np.ones((count, 1), np.int64), np.zeros((count, 1), np.float32)
    levels = GaussianLevels(bounds, counts, errors, 0, False, lambda page, _: plain[page : page + 1])
    camera = Camera.look_at((0, 0, -12), (0, 0, 5), (0, -1, 0), width=3, height=2, fov_degrees=5)
    frame = client.render(client.put(levels), camera, outputs=OUTPUTS, retain=True)
    expected = client.render(plain, camera, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert np.array_equal(frame[name], expected[name]), name


def test_empty_pages_are_passed_over(client: Client) -> None:
    counts = LEVELS.counts.copy()
    counts[0] = 0
    levels = replace(
        LEVELS, counts=counts, source=lambda page, level: LEVELS.source(page, level)[: counts[page, level]]
    )
    frame = client.render(client.put(levels), FRONT, outputs=OUTPUTS, retain=True)
    plain = client.render(joined(levels, PLACES), FRONT, outputs=OUTPUTS)
    for name in OUTPUTS:
        assert np.array_equal(frame[name], plain[name]), name


@pytest.mark.parametrize("near", [3.0, 9.0, 19.0, 20.0, 33.0])
def test_what_is_nearer_than_the_least_depth_hides_nothing(client: Client, scene: SceneHandle, near: float) -> None:
    frame, plain = (client.render(each, FRONT, outputs=OUTPUTS, near=near) for each in (scene, ROUNDED))
    for name in OUTPUTS:
        assert np.array_equal(frame[name], plain[name]), name


@pytest.mark.parametrize("matrix", [np.diag([-1.0, 1, 1]), 1e-3 * np.eye(3), np.diag([1.0, 1, 1e-3]), np.zeros((3, 3))])
def test_cameras_of_any_matrix_see_all(client: Client, scene: SceneHandle, matrix: np.ndarray) -> None:
    view, k = FRONT.view_matrix, FRONT.K
    translation = matrix @ view[:3, 3] if matrix.any() else (0, 0, 5)
    lens = k[0, 0], k[1, 1], k[0, 2], k[1, 2]
    camera = Camera.opencv(*lens, matrix @ view[:3, :3], translation, *SIZE.values())
    assert np.array_equal(client.render(scene, camera).color, client.render(ROUNDED, camera).color)


def test_several_cameras_draw_what_any_of_them_sees(client: Client, scene: SceneHandle) -> None:
    both = client.render(scene, [FRONT, BACK])
    one, other = (client.render(scene, camera) for camera in (FRONT, BACK))
    assert drawn(both.levels) == drawn(one.levels) + drawn(other.levels) < WALLS
    assert np.array_equal(both.color, client.render(ROUNDED, [FRONT, BACK]).color)
    batch = client.render_batch([(scene, FRONT), (scene, BACK)])
    with client.stream(scene) as stream:
        for camera in (FRONT, BACK):
            stream.send(camera)
        frames = [stream.receive(), stream.receive()]
    for alone, item, frame in zip((one, other), batch, frames, strict=True):
        assert np.array_equal(alone.color, item.color)
        assert np.array_equal(alone.color, frame.color)
        assert item.levels == frame.levels == alone.levels


def test_hidden_pages_are_not_read(client: Client, scene: SceneHandle, process: WorkerProcess) -> None:
    frame = client.render(scene, FRONT)
    rows, row_bytes = sum(frame.levels.counts), 4 * (3 + 4 + 3 + 1 + 12)
    # Pages, their copies in the cut, and their copies in the passes, which have no colours.
    assert process.metric("lumigrad_scene_bytes") < 3 * rows * row_bytes
    assert np.array_equal(client.render(scene, FRONT, wait=False).color, frame.color)
    late = client.render(scene, BACK, wait=False)
    assert late.levels.missing_pages == late.levels.late_pages > 0


@contextmanager
def noting(
    folder: Path, module: str, method: str, noted: str, *options: str, **settings: Any
) -> Iterator[tuple[WorkerProcess, Path]]:
    """A worker, and a file to which each call of a method of the server adds a word, an expression of `self`."""
    log = folder / "log"
    log.touch()
    kind, name = method.split(".")
    before = (
        f"from lumigrad.server.scenes.{module} import {kind}",
        f"plain = {kind}.{name}",
        f"note = lambda self: open({str(log)!r}, 'a').write(str({noted}) + ' ')",
        f"{kind}.{name} = lambda self, *given: (note(self), plain(self, *given))[1]",
    )
    with spooling(folder / "spool", *options, supervised=False, before=before, **settings) as process:
        yield process, log


# The arguments of `noting` that note the pages of each call.
PAGES_OF_CALLS = ("level_view", "LevelView.gather", "len(self.cut.pages)")


def test_what_is_hidden_in_a_view_is_found_once(tmp_path: Path) -> None:
    with (
        noting(tmp_path, "occlusion", "Occlusion._drawn", "'pass'") as (process, log),
        Client(process.target) as client,
    ):
        scene = client.put(LEVELS)

        def passes(*cameras: Camera, **settings: Any) -> int:
            """The passes of the first call for a view; a second call draws the same without any."""
            log.write_text("")
            frame = client.render(scene, cameras, **settings)
            found = log.read_text()
            again = client.render(scene, cameras, **settings)
            assert log.read_text() == found
            assert np.array_equal(frame.color, again.color)
            assert frame.levels == again.levels
            return len(found.split())

        assert passes(FRONT) > 0
        # From the side, no wall hides another.
        assert passes(ASIDE) == 0
        # Other colours and outputs need no new pass.
        assert passes(FRONT, outputs=("alpha", "color"), sh_degree=0) == 0
        assert passes(BACK) > 0
        assert passes(FRONT, BACK) > 0
        assert passes(FRONT, near=9.0) > 0
        assert passes(FRONT, retain=True) > 0
        client.delete(scene)
        scene = client.put(LEVELS)
        assert passes(FRONT) > 0


def test_a_view_that_repeats_draws_only_pages_that_show(tmp_path: Path) -> None:
    """The image of a second call tells more than a search. Reports and gradients are those of the first call."""
    with noting(tmp_path, *PAGES_OF_CALLS) as (process, log), Client(process.target) as client:
        scene = client.put(LEVELS)

        def pages(camera: Camera, **settings: Any) -> int:
            """The pages that a call gathers; its image is that of all pages."""
            log.write_text("")
            frame = client.render(scene, camera, **settings)
            everything = ALL if "retain" in settings else ROUNDED
            assert np.array_equal(frame.color, client.render(everything, camera).color)
            reports.append(frame.levels)
            return int(log.read_text())

        for camera in (FRONT, BACK, LOW):
            reports: list[object] = []
            first, second, third, fourth = (pages(camera) for _ in range(4))
            assert first == second >= third == fourth
            retained = [pages(camera, retain=True) for _ in range(2)]
            assert retained == [first, first]
            assert all(report == reports[0] for report in reports)
        # A search draws whole pages, and LOW does not see the second one behind the first.
        assert third < first
        client.delete(scene)
        scene = client.put(LEVELS)
        assert pages(LOW) == first


@pytest.mark.parametrize("mib", [1, 64], ids=["evicted", "kept"])
def test_a_tenant_learns_nothing_from_pictures_of_another(client: Client, tmp_path: Path, mib: int) -> None:
    """Both draw one scene and one of their own, in pages with the same bounds, from the same views."""
    tokens = {"one": "a-token-of-one-of-them", "other": "a-token-of-the-other"}
    options = ("--scene-mib", str(mib), "--max-payload-mib", "1")
    scenes = {"one": (LEVELS, walls(1)), "other": (LEVELS, walls(2, opacity=0.6))}
    cameras = FRONT, LOW
    expected = {
        tenant: [client.render(as_drawn(each, PLACES), camera).color for each in own for camera in cameras]
        for tenant, own in scenes.items()
    }
    told: dict[str, list[list[str]]] = {tenant: [] for tenant in tokens}
    with noting(tmp_path, *PAGES_OF_CALLS, *options, tokens=tokens) as (process, log), ExitStack() as stack:
        clients = {tenant: stack.enter_context(Client(process.target, token=token)) for tenant, token in tokens.items()}
        stored = {tenant: [clients[tenant].put(each) for each in own] for tenant, own in scenes.items()}
        # One has learned what an image needs before the other begins.
        for tenant in ("one", "one", "one", "other", "one", "other", "other", "one", "other"):
            log.write_text("")
            pictures = [clients[tenant].render(each, camera).color for each in stored[tenant] for camera in cameras]
            for picture, plain in zip(pictures, expected[tenant], strict=True):
                assert np.array_equal(picture, plain)
            told[tenant].append(log.read_text().split())
        evictions = process.metric("lumigrad_evictions_total", store="pages")
    assert (evictions > 0) == (mib == 1)
    # Each draws of the shared scene what it would draw alone. The image of LOW tells more than a search.
    of_both = {tenant: [pages[: len(cameras)] for pages in calls] for tenant, calls in told.items()}
    assert of_both["other"] == of_both["one"][:4]
    assert of_both["one"][0] == of_both["one"][1] > of_both["one"][2]


def test_a_tenant_is_told_what_it_would_be_told_alone(tmp_path: Path) -> None:
    """Replies of all kinds to the second tenant are those to the first one, which nobody had gone before."""
    tokens = {"one": "a-token-of-one-of-them", "other": "a-token-of-the-other"}

    def told(target: str, token: str) -> list[object]:
        with Client(target, token=token) as client:
            scene = client.put(LEVELS)
            # Nothing is in memory: what another tenant has read is not there for this one.
            cold = client.render(scene, BACK, wait=False, max_error_px=4)
            assert cold.levels.missing_pages > 0
            replies: list[object] = [cold.levels]
            for camera in (FRONT, LOW, LOW, LOW):
                frame = client.render(scene, camera, retain=camera is FRONT)
                gradients = frame.backward(np.ones_like(frame.color))
                (item,) = client.render_batch([(scene, camera)])
                replies += [frame.levels, item.levels, frame.color.tobytes(), item.color.tobytes()]
                replies += [gradients.index.tobytes(), gradients.means.tobytes()]
            with client.stream(scene) as stream:
                replies += [frame.levels for frame in stream.frames([FRONT, LOW, ASIDE])]
            return replies

    with spooling(tmp_path, supervised=False, tokens=tokens) as process:
        first, second = (told(process.target, token) for token in tokens.values())
        assert first == second


def test_a_worker_that_is_killed_and_started_again_draws_the_same(client: Client, tmp_path: Path) -> None:
    """Kills come after the first call, after the one whose image tells what is hidden, and after one that uses it."""
    expected, reports = client.render(ROUNDED, LOW).color, []
    with spooling(tmp_path) as process, Client(process.target, retry_s=60) as own:
        scene = own.get(own.put(LEVELS).scene_id)
        for calls in (1, 2, 3, 4):
            for _ in range(calls):
                frame = own.render(scene, LOW)
                assert np.array_equal(frame.color, expected)
                reports.append(frame.levels)
            if calls < 4:
                kill(process)
    assert all(report == reports[0] for report in reports)


def test_a_call_that_ends_while_it_looks_gives_back_its_room(
    client: Client, scene: SceneHandle, process: WorkerProcess, disk: HeldDisk
) -> None:
    async def cancelled() -> None:
        async with AsyncClient(process.target) as other:
            drawing = asyncio.ensure_future(other.render(scene, FRONT))
            await asyncio.to_thread(wait_until, begun.exists, "a read")
            drawing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await drawing

    with disk.hold_reads() as begun:
        asyncio.run(cancelled())
        with pytest.raises(DeadlineExceeded):
            client.render(scene, FRONT, timeout_s=1)
        client.delete(scene)
    again = client.put(LEVELS)
    assert np.array_equal(client.render(again, FRONT).color, client.render(ROUNDED, FRONT).color)
    client.delete(again)
    # A cancelled call gives back what it has when it notices.
    wait_until(lambda: process.metric("lumigrad_scene_bytes") == 0)


def test_room_is_given_back_before_the_reply_is_sent(tmp_path: Path) -> None:
    """A caller that is slow to read keeps nobody waiting."""
    sent = ("level_view", "LevelView.drawn", "self._call.record.bytes_sent")
    with noting(tmp_path, *sent) as (process, log), Client(process.target) as client:
        scene = client.put(LEVELS)
        for is_retained in (False, True):
            frame = client.render(scene, FRONT, retain=is_retained)
            frame.backward(np.ones_like(frame.color))
        assert set(log.read_text().split()) == {"0"}


def test_hidden_pages_take_no_room(client: Client, tmp_path: Path) -> None:
    options = ("--max-payload-mib", "1", "--scene-mib", "1")
    with spooling(tmp_path, *options, supervised=False) as process, Client(process.target) as small:
        scene = small.put(LEVELS)
        for camera in (FRONT, BACK, FRONT):
            frame = small.render(scene, camera)
            assert np.array_equal(frame.color, client.render(ROUNDED, camera).color)
            assert frame.levels.coarse_pages == 0
        with pytest.raises(ResourceExhausted, match="max_gaussians"):
            small.render(scene, ASIDE)
        with pytest.raises(ResourceExhausted, match="max_gaussians"):
            small.render(scene, FRONT, max_gaussians=ROWS // 2)
        assert process.metric("lumigrad_scene_bytes") <= 1 << 20


@pytest.mark.parametrize("machine", MACHINES)
def test_on_devices(machine: Machine, tmp_path: Path) -> None:
    with machine.worker("--spool", str(tmp_path)) as process, Client(process.target) as client:
        scene = client.put(LEVELS)
        frame = client.render(scene, FRONT, retain=True, deterministic=True)
        plain = client.render(ALL, FRONT, retain=True, deterministic=True)
        assert drawn(frame.levels) < WALLS / 2
        assert np.array_equal(frame.color, plain.color)
        mine = frame.backward(np.ones_like(frame.color))
        theirs = plain.backward(np.ones_like(frame.color), sparse=True)
        assert np.array_equal(mine.index, theirs.index)
        assert np.array_equal(mine.means, theirs.means)
