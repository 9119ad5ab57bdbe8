"""A robot among obstacles in a headless browser: sliders move it, and the worker's distances colour it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh
import yaml

from lumigrad.client import Client, Gaussians
from lumigrad.client.formats.world_files import read_obstacles
from lumigrad.client.robots import Robot
from lumigrad.client.values.world import World
from support.chromium import canvas_pixels, opened_page
from support.files.robot_files import JointLine, write_urdf
from support.workers.worker import WorkerProcess

pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")

from lumigrad.client.commands.view_page import opened
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.viewer.obstacles import Deviation
from support.viewing import options, wait_for

WIDTH, HEIGHT = 720, 420
JOINTS = (
    JointLine("turn", "revolute", "foot", "arm", "0 0 0.2"),
    JointLine("lift", "prismatic", "arm", "hand", "0.4 0 0", limits=(0.0, 0.3)),
)
SPHERES = {"arm": [[0.1, 0, 0, 0.08], [0.25, 0, 0, 0.08]], "hand": [[0, 0, 0, 0.1], [0, 0, 0.15, -1.0]]}
# The wall is in the way of the hand if that turns to the left.
WORLD = {"cuboid": {"wall": {"dims": [0.4, 0.05, 0.6], "pose": [0.35, 0.3, 0.3, 1, 0, 0, 0]}}}


@pytest.fixture
def cell(tmp_path: Path) -> list[str]:
    """The options of a robot beside a wall."""
    write_urdf(tmp_path / "robot.urdf", JOINTS)
    (tmp_path / "spheres.yml").write_text(yaml.safe_dump(SPHERES))
    (tmp_path / "world.yml").write_text(yaml.safe_dump(WORLD))
    names = {"--world": "world.yml", "--urdf": "robot.urdf", "--spheres": "spheres.yml"}
    return [part for option, name in names.items() for part in (option, str(tmp_path / name))]


def expected_mm(target: str, folder: Path, q: tuple[float, float]) -> np.ndarray:
    """[3] clearances of the spheres that are switched on, mm."""
    robot = Robot.load(folder / "robot.urdf", folder / "spheres.yml")
    spheres = robot.spheres(np.array(q))
    spheres = spheres[spheres[:, 3] > 0]
    with Client(target) as client:
        found = client.query(World(read_obstacles(folder / "world.yml")), spheres)
    return 1000 * (found.distance - spheres[:, 3])


def redness(picture: np.ndarray) -> int:
    """The number of red pixels."""
    return count(picture, 0)


def count(picture: np.ndarray, channel: int) -> int:
    """The number of pixels in the colour of a channel."""
    own, *others = np.roll(picture.reshape(-1, 3).astype(int), -channel, axis=1).T
    return int(np.count_nonzero((own > 2 * others[0]) & (own > 2 * others[1]) & (own > 60)))


def set_first_slider(page: Any, value: str) -> None:
    """Sets the slider by the number beside it; the first number on the page is the colours' span."""
    box = page.locator("input.mantine-NumberInput-input").nth(1)
    box.fill(value, timeout=120_000)
    box.press("Enter")


def test_sliders_move_the_robot_into_the_wall(
    process: WorkerProcess, browser: Any, cell: list[str], tmp_path: Path
) -> None:
    with opened(options(process.target, *cell, "--joints=-0.8,0.1")) as viewer:
        page = opened_page(browser, viewer.url, WIDTH, HEIGHT)
        free = expected_mm(process.target, tmp_path, (-0.8, 0.1))
        assert free.min() > 0
        page.get_by_text(re.compile(rf"closest: \w+ and wall, {free.min():.1f} mm")).wait_for(timeout=120_000)
        page.get_by_text("2 joints, 4 spheres").wait_for(timeout=120_000)
        assert redness(canvas_pixels(page, tmp_path / "free.png")) == 0

        set_first_slider(page, "0.8")
        touching = expected_mm(process.target, tmp_path, (0.8, 0.1))
        assert touching.min() < 0
        colliding = np.count_nonzero(touching < 0)
        said = rf"{colliding} of 3 spheres collides?; deepest: hand and wall, {-touching.min():.1f} mm"
        page.get_by_text(re.compile(said)).wait_for(timeout=120_000)
        wait_for(lambda: redness(canvas_pixels(page, tmp_path / "touching.png")) > 100)
        page.close()


def test_a_trajectory_has_a_slider_of_its_own(
    process: WorkerProcess, browser: Any, cell: list[str], tmp_path: Path
) -> None:
    way = np.linspace((-0.8, 0.0), (0.8, 0.2), 5)
    np.save(tmp_path / "way.npy", way)
    with opened(options(process.target, *cell, "--joints", str(tmp_path / "way.npy"))) as viewer:
        page = opened_page(browser, viewer.url, WIDTH, HEIGHT)
        page.get_by_text("closest: ").wait_for(timeout=120_000)
        set_first_slider(page, "4")
        last = expected_mm(process.target, tmp_path, tuple(way[4]))
        page.get_by_text(f"deepest: hand and wall, {-last.min():.1f} mm").wait_for(timeout=120_000)
        page.close()


