"""`lumigrad view` in a headless browser, with a real worker behind it."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, Spheres
from support.ports import reserved_port
from support.workers.forks import ForkedProcess
from support.workers.worker import WorkerProcess, worker

pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")

from lumigrad.client.commands.view_page import opened
from lumigrad.client.viewer.modes import DEPTHS
from support.viewing import HEIGHT, SECONDS, SMOOTH_DB, WIDTH, Page, blobs, colors, options, psnr, wait_for

DEPTH_DB = 24.0


def balls(count: int = 60) -> Spheres:
    generator = np.random.default_rng(4)
    return Spheres(generator.uniform(-1, 1, (count, 3)), generator.uniform(0.2, 1, (count, 3)), np.full(count, 0.2))


NOTE_RETURN = """() => new MutationObserver(() => {
    window.wasBack ||= document.body.innerText.includes("The worker is back");
}).observe(document.body, { childList: true, subtree: true, characterData: true })"""


def test_a_scene_is_shown_sharpens_at_rest_and_outlives_its_worker(browser: Any, tmp_path: Path) -> None:
    scene = blobs()
    scene.save(tmp_path / "blobs.ply")
    # Clients of the second worker must leave it before it is stopped.
    with reserved_port() as port, ExitStack() as later, worker("--device", "cpu", port=port) as first:
        target = first.target
        with opened(options(target, str(tmp_path / "blobs.ply"))) as viewer, Page(browser, viewer, tmp_path) as page:
            first_lens = page.lens
            coarse = page.session.statistics.records[0].order
            assert (coarse.width, coarse.height, coarse.is_sharp) == (WIDTH // 2, HEIGHT // 2, False)
            page.matches(lambda: colors(target, scene, page.lens), SMOOTH_DB, "first")
            assert psnr(page.shown("first"), np.zeros((HEIGHT, WIDTH, 3))) < SMOOTH_DB - 10

            count = len(page.session.statistics.records)
            page.drag()
            page.wait_until_sharp(after=count)
            moving = [record for record in page.session.statistics.records[count:] if not record.order.is_sharp]
            # More pictures may come, since the page may be late to tell of the last movement.
            last = [record for record in page.session.statistics.records[count:] if record.order.is_sharp][-1]
            assert moving
            assert max(record.order.width for record in moving) <= WIDTH
            assert max(record.nbytes for record in moving) < last.nbytes
            assert (last.order.width, last.order.height) == (WIDTH, HEIGHT)
            page.page.get_by_text(f"{WIDTH} x {HEIGHT}, at rest").wait_for(timeout=1000 * SECONDS)
            assert all(0 < record.timings.kernel_ms <= record.render_ms for record in moving)
            wait_for(lambda: np.linalg.norm(np.subtract(page.lens.position, first_lens.position)) > 0.3)
            page.matches(lambda: colors(target, scene, page.lens), SMOOTH_DB, "orbited")

            assert first.stop() == 0
            page.drag(5)
            trouble = page.page.get_by_text("The worker does not answer")
            trouble.first.wait_for(timeout=1000 * SECONDS)
            # This notice goes away by itself, perhaps while the worker is still being waited for here.
            page.page.evaluate(NOTE_RETURN)
            later.enter_context(worker("--device", "cpu", port=port))
            page.page.wait_for_function("window.wasBack", timeout=1000 * SECONDS)
            # The notice fades, for which slow browsers take their time.
            trouble.first.wait_for(state="hidden", timeout=1000 * SECONDS)
            page.matches(lambda: colors(target, scene, page.lens), SMOOTH_DB, "restarted")


def test_depths_have_a_legend_and_alpha_is_grey(process: WorkerProcess, browser: Any, tmp_path: Path) -> None:
    scene = blobs()
    scene.save(tmp_path / "blobs.ply")
    with (
        opened(options(process.target, str(tmp_path / "blobs.ply"), "--background", "0,0.2,0")) as viewer,
        Page(browser, viewer, tmp_path) as page,
    ):
        page.choose("depth")
        legend = page.page.get_by_text("depth, scene units")
        legend.wait_for(timeout=1000 * SECONDS)

        def expected() -> np.ndarray:
            marks = [float(mark) for mark in legend.locator("xpath=..").locator("span").all_inner_texts()]
            with Client(process.target) as client:
                frame = client.render(
                    scene, page.lens.camera(WIDTH, HEIGHT), outputs=("expected_depth", "alpha"), background=0.0
                )
            colors = DEPTHS.levels((frame.expected_depth - marks[0]) / (marks[-1] - marks[0]))
            return colors * frame.alpha[..., None] + (1 - frame.alpha[..., None]) * (0, 51, 0)

        page.matches(expected, DEPTH_DB, "depth")
        page.choose("alpha")
        legend.wait_for(state="hidden", timeout=1000 * SECONDS)

        def alpha() -> np.ndarray:
            with Client(process.target) as client:
                frame = client.render(scene, page.lens.camera(WIDTH, HEIGHT), outputs=("alpha",))
            return np.repeat(255 * frame.alpha[..., None], 3, axis=2)

        page.matches(alpha, SMOOTH_DB, "alpha")


def test_spheres_show_their_numbers(process: WorkerProcess, browser: Any, tmp_path: Path) -> None:
    balls().save(tmp_path / "balls.ply")
    with (
        opened(options(process.target, str(tmp_path / "balls.ply"))) as viewer,
        Page(browser, viewer, tmp_path) as page,
    ):
        page.matches(lambda: colors(process.target, balls(), page.lens, gamma=1e-4), 26.0, "spheres")
        count = len(page.session.statistics.records)
        page.choose("sphere ids")
        page.wait_until_sharp(after=count)
        with Client(process.target) as client:
            frame = client.render(
                balls(), page.lens.camera(WIDTH, HEIGHT), outputs=("sphere_ids",), gamma=1e-4, n_track=1
            )
        ids = frame.sphere_ids[..., 0]
        known = [number for number in np.unique(ids) if np.count_nonzero(ids == number) > 500]
        assert len(known) > 10

        def has_own_colors() -> bool:
            shown = page.shown("ids").astype(float)
            middles = np.array([np.median(shown[ids == number], axis=0) for number in known])
            # Each number has its own colour, except at the rims of spheres.
            off = [
                np.median(np.abs(shown[ids == number] - middle).max(axis=1))
                for number, middle in zip(known, middles, strict=True)
            ]
            return (
                max(off) < 10
                and len(np.unique(np.rint(middles / 8), axis=0)) > len(known) - 3
                and np.allclose(middles[known.index(-1)], 255, rtol=0, atol=3)
            )

        # The page shows a picture a moment after it was sent.
        wait_for(has_own_colors)


def test_each_browser_has_a_camera_of_its_own_and_may_leave(
    process: WorkerProcess, browser: Any, tmp_path: Path
) -> None:
    scene = blobs()
    scene.save(tmp_path / "blobs.ply")
    with opened(options(process.target, str(tmp_path / "blobs.ply"))) as viewer, Page(browser, viewer, tmp_path) as one:
        other = Page(browser, viewer, tmp_path)
        count = len(other.session.statistics.records)
        other.drag(20)
        other.wait_until_sharp(after=count)
        wait_for(lambda: np.linalg.norm(np.subtract(one.lens.position, other.lens.position)) > 0.1)
        one.matches(lambda: colors(process.target, scene, one.lens), SMOOTH_DB, "one")
        other.matches(lambda: colors(process.target, scene, other.lens), SMOOTH_DB, "other")
        other.page.close()
        wait_for(lambda: viewer.sessions == (one.session,))
        other.session._stream.join(SECONDS)
        assert not any(thread.is_alive() for thread in other.session._stream._threads)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_an_address_and_ends_with_control_c(
    process: WorkerProcess, tmp_path: Path, number: signal.Signals
) -> None:
    blobs(50).save(tmp_path / "blobs.ply")
    viewing = ForkedProcess(["view", "blobs.ply", "--target", process.target, "--port", "0"], tmp_path)
    try:
        found = re.fullmatch(r"blobs\.ply: (http://127\.0\.0\.1:\d+)\n", viewing.stdout.readline())
        assert found
        # The command says nothing of connections that browsers drop: the whole request shows that they were answered.
        for sent in (b"", b"nonsense\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", int(found[1].rpartition(":")[2])), SECONDS) as link:
                link.sendall(sent)
        with urllib.request.urlopen(found[1], timeout=SECONDS) as response:
            assert b"<html" in response.read().lower()
        assert viewing.stdout.readline() == "Ctrl-C ends it\n"
        viewing.send_signal(number)
        said, errors = viewing.communicate(timeout=150)
    finally:
        viewing.kill()
    assert (viewing.returncode, said, errors) == (0, "", "")
