"""Trainings on a real worker: equal to the same steps made here, whatever the loss, and whoever computes it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Gaussians, InvalidArgument, Spheres, TrainingHeld
from lumigrad.client.training import Loss, Rate
from support.closeness import assert_relative
from support.training.local_training import LocalTraining, loss_of
from support.training.scenes import Lesson, gaussian_lesson, sphere_lesson

STEPS = {"gaussians": 50, "colors": 50, "still spheres": 50, "spheres": 8}
# Gradients of parts that are hardly seen are rounding errors, none of which should make a step of full size.
EPSILON = 1e-6
# No byte shows the background exactly: a difference of 0 would have its sign by chance.
SPHERE_SETTINGS = {"gamma": 0.05, "max_depth": 8.0, "min_depth": 0.5, "background": np.full(3, 0.3)}
RATES = {
    "gaussians": {"means": Rate(2e-3, 2e-4, 40), "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 2e-3,
                  "sh_rest": 1e-4},
    "colors": {"means": 1e-3, "scales": 5e-3, "opacities": 2e-2, "colors": 3e-3},
    # The outline of a sphere is sharp: where it passes a pixel, a rounding error becomes a jump.
    "still spheres": {"colors": 1e-2, "opacities": 2e-2},
    "spheres": {"positions": Rate(2e-3, 2e-4, 40), "colors": 1e-2, "radii": 5e-3, "opacities": 2e-2},
}  # fmt: skip
LESSONS = {
    "gaussians": (gaussian_lesson(), {}),
    "colors": (gaussian_lesson(degree=None), {}),
    "still spheres": (sphere_lesson(), SPHERE_SETTINGS),
    "spheres": (sphere_lesson(), SPHERE_SETTINGS),
}
LOSSES = {
    "mixed": Loss(),
    "valid": Loss(l1=0.5, dssim=0.5, padding="valid"),
    "squared": Loss(l1=0.0, l2=1.0, dssim=0.0),
}


def assert_same(found: Gaussians | Spheres, expected: Mapping[str, torch.Tensor]) -> None:
    for name, array in found.tensors.items():
        assert_relative(name, array, expected[name].detach().numpy(), 1e-5)


def order(count: int) -> list[list[int]]:
    return [[step % 4, (step + 1) % 4] if step % 3 == 0 else [step % 4] for step in range(count)]


@pytest.mark.parametrize("name", LESSONS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_steps_there_equal_steps_here(name: str, loss: Loss, client: Client) -> None:
    lesson, settings = LESSONS[name]
    target_images = lesson.target_images(client, **settings)
    local = LocalTraining(lesson.scene, RATES[name], client, EPSILON, **settings)
    expected = [
        local.step(
            number,
            [lesson.cameras[view] for view in views],
            torch.from_numpy(np.stack([target_images[view] for view in views])) / 255,
            loss,
        )
        for number, views in enumerate(order(STEPS[name]))
    ]
    options = {"rates": RATES[name], "epsilon": EPSILON, **settings}
    with client.trainer(lesson.scene, lesson.cameras, target_images, loss=loss, **options) as trainer:
        done = list(trainer.steps(STEPS[name], views=order(STEPS[name])))
        np.testing.assert_allclose([step.loss for step in done], expected, rtol=2e-4)
        assert_same(trainer.scene(), local.values())


@pytest.mark.parametrize("name", LESSONS)
def test_a_loss_of_one_s_own_gives_the_same(name: str, client: Client) -> None:
    lesson, settings = LESSONS[name]
    target_images = [torch.from_numpy(image) / 255 for image in lesson.target_images(client, **settings)]
    local = LocalTraining(lesson.scene, RATES[name], client, EPSILON, **settings)
    loss = Loss()
    with client.trainer(lesson.scene, lesson.cameras, rates=RATES[name], epsilon=EPSILON, **settings) as trainer:
        for batch in trainer.batches(8, views=order(8)):
            picture = torch.tensor(batch.color, requires_grad=True)
            target_image = torch.stack([target_images[view] for view in batch.views])
            torch.autograd.backward(loss_of(loss, picture, target_image))
            done = batch.apply(color=picture.grad)
            assert np.isnan(done.loss)
            local.step(done.number, [lesson.cameras[view] for view in done.views], target_image, loss)
        assert_same(trainer.scene(), local.values())


def test_the_worker_takes_each_view_once_before_any_comes_again(client: Client) -> None:
    lesson: Lesson = gaussian_lesson()
    with client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client), rates={"means": 1e-4}, seed=3) as trainer:
        views = [step.views[0] for step in trainer.steps(8)]
    assert sorted(views[:4]) == sorted(views[4:]) == [0, 1, 2, 3]
    with client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client), rates={"means": 1e-4}, seed=3) as trainer:
        assert [step.views[0] for step in trainer.steps(8)] == views


def test_steps_of_several_views_go_on_where_their_number_does_not_divide_that_of_all(client: Client) -> None:
    lesson: Lesson = gaussian_lesson()
    cameras, target_images = lesson.cameras[:3], lesson.wrapped(client)[:3]
    with client.trainer(lesson.scene, cameras, target_images, rates={"means": 1e-4}, seed=3) as trainer:
        views = [step.views for step in trainer.steps(12, batch=2)]
        assert all(len(set(each)) == 2 for each in views)
        shown = [number for each in views for number in each]
        assert all(sorted(shown[start : start + 3]) == [0, 1, 2] for start in range(0, 24, 3))
        with pytest.raises(InvalidArgument, match=r"^batch: expected at most 3, the number of views, got 4"):
            next(trainer.steps(1, batch=4))
        assert next(trainer.steps(1, batch=3)).number == 12


def test_two_clients_cannot_train_one_scene(client: Client) -> None:
    lesson = gaussian_lesson()
    handle = client.put(lesson.scene)
    with client.trainer(handle, lesson.cameras, lesson.wrapped(client), rates={"means": 1e-4}) as trainer:
        trainer.step()
        with pytest.raises(
            TrainingHeld, match=r"continue that training with resume_trainer, .* for --training-seconds"
        ):
            client.trainer(handle, lesson.cameras, lesson.wrapped(client), rates={"means": 1e-4})
    client.trainer(handle, lesson.cameras, lesson.wrapped(client), rates={"means": 1e-4}).close()


def test_what_a_training_is_not_told_it_refuses(client: Client) -> None:
    lesson = gaussian_lesson()
    with pytest.raises(InvalidArgument, match=r"^rates: expected one of means"):
        client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client), rates={"mean": 1e-4})
    with pytest.raises(InvalidArgument, match="gamma: belongs to spheres"):
        client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client), gamma=0.1)
    trainer = client.trainer(lesson.scene, lesson.cameras, lesson.wrapped(client))
    with trainer, pytest.raises(InvalidArgument, match=r"^views: expected a whole number from 0 to 3, got 7"):
        trainer.step([7])
