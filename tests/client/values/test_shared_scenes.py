"""Scenes that two programs have put: when one program no longer needs a scene, the other keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, SceneHandle, SceneNotFound, Spheres
from lumigrad.client.benchmark.calls import measurements
from lumigrad.client.calls.scenes import stored
from lumigrad.client.compat.curobo import VoxelGrid, WorldCollisionConfig, WorldConfig, WorldMeshCollision
from lumigrad.client.fitting.evaluation import pictures
from lumigrad.client.values.world import Obstacle, World
from lumigrad.client.values.world import VoxelGrid as Grid
from support.threads import run_at_once
from support.training.scenes import gaussian_lesson
from support.workers.spooling import kill, spooling, wait_until_written, without_copy
from support.workers.worker import WorkerProcess

CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), width=32, height=24)


@pytest.fixture(autouse=True)
def logs_of_clients(caplog: pytest.LogCaptureFixture) -> None:
    """Logs repeated calls for failed tests: a scene stays if its put or its end was repeated."""
    caplog.set_level("INFO", logger="lumigrad")


@pytest.fixture
def other(worker_process: WorkerProcess) -> Iterator[Client]:
    """The client of another program."""
    with Client(worker_process.target) as connected:
        yield connected


def gaussians(seed: int) -> Gaussians:
    return gaussian_lesson(50, seed=seed).scene


def score(client: Client, scene: Gaussians) -> None:
    assert len(list(pictures(client, scene, [SimpleNamespace(camera=CAMERA)], {}))) == 1


def begin_to_score(client: Client, scene: Gaussians) -> None:
    # The reader of the pictures may stop early.
    for _ in pictures(client, scene, [SimpleNamespace(camera=CAMERA)] * 2, {}):
        break


def bench(client: Client, scene: Gaussians) -> None:
    assert list(measurements(client, {"32x24": CAMERA}, scene, 1e-6))


def crop(client: Client, scene: Gaussians) -> None:
    from lumigrad.client.viewer.crop import Box
    from lumigrad.client.viewer.painter import Painter

    # The stored scene has one Gaussian outside the box.
    outlier = {name: np.concatenate([array, array[:1]]) for name, array in scene.tensors.items()}
    outlier["means"][-1] = 100.0
    whole = client.put(Gaussians(**outlier))
    painter = Painter(client, lambda: whole, "gaussians", {})
    for reach in (50.0, 40.0):
        assert painter._scene(client, Box((-reach,) * 3, (reach,) * 3)).count == len(scene)
    painter.close()
    client.delete(whole)


def train(client: Client, scene: Gaussians) -> None:
    with client.trainer(scene, [CAMERA], [np.zeros((24, 32, 3), np.uint8)], rates={"sh0": 1e-2}) as trainer:
        trainer.step()
        published = trainer.publish()
        trainer.step()
        again = trainer.publish()
    assert (published.version, again.version) == (2, 3)
    assert again.scene_id == published.scene_id
    client.delete(again)


USES = [score, begin_to_score, bench, crop, train]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("is_first", [True, False], ids=["put before", "put meanwhile"])
def test_what_another_program_has_put_stays(
    client: Client, other: Client, use: Callable[[Client, Gaussians], Any], is_first: bool
) -> None:
    if use is crop:
        pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")
    scene = gaussians(100 + is_first)
    with nullcontext() if is_first else stored(client, scene):
        # This handle has no copy, from which the client could store the scene again.
        found = other.get(other.put(scene).scene_id)
        expected = other.render(found, CAMERA).color
        use(client, scene)
    assert np.array_equal(other.render(found, CAMERA).color, expected)
    assert found in other.list()
    other.delete(found)


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_what_nobody_else_has_put_goes(client: Client, use: Callable[[Client, Gaussians], Any]) -> None:
    if use is crop:
        pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")
    before = {handle.scene_id for handle in client.list()}
    use(client, gaussians(110))
    left = [handle for handle in client.list() if handle.scene_id not in before and handle.kind != "target"]
    assert left == []


def test_the_last_of_several_programs_deletes(client: Client, other: Client) -> None:
    scene = gaussians(120)
    for first, second in ((client, other), (other, client)):
        with stored(first, scene) as handle:
            with stored(second, scene) as same:
                assert same.scene_id == handle.scene_id
            assert first.get(handle.scene_id) == handle
        with pytest.raises(SceneNotFound):
            client.get(handle.scene_id)


def test_programs_at_once_never_miss_it(client: Client, other: Client) -> None:
    scene, wrong = gaussians(121), []

    def use(mine: Client) -> None:
        try:
            for _ in range(15):
                with stored(mine, scene) as handle:
                    mine.render(mine.get(handle.scene_id), CAMERA)
        except Exception as error:
            wrong.append(repr(error)[:300])

    run_at_once(*(partial(use, mine) for mine in (client, other) * 2))
    assert wrong == []
    assert scene not in [handle.scene for handle in client.list()]


def test_an_obstacle_that_another_checker_has_stays(client: Client, other: Client) -> None:
    grid = VoxelGrid("grid", dims=(1.6,) * 3, voxel_size=0.1, feature_tensor=torch.linspace(-0.93, 1.07, 16**3))
    before = {handle.scene_id for handle in other.list()}
    checkers = [WorldMeshCollision(WorldCollisionConfig(world_model=WorldConfig(voxel=[grid]))) for _ in range(2)]
    first, second = (checker._surroundings(client) for checker in checkers)
    assert isinstance(first, SceneHandle) and first == second and first.nbytes > 0
    assert first.scene_id not in before, "another test has stored the same"
    for checker in checkers:
        assert other.get(first.scene_id) == first
        checker.clear_cache()
        checker._surroundings(client)
    with pytest.raises(SceneNotFound):
        other.get(first.scene_id)


def test_a_world_is_stored_for_a_while_too(client: Client, other: Client) -> None:
    world = World([Obstacle(Grid(np.ones((40, 40, 40), np.float32), 0.05))])
    handle = other.put(world)
    with stored(client, world) as mine:
        assert mine.scene_id == handle.scene_id
    assert other.get(handle.scene_id).kind == "world"
    other.delete(handle)


def test_a_handle_that_is_trained_gets_the_next_version(client: Client) -> None:
    scene = gaussians(130)
    handle = client.put(scene)
    client.put(scene)
    with client.trainer(handle, [CAMERA], [np.zeros((24, 32, 3), np.uint8)], rates={"sh0": 1e-2}) as trainer:
        trainer.step()
        assert (trainer.publish().scene_id, trainer.publish().version) == (handle.scene_id, 3)
    client.delete(handle)


def test_a_scene_that_was_read_back_stays(tmp_path: Path) -> None:
    scene = Spheres(np.zeros((4, 3)), np.ones((4, 3)), np.ones(4))
    with spooling(tmp_path, "--crash-seconds", "0.1") as process, Client(process.target, retry_s=60) as client:
        handle = client.put(scene)
        wait_until_written(process)
        kill(process)
        # The restarted worker no longer knows how often the scene was put.
        with stored(client, scene) as same:
            assert same.scene_id == handle.scene_id
        assert without_copy(client, handle) == handle
