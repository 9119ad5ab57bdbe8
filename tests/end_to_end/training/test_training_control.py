"""A training also changes the number of its Gaussians, the poses of its cameras, and their exposures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from lumigrad.client import (
    AdaptiveDensity,
    Camera,
    Client,
    Gaussians,
    InvalidArgument,
    Loss,
    Mcmc,
    Rate,
    SceneNotFound,
    TargetImage,
)
from lumigrad.client.calls.scenes import stored
from support.training.scenes import Lesson, gaussian_lesson, sphere_lesson

LESSON: Lesson = gaussian_lesson()
COUNT = len(LESSON.scene.means)
RATES = {"means": 2e-3, "quats": 1e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 5e-3, "sh_rest": 2e-4}


def moved(camera: Camera, shift: float) -> Camera:
    """The same camera, with another translation."""
    model = camera.model
    return Camera(camera.width, camera.height, dataclasses.replace(model, translation=model.translation + shift))


def test_gaussians_are_cloned_split_and_pruned(client: Client) -> None:
    density = AdaptiveDensity(start=2, every=5, grow_gradient=2e-5, grow_scale=0.03, prune_opacity=0.35, reset_every=12)
    with client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES, density=density) as trainer:
        steps = list(trainer.steps(24))
        reports = [step.density for step in steps if step.density]
        assert any(report.cloned for report in reports) and any(report.split for report in reports)
        assert any(report.pruned for report in reports)
        assert [step.number for step in steps if step.density and step.density.opacities_reset] == [12]
        changes = {step.number: step.density for step in steps if step.density}
        count = COUNT
        for step in steps:
            report = changes.get(step.number)
            if report:
                count += report.cloned + report.split - report.pruned
            assert step.count == count
        assert len(trainer.scene().means) == count


def test_mcmc_keeps_to_its_cap_and_repeats_itself(client: Client) -> None:
    scenes = []
    for seed in (4, 4, 5):
        trainer = client.trainer(
            LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES, seed=seed,
            loss=Loss(opacity=0.01, scale=0.01), density=Mcmc(cap=COUNT + 15, start=0, every=4, min_opacity=0.1),
        )  # fmt: skip
        with trainer:
            steps = list(trainer.steps(20))
            scenes.append(trainer.scene())
        assert steps[-1].count == COUNT + 15
        assert sum(step.density.added for step in steps if step.density) == 15
        assert steps[-1].terms["opacity"] > 0 and steps[-1].terms["scale"] > 0
    for name, array in scenes[0].tensors.items():
        assert np.array_equal(array, scenes[1].tensors[name]), name
    assert not np.array_equal(scenes[0].means, scenes[2].means)


def test_gradients_of_gaussians_that_are_gone_are_discarded(client: Client) -> None:
    density = AdaptiveDensity(start=1, every=2, grow_gradient=0.0, reset_every=0)
    with client.trainer(LESSON.scene, LESSON.cameras, rates=RATES, density=density) as trainer:
        done = [batch.apply(color=np.ones_like(batch.color)) for batch in trainer.batches(5, in_flight=2)]
    assert [step.number for step in done] == [0, 1, 2, 3, 4]
    # Step 3 was rendered before step 2 had cloned Gaussians that it shows.
    assert [step.discarded for step in done] == [False, False, False, True, False]


def test_steps_of_one_s_own_loss_do_not_keep_the_pace_before(client: Client) -> None:
    density = Mcmc(cap=COUNT + 100, start=0, every=4)
    given = {"rates": RATES, "density": density}
    with client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), **given) as trainer:
        done = [*trainer.steps(3, pace=2)]
        done += [batch.apply(color=np.ones_like(batch.color)).result() for batch in trainer.batches(6)]
    assert [step.number for step in done if step.density] == [2, 4, 8]


@pytest.mark.parametrize("kind", ["gaussians", "spheres"])
def test_cameras_find_back_to_where_the_pictures_were_taken(kind: str, client: Client) -> None:
    settings = {} if kind == "gaussians" else {"gamma": 0.05, "max_depth": 8.0, "min_depth": 0.5}
    lesson = gaussian_lesson() if kind == "gaussians" else sphere_lesson()
    shown = [client.render(lesson.scene, camera, **settings).color for camera in lesson.cameras]
    wrong = [moved(camera, 0.03) for camera in lesson.cameras]
    still = {"colors": 0.0} if kind == "spheres" else {"sh0": 0.0}
    trainer = client.trainer(lesson.scene, wrong, shown, rates=still, refine_poses=2e-3, **settings)
    with trainer:
        steps = list(trainer.steps(160))
        views, exposures = trainer.views()
    assert exposures is None
    # Small turns and small shifts look alike: what counts is what the cameras see.
    assert all(
        list(view.camera.opencv.rotation) != camera.model.rotation.ravel().tolist()
        for view, camera in zip(views, wrong, strict=True)
    )
    # Outlines of spheres are sharp, and their derivatives do not see them.
    share = 0.4 if kind == "gaussians" else 0.7
    assert np.mean([step.loss for step in steps[-8:]]) < share * np.mean([step.loss for step in steps[:8]])


def test_exposures_take_up_what_cameras_did_to_colours(client: Client) -> None:
    shown = [client.render(LESSON.scene, camera).color for camera in LESSON.cameras]
    gains = (0.7, 0.9, 1.1, 1.3)
    target_images = [TargetImage(gain * picture) for gain, picture in zip(gains, shown, strict=True)]
    trainer = client.trainer(
        LESSON.scene, LESSON.cameras, target_images, rates={"sh0": 0.0}, refine_exposures=Rate(3e-2, 1e-3, 400)
    )
    with trainer:
        list(trainer.steps(400))
        _, exposures = trainer.views()
    assert exposures is not None and exposures.shape == (4, 3, 4)
    exposed = [picture @ matrix[:, :3].T + matrix[:, 3] for picture, matrix in zip(shown, exposures, strict=True)]
    for picture, exposed_picture, target_image in zip(shown, exposed, target_images, strict=True):
        before, after = np.abs(picture - target_image.color).mean(), np.abs(exposed_picture - target_image.color).mean()
        assert after < 0.15 * before


def test_exposures_do_not_change_what_the_scene_and_the_loss_agree_on(client: Client) -> None:
    target_images = [client.render(LESSON.truth, camera).color for camera in LESSON.cameras]
    # Fainter Gaussians cost less; brighter exposures would make up for that.
    trainer = client.trainer(
        LESSON.scene, LESSON.cameras, target_images, rates=RATES, loss=Loss(opacity=0.3), refine_exposures=1e-2
    )
    with trainer:
        list(trainer.steps(80))
        _, exposures = trainer.views()
        scene = trainer.scene()
    assert exposures is not None
    np.testing.assert_allclose(exposures.mean(axis=0), np.eye(3, 4), atol=1e-5)
    assert np.abs(exposures - np.eye(3, 4)).max() > 1e-3
    means = [
        np.mean([client.render(each, camera).color.mean() for camera in LESSON.cameras])
        for each in (LESSON.truth, scene)
    ]
    assert means[1] == pytest.approx(means[0], rel=0.05)


def test_masks_and_depths_count(client: Client) -> None:
    camera = LESSON.cameras[0]
    frame = client.render(LESSON.truth, camera, outputs=("color", "expected_depth", "alpha"))
    half = np.zeros(frame.alpha.shape, np.float32)
    half[:, : half.shape[1] // 2] = 1
    depth = np.where(frame.alpha > 0.5, frame.expected_depth, 0)
    target_image = TargetImage(frame.color, mask=half, depth=depth)
    options = {"rates": RATES, "loss": Loss(depth=0.1, alpha=0.0)}
    with client.trainer(LESSON.scene, [camera], [target_image], **options) as trainer:
        steps = list(trainer.steps(30))
    assert steps[-1].terms["depth"] < steps[0].terms["depth"]
    assert steps[-1].loss < steps[0].loss
    with client.trainer(
        LESSON.scene, [camera], [TargetImage(mask=half)], rates=RATES, loss=Loss(0, 0, 0, alpha=1)
    ) as trainer:
        steps = list(trainer.steps(30))
    assert steps[-1].terms["alpha"] < 0.9 * steps[0].terms["alpha"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mask": np.ones((32, 40), np.float32)}, r"^loss\.depth: expected 0: no target image has a depth, got 0\.5$"),
        ({"depth": np.ones((32, 40), np.float32)}, r"^loss\.alpha: expected 0: no target image has a mask, got 0\.5$"),
    ],
)
def test_a_term_that_has_nothing_to_compare_is_refused(client: Client, given: dict[str, Any], text: str) -> None:
    color = np.zeros((32, 40, 3), np.uint8)
    plain, planes = [TargetImage(color)] * 3, [TargetImage(color, **given)]
    loss = Loss(depth=0.5, alpha=0.5)
    with pytest.raises(InvalidArgument, match=text):
        client.trainer(LESSON.scene, LESSON.cameras, plain + planes, loss=loss)
    # One photograph with both is enough.
    both = [TargetImage(color, mask=np.ones((32, 40)), depth=np.ones((32, 40)))]
    with client.trainer(LESSON.scene, LESSON.cameras, plain + both, rates=RATES, loss=loss) as trainer:
        assert {name for step in trainer.steps(4) for name in step.terms} >= {"depth", "alpha"}


@pytest.mark.parametrize(("density", "name"), [(Mcmc(cap=7), "cap"), (AdaptiveDensity(max_count=7), "max_count")])
def test_more_gaussians_than_density_control_may_make_are_warned_of(
    client: Client, density: Mcmc | AdaptiveDensity, name: str
) -> None:
    text = rf"^{name}: the training begins with {len(LESSON.scene)} Gaussians, more than 7: none are added$"
    images = [np.zeros((32, 40, 3), np.uint8)] * len(LESSON.cameras)
    with pytest.warns(UserWarning, match=text):
        client.trainer(LESSON.scene, LESSON.cameras, images, density=density).close()


@pytest.mark.parametrize("name", ["mask", "depth"])
def test_batches_of_target_images_that_differ_are_refused_before_the_first_step(client: Client, name: str) -> None:
    color = np.zeros((32, 40, 3), np.uint8)
    images = [TargetImage(color)] * 3 + [TargetImage(color, **{name: np.ones((32, 40))})]
    text = rf"^batch: expected 1, for only some target images have a {name}, got 2$"
    loss = Loss(depth=0.1) if name == "depth" else Loss()
    with client.trainer(LESSON.scene, LESSON.cameras, images, rates=RATES, loss=loss) as trainer:
        with pytest.raises(InvalidArgument, match=text):
            list(trainer.steps(20, batch=2))
        assert trainer.step_number == 0
        assert len(list(trainer.steps(4))) == 4
        assert len(list(trainer.steps(2, views=[[0, 1], [1, 2]]))) == 2
    # Depths that no term compares do not matter.
    if name == "depth":
        with client.trainer(LESSON.scene, LESSON.cameras, images, rates=RATES) as trainer:
            assert len(list(trainer.steps(4, batch=2))) == 4


def test_target_images_with_other_channels_than_the_scene_are_refused(client: Client) -> None:
    images = [np.zeros((32, 40, channels), np.uint8) for channels in (3, 3, 4, 3)]
    text = r"^target_images\[2\]: expected 3 channels, as the scene has, got 4$"
    with pytest.raises(InvalidArgument, match=text):
        client.trainer(LESSON.scene, LESSON.cameras, images, rates=RATES)


def test_target_images_are_stored_once_and_come_back(client: Client) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (6, 5, 3), np.uint8)
    handle = client.put(TargetImage(picture, depth=np.ones((6, 5))))
    assert handle.kind == "target" and handle.count == 30
    assert client.put(TargetImage(picture, depth=np.ones((6, 5)))).scene_id == handle.scene_id
    again = client.get(handle.scene_id, with_tensors=True).scene
    assert again.color.dtype == np.uint8 and np.array_equal(again.color, picture)
    with pytest.raises(InvalidArgument, match=r"got a target image$"):
        client.render(handle, LESSON.cameras[0])
    with pytest.raises(InvalidArgument, match="size of its target image, 5x6"):
        client.trainer(LESSON.scene, LESSON.cameras[:1], [handle])
    with pytest.raises(InvalidArgument, match=r"^target_images: expected 4, one for each camera, got 1$"):
        client.trainer(LESSON.scene, LESSON.cameras, target_images=[handle])
    with pytest.raises(
        InvalidArgument, match=r"^target_images\[0\]: expected the handle of a target image, got one of gaussians$"
    ):
        client.trainer(LESSON.scene, LESSON.cameras[:1], [client.put(LESSON.scene)])


def test_a_training_puts_none_of_its_target_images(client: Client) -> None:
    size = LESSON.cameras[0].height, LESSON.cameras[0].width
    with (
        stored(client, TargetImage(np.full((*size, 3), 77, np.uint8))) as handle,
        client.trainer(LESSON.scene, LESSON.cameras[:1], [handle], rates=RATES) as trainer,
    ):
        trainer.step()
    # A scene that is put once, and taken back once, is gone.
    with pytest.raises(SceneNotFound):
        client.get(handle.scene_id)


def test_some_images_come_along(client: Client) -> None:
    with client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES) as trainer:
        step = trainer.step([1], outputs=("color", "alpha"), image_format="uint8")
        assert step.images is not None and step.images.color.dtype == np.uint8
        picture = client.render(LESSON.scene, LESSON.cameras[1]).color
        assert np.abs(step.images.color[0] / 255 - np.clip(picture, 0, 1)).max() <= 0.5 / 255 + 1e-6
        assert isinstance(trainer.scene(), Gaussians)


def test_loops_that_end_early_leave_a_training_that_goes_on(client: Client) -> None:
    with client.trainer(LESSON.scene, LESSON.cameras, LESSON.wrapped(client), rates=RATES) as trainer:
        for _ in trainer.steps(10, outputs=("color",), in_flight=4):
            break
        # The steps that were sent ahead are made.
        steps = list(trainer.steps(3, views=[[2], [1], [0]], outputs=("color",)))
        assert [step.number for step in steps] == [4, 5, 6] and [step.views for step in steps] == [(2,), (1,), (0,)]
        assert [step.images.views for step in steps if step.images] == [(2,), (1,), (0,)]
        assert trainer.resumed == 0


def test_batches_that_get_no_gradient_are_forgotten(client: Client) -> None:
    scenes = []
    for leaves in (False, True):
        with client.trainer(LESSON.scene, LESSON.cameras, rates=RATES, seed=3) as trainer:
            done = [batch.apply(color=batch.color) for batch in trainer.batches(2)]
            for _ in range(2 * leaves):
                for _ in trainer.batches(5, in_flight=2):
                    break
                assert trainer.step_number == 2
            done += [batch.apply(color=batch.color) for batch in trainer.batches(3, views=[[0], [1], [2]])]
            assert [step.number for step in done] == [0, 1, 2, 3, 4]
            scenes.append(trainer.scene())
    for name, array in scenes[0].tensors.items():
        assert np.array_equal(array, scenes[1].tensors[name]), name


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("asked", ["publish", "scene", "cameras"])
def test_images_of_a_loop_that_was_left_keep_nobody_waiting(client: Client, asked: str, in_flight: int) -> None:
    with client.trainer(LESSON.scene, LESSON.cameras, rates=RATES) as trainer:
        before = trainer.scene()
        for batch in trainer.batches(3, in_flight=in_flight):
            assert batch.color.any()
            break
        getattr(trainer, asked)()
        assert trainer.step_number == 0
        for name, array in trainer.scene().tensors.items():
            np.testing.assert_array_equal(array, before.tensors[name])
        numbers = [batch.apply(color=np.ones_like(batch.color)).number for batch in trainer.batches(3)]
        assert numbers == [0, 1, 2]
        # In the loop, images that were rendered stay as they are.
        for batch in trainer.batches(2):
            batch.apply(color=np.ones_like(batch.color))
            assert getattr(trainer, asked)()
        assert trainer.step_number == 5
