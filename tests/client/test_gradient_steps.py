"""Steps that a client makes on gradients from a worker: they are those that the worker itself would make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, Spheres
from lumigrad.client.fitting.adam import Adam
from lumigrad.client.fitting.evaluation import exposures_nearby
from lumigrad.client.fitting.gradient_trainer import GradientTrainer
from lumigrad.client.fitting.markov_chain import MarkovChain
from lumigrad.client.fitting.picture_loss import PictureLoss
from lumigrad.client.fitting.raw_scene import RawScene
from lumigrad.client.fitting.recipe import Recipe
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.fitting.similarity import ssim
from lumigrad.client.training.density import Mcmc

WIDTH, HEIGHT = 48, 40


def gaussians(count: int = 80, seed: int = 0) -> Gaussians:
    generator = np.random.default_rng(seed)
    return Gaussians(
        generator.normal(scale=0.6, size=(count, 3)),
        generator.normal(size=(count, 4)),
        generator.uniform(0.05, 0.2, (count, 3)),
        generator.uniform(0.2, 0.9, count),
        sh=generator.normal(scale=0.3, size=(count, 4, 3)),
    )


def spheres(seed: int = 0) -> Spheres:
    generator = np.random.default_rng(seed)
    return Spheres(
        generator.normal(scale=0.6, size=(30, 3)), generator.random((30, 3)), generator.uniform(0.1, 0.2, 30)
    )


def shots(masked: bool = False) -> list[Shot]:
    generator = np.random.default_rng(1)
    mask = None
    if masked:
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        mask[8:] = 255
    return [
        Shot(
            str(azimuth),
            generator.integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8),
            mask,
            Camera.orbit((0, 0, 0), 4.0, azimuth, 60.0, width=WIDTH, height=HEIGHT),
        )
        for azimuth in (0, 100, 200)
    ]


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_a_picture_has_its_gradient(masked: bool):
    generator = np.random.default_rng(0)
    x, y, direction = generator.random((3, 19, 23, 3))
    mask = None
    if masked:
        mask = np.zeros((19, 23), np.uint8)
        mask[4:, 3:] = 255
    found = PictureLoss.of(x, y, mask, 0.8, 0.2)
    step = 1e-6
    above, below = (PictureLoss.of(x + sign * step * direction, y, mask, 0.8, 0.2).value for sign in (1, -1))
    assert (found.gradient * direction).sum() == pytest.approx((above - below) / (2 * step), rel=1e-4)
    assert found.terms["dssim"] == pytest.approx(1 - ssim(x, y, mask), abs=1e-9)


def test_adam_goes_downhill_at_its_rate():
    parameter, target = np.zeros(4, np.float32), np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    adam = Adam.of(parameter)
    adam.step(parameter, parameter - target, 0.01)
    assert parameter == pytest.approx(0.01 * np.sign(target), rel=1e-4)
    for _ in range(2000):
        adam.step(parameter, parameter - target, 0.01)
    assert parameter == pytest.approx(target, abs=0.02)


@pytest.mark.parametrize("kind", ["gaussians", "spheres"])
@pytest.mark.parametrize("masked", [False, True])
def test_steps_here_are_those_on_the_worker(client: Client, kind: str, masked: bool):
    begin = gaussians() if kind == "gaussians" else spheres()
    taken = shots(masked)
    recipe = Recipe(kind=kind, steps=28, sh_degree=1, strategy="none")  # type: ignore[arg-type]
    here = GradientTrainer(client, begin, taken, recipe)
    results = list(here.steps(9))
    cameras, targets = [shot.camera for shot in taken], [shot.target for shot in taken]
    with client.trainer(begin, cameras, targets, **recipe.trainer_options()) as there:
        expected = list(there.steps(9, views=[step.views for step in results]))
        scene, exposures = there.scene(), there.views()[1]
    assert [step.loss for step in results] == pytest.approx([step.loss for step in expected], rel=2e-3)
    assert [step.psnr for step in results] == pytest.approx([step.psnr for step in expected], abs=0.02)
    assert exposures is not None and here.exposures() == pytest.approx(exposures, abs=2e-4)
    found = here.scene()
    for name, values in scene.tensors.items():  # type: ignore[union-attr]
        moved = np.abs(values - begin.tensors[name]).mean()
        # Adam makes a whole step of a gradient that is all rounding.
        assert np.median(np.abs(found.tensors[name] - values)) < 0.01 * moved, name
    here.close()


def test_shares_of_a_gaussian_look_as_it_did():
    options = Mcmc(cap=300, start=0, every=1)
    raw = RawScene.of(gaussians(200))
    dead = np.arange(0, 200, 10)
    raw.tensors["opacities"][dead] = -9.0
    before = raw.scene()
    assert isinstance(before, Gaussians)
    MarkovChain(options, 3).after_step(raw, 5, 0.0)
    after = raw.scene()
    assert isinstance(after, Gaussians) and after.scales is not None and before.scales is not None
    # A twentieth more, and nobody is dead.
    assert len(after) == 210 and (after.opacities > 0.004).all()
    alive = np.setdiff1d(np.arange(200), dead)
    positions = {tuple(mean): row for row, mean in zip(alive, before.means[alive], strict=True)}
    rows = np.array([positions[tuple(mean)] for mean in after.means])
    counts = np.bincount(rows, minlength=200)
    # What light comes through all shares of one in one place is what came through it.
    left = np.ones(200)
    np.multiply.at(left, rows, 1.0 - after.opacities)
    shared = (counts == 2) & (before.opacities < 0.9)
    assert shared.any()
    assert left[shared] == pytest.approx(1 - before.opacities[shared], abs=2e-3)
    assert counts[alive].min() >= 1


def test_noise_moves_what_is_nearly_transparent():
    raw = RawScene.of(gaussians(50))
    raw.tensors["opacities"][:25] = -9.0
    before = raw.tensors["means"].copy()
    MarkovChain(Mcmc(cap=50, start=100), 0).after_step(raw, 0, 1.0)
    moved = np.linalg.norm(raw.tensors["means"] - before, axis=1)
    assert moved[:25].min() > 0 and moved[:25].mean() > 100 * moved[25:].mean()


def test_what_is_for_the_worker_only_is_refused(client: Client):
    with pytest.raises(InvalidArgument, match="strategy: expected mcmc or none"):
        GradientTrainer(client, gaussians(), shots(), Recipe(strategy="adaptive", cap=100))
    with pytest.raises(InvalidArgument, match="refine_poses"):
        GradientTrainer(client, gaussians(), shots(), Recipe(poses=True, strategy="none"))


def test_exposures_lie_between_those_of_neighbours(client: Client):
    scene, taken = gaussians(), shots()
    pictures = [client.render(scene, shot.camera).color for shot in taken]
    gains = (0.4, 0.9, 0.6)
    # The second is in the middle, by name, and its own photograph is not looked at.
    exposed = [
        replace(shot, name=name, pixels=np.rint(255 * (gain * picture).clip(0, 1)).astype(np.uint8))
        for shot, name, gain, picture in zip(taken, ("a", "b", "c"), gains, pictures, strict=True)
    ]
    found = exposures_nearby(client, scene, exposed[1:2], [exposed[2], exposed[0]])
    assert found is not None and found.shape == (1, 3, 4)
    assert found[0] == pytest.approx(0.5 * np.eye(3, 4), abs=0.05)
    assert exposures_nearby(client, scene, exposed, []) is None