def wait_for_red(browser: Any, target: str, arguments: list[str], file: Path, is_enough: Callable[[int], bool]) -> None:
    """Waits until a page shows a colliding robot with so many red pixels in a green scene at rest."""
    with opened(options(target, *arguments, "--joints", "0.8,0.1")) as viewer:
        page = opened_page(browser, viewer.url, WIDTH, HEIGHT)
        page.get_by_text("spheres collide").wait_for(timeout=120_000)
        wait_for(lambda: viewer.sessions)
        (session,) = viewer.sessions

        def rests() -> bool:
            records = session.statistics.records
            return bool(records) and records[-1].order.is_sharp and time.monotonic() - records[-1].moment_s > 1.0

        wait_for(rests)

        def shows_both() -> bool:
            picture = canvas_pixels(page, file)
            return count(picture, 1) > WIDTH * HEIGHT / 5 and is_enough(redness(picture))

        # The page shows a picture a moment after it was sent.
        wait_for(shows_both)
        page.close()


def test_the_scene_hides_what_is_behind_it(
    process: WorkerProcess, browser: Any, cell: list[str], tmp_path: Path
) -> None:
    """A wide flat cloud of green Gaussians is in front of the robot or behind it."""
    generator = np.random.default_rng(0)
    flat = generator.uniform(-1.5, 1.5, (4000, 2))
    seen = ["--camera", "look-at 3,0.9,0.3 0,0.9,0.3", "--up", "z", *cell]
    for name, x in (("before", 1.0), ("behind", -1.5)):
        means = np.column_stack([np.full(len(flat), x), flat[:, 0], flat[:, 1] + 0.2])
        Gaussians(
            means, np.tile([1.0, 0, 0, 0], (len(flat), 1)), np.full((len(flat), 3), 0.06), np.full(len(flat), 0.99),
            colors=np.tile([0.1, 0.6, 0.1], (len(flat), 1)),
        ).save(tmp_path / f"{name}.ply")  # fmt: skip
    scenes = {name: [str(tmp_path / f"{name}.ply"), *seen] for name in ("before", "behind")}
    for name, is_enough in (("behind", lambda red: red >= 50), ("before", lambda red: red == 0)):
        wait_for_red(browser, process.target, scenes[name], tmp_path / f"{name}.png", is_enough)


def test_a_mesh_has_the_colours_of_its_signed_distances(
    process: WorkerProcess, browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ball, in millimetres, and a box whose corners are outside of it."""
    ball = trimesh.creation.icosphere(subdivisions=3, radius=500.0)
    ball.export(tmp_path / "ball.stl")
    trimesh.creation.box((800.0, 800.0, 800.0)).export(tmp_path / "box.stl")
    shown: list[Deviation] = []
    begin = Deviation.__init__

    def noted(self: Deviation, *given: Any) -> None:
        shown.append(self)
        begin(self, *given)

    monkeypatch.setattr(Deviation, "__init__", noted)
    arguments = ["--world", str(tmp_path / "box.stl"), "--compare", str(tmp_path / "ball.stl"), "--scale", "mm"]
    with opened(options(process.target, *arguments)) as viewer:
        page = opened_page(browser, viewer.url, WIDTH, HEIGHT)
        page.get_by_text("signed distance to the closest obstacle, negative inside").wait_for(timeout=120_000)
        (found,) = shown
        outside = np.abs(found.vertices) - 0.4
        exact = np.linalg.norm(np.maximum(outside, 0), axis=1) + np.minimum(outside.max(axis=1), 0)
        np.testing.assert_allclose(found.distances, exact, atol=1e-5)
        assert exact.min() < -0.05
        assert exact.max() > 0.05
        wait_for(lambda: redness(canvas_pixels(page, tmp_path / "compared.png")) > 100)
        page.screenshot(path=str(tmp_path / "page.png"))
        page.close()
    alone = options("localhost:1", "--compare", str(tmp_path / "ball.stl"))
    with pytest.raises(InvalidArgument, match="compare: expected with --world"), opened(alone):
        pass


@pytest.mark.parametrize(
    ("left_out", "text"),
    [
        ({"--world"}, "world: expected SCENE, or --world FILE, which a robot needs, or both"),
        ({"--urdf"}, "urdf: expected with --spheres: a robot is a URDF and the spheres of its links"),
        ({"--spheres"}, "spheres: expected with --urdf: a robot is a URDF and the spheres of its links"),
        ({"--world", "--urdf", "--spheres"}, "world: expected SCENE, or --world FILE, which a robot needs, or both"),
    ],
)
def test_what_is_missing_is_named(cell: list[str], left_out: set[str], text: str) -> None:
    pairs = zip(cell[::2], cell[1::2], strict=True)
    given = [part for option, value in pairs if option not in left_out for part in (option, value)]
    with pytest.raises(InvalidArgument, match=re.escape(text)), opened(options("localhost:1", *given)):
        pass
