"""Wrong arguments of training steps are refused by their Python names, before anything is sent, and end nothing."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import AdaptiveDensity, Camera, Client, InvalidArgument, LumigradError
from lumigrad.client.aio import AsyncClient
from lumigrad.client.training import Loss, Rate
from lumigrad.client.training import trainer as trainers
from lumigrad.client.training.trainer import Trainer
from support.training.scenes import cameras, gaussian_lesson, sphere_lesson
from support.workers.worker import worker

LESSON = gaussian_lesson(40)
# The last view is of another size.
CAMERAS = [*cameras(3), Camera.look_at((0, 0, 4), (0, 0, 0), width=24, height=20)]
IMAGES = [np.zeros((camera.height, camera.width, 3), np.uint8) for camera in CAMERAS]
OPTIONS: dict[str, Any] = {"rates": {"sh0": 1e-2, "means": Rate(1e-3, 1e-5, 100)}}


@pytest.fixture
def trainer(client: Client) -> Iterator[Trainer]:
    with client.trainer(LESSON.scene, CAMERAS, IMAGES, **OPTIONS) as started:
        yield started


@pytest.fixture
def own(client: Client) -> Iterator[Trainer]:
    """A trainer whose loss the client computes."""
    with client.trainer(LESSON.scene, CAMERAS, **OPTIONS) as started:
        yield started


def sent(monkeypatch: pytest.MonkeyPatch, trainer: Trainer) -> list[Any]:
    """The requests that are sent from now on."""
    found: list[Any] = []
    send = trainer._stream.send
    monkeypatch.setattr(trainer._stream, "send", lambda request: (found.append(request), send(request)))
    return found


REFUSED: dict[str, tuple[str, Callable[[Trainer], Any]]] = {
    "fraction": (r"count: expected a whole number", lambda it: list(it.steps(2.5))),
    "negative": (r"count: expected a whole number from 0", lambda it: list(it.steps(-1))),
    "numbers": (r"views\[0\]: expected numbers of views, got int", lambda it: list(it.steps(2, views=[0, 1]))),
    "one number": (r"views: expected numbers of views, got int", lambda it: it.step(0)),
    "too few": (r"views: expected the views of 3 steps, got those of 1", lambda it: list(it.steps(3, views=[[0]]))),
    "out of range": (
        r"views\[1\]: expected a whole number from 0 to 3",
        lambda it: list(it.steps(2, views=[[0], [4]])),
    ),
    "twice": (r"views: expected each view once", lambda it: it.step([1, 1])),
    "two sizes": (r"views: expected views of one size, got 24x20 and 40x32", lambda it: it.step([0, 3])),
    "output": (r"outputs: expected one of color", lambda it: it.step([0], outputs=("colour",))),
    "format": (r"image_format: expected one of", lambda it: it.step([0], outputs=("color",), image_format="png")),
    "bytes": (r"image_format: .* uint8 for depth", lambda it: it.step([0], outputs=("depth",), image_format="uint8")),
    "batch": (r"batch: expected a whole number from 1", lambda it: it.step(batch=0)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_step_is_refused_before_it_is_sent(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    text, attempt = REFUSED[case]
    trainer.step([0])
    requests = sent(monkeypatch, trainer)
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        attempt(trainer)
    assert requests == []
    assert trainer.step([1]).number == 1


WRONG_GRADIENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "shape": (r"color: expected the shape of the output, \[1, 32, 40, 3\]", {"color": np.ones((1, 10, 10, 3))}),
    "name": (r"colour: expected gradients of color", {"colour": np.ones((1, 32, 40, 3))}),
    "none": (r"gradients: expected at least one of color", {}),
    "format": (r"gradient_format: ", {"color": np.ones((1, 32, 40, 3)), "gradient_format": "float8"}),
    "text": (r"color: expected", {"color": "abc"}),
}


@pytest.mark.parametrize("case", WRONG_GRADIENTS)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_wrong_gradient_is_refused_before_it_is_sent(own: Trainer, case: str, in_flight: int) -> None:
    text, gradients = WRONG_GRADIENTS[case]
    for batch in own.batches(3, views=[[0], [1], [2]], in_flight=in_flight):
        with pytest.raises(InvalidArgument, match=f"^{text}"):
            batch.apply(**gradients)
        # The same batch is still open.
        batch.apply(color=np.ones_like(batch.color))
    assert own.step_number == 3


def without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the client know as little as one that resumes a training of another program."""
    monkeypatch.setattr(trainers, "step_outputs", lambda outputs, *_, **__: tuple(outputs))
    monkeypatch.setattr(
        trainers,
        "encoded_gradients",
        lambda images, given, _: {name: (np.asarray(array, np.float32), None) for name, array in given.items()},
    )


@pytest.mark.parametrize("in_flight", [1, 4])
def test_what_the_worker_refuses_is_left_out(client: Client, monkeypatch: pytest.MonkeyPatch, in_flight: int) -> None:
    with client.trainer(LESSON.scene, CAMERAS, IMAGES, **OPTIONS) as begun:
        begun.step([0])
        lease = begun.training_id, begun.lease
        begun.close(finish=False)
    without_checks(monkeypatch)
    with client.resume_trainer(*lease, target_images=IMAGES) as trainer:
        assert trainer.step([1]).number == 1
        views = [[0], [1], [99], [2]]
        with pytest.raises(InvalidArgument, match=r"^views: expected numbers below 4, got 99"):
            list(trainer.steps(4, views=views, in_flight=in_flight))
        assert trainer.step([2]).number == trainer.step_number - 1 == 4
        with pytest.raises(InvalidArgument, match=r"^outputs"):
            trainer.step([0], outputs=("colour",))
        assert [step.number for step in trainer.steps(2)] == [5, 6]
        # This worker has no spool.
        with pytest.raises(InvalidArgument, match=r"^snapshot: expected a worker with a spool"):
            trainer.snapshot()
        assert trainer.step(outputs=("color",)).images.color.shape[0] == 1
        assert trainer.publish().version == 2 and trainer.cameras()


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_gradients_that_the_worker_refuses_are_left_out(
    own: Trainer, monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    without_checks(monkeypatch)
    late = []
    with pytest.raises(InvalidArgument, match="shape"):
        for batch in own.batches(4, in_flight=in_flight):
            shape = batch.color.shape if batch.images.number != 1 else (1, 2, 2, 3)
            late.append(batch.apply(color=np.ones(shape, np.float32)))
        own.settle()
    for batch in own.batches(1, views=[[0]]):
        assert batch.apply(color=np.ones_like(batch.color)).number == 1
    assert own.step_number == 2
    assert late[0].number == late[0].result().number == 0
    for refused in late[1:]:
        with pytest.raises(LumigradError, match="was not done: the worker has refused its gradients"):
            refused.result()


def test_a_batch_that_is_applied_twice_ends_nothing(own: Trainer) -> None:
    for batch in own.batches(2):
        batch.apply(color=np.ones_like(batch.color))
        if batch.images.number == 1:
            with pytest.raises(LumigradError, match="step"):
                batch.apply(color=np.ones_like(batch.color))
    for batch in own.batches(2):
        batch.apply(color=np.ones_like(batch.color))
    assert own.step_number == 4


def test_the_same_for_programs_with_asyncio(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with (
            AsyncClient(client.target) as there,
            there.trainer(LESSON.scene, CAMERAS, IMAGES, **OPTIONS) as trainer,
        ):
            for text, wrong in (
                ("views: expected a whole number from 0 to 3", {"views": [9]}),
                ("outputs: expected one of", {"outputs": ("colour",)}),
            ):
                with pytest.raises(InvalidArgument, match=text):
                    await trainer.step(**wrong)
            with pytest.raises(InvalidArgument, match="count"):
                async for _ in trainer.steps(2.5):
                    pass
            without_checks(monkeypatch)
            with pytest.raises(InvalidArgument, match="outputs"):
                await trainer.step(outputs=("colour",))
            assert (await trainer.step([0])).number == 0
            assert (await trainer.publish()).version == 2

    asyncio.run(main())


def test_the_time_out_is_that_of_the_client(client: Client) -> None:
    with Client(client.target, timeout_s=75.5) as other:
        with other.trainer(LESSON.scene, CAMERAS, IMAGES, **OPTIONS) as trainer:
            assert trainer._stream._timeout_s == 75.5
            lease = trainer.training_id, trainer.lease
            trainer.close(finish=False)
        for given, expected in ((None, 75.5), (200.0, 200.0)):
            resumed = other.resume_trainer(*lease, target_images=IMAGES, timeout_s=given)
            assert resumed._stream._timeout_s == expected
            resumed.close(finish=given is not None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1e-3, 1e-5), r"^steps: expected a whole number from 1"),
        ((1e-3, 0.0, 100), r"^final: expected rates above 0"),
        ((1e-3, float("nan"), 100), r"^final: expected rates above 0"),
        (("1",), r"^initial: expected a number"),
    ],
)
def test_a_rate_that_cannot_change_is_refused(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        Rate(*arguments)


def test_rates_change_as_they_say() -> None:
    rate = Rate(1e-2, 1e-4, 10)
    assert [rate.at(step) for step in (0, 5, 10, 11)] == pytest.approx([1e-2, 1e-3, 1e-4, 1e-4])
    assert Rate(1e-2).at(7) == 1e-2
    message = Rate(np.float32(0.5), np.float64(0.25), np.int64(3)).message()
    assert (message.initial, message.final, message.steps) == (0.5, 0.25, 3)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"total_steps": 0}, "total_steps: expected a whole number from 1"),
        ({"extent": 0}, "extent: expected a radius above 0"),
        ({"rates": {"means": "fast"}}, r"rates\['means'\]: expected a number"),
    ],
)
def test_wrong_options_of_a_trainer_are_named(client: Client, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        client.trainer(LESSON.scene, CAMERAS, IMAGES, **wrong)


@pytest.mark.parametrize("name", ["outputs", "image_format", "jpeg_quality"])
def test_arguments_of_single_renderings_are_none_of_a_training(client: Client, name: str) -> None:
    given: Any = {"outputs": ("color",), "image_format": "uint8", "jpeg_quality": 90}
    with pytest.raises(InvalidArgument, match=rf"^{name}: expected a field of GaussianSettings"):
        client.trainer(LESSON.scene, CAMERAS, IMAGES, **{name: given[name]})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"refine_intrinsics": True}, "refine_intrinsics: expected a number, got True"),
        ({"refine_poses": False}, "refine_poses: expected a number, got False"),
        *(({"rates": {name: True}}, rf"rates\['{name}'\]: expected a number, got True") for name in ("means", "poses")),
        ({"total_steps": np.bool_(True)}, "total_steps: expected a whole number from 1"),
        (
            {"density": AdaptiveDensity(prune_opacity=0)},
            r"^density\.adaptive\.prune_opacity: expected a value above 0 with resets; reset_every = 0 .* got 0",
        ),
        ({"density": "mcmc"}, r"density: expected AdaptiveDensity, Mcmc or NoneType, got 'mcmc'; pass"),
        ({"loss": 0.8}, "loss: expected Loss or NoneType, got 0.8; pass a Loss"),
        ({"cameras": CAMERAS[0]}, "cameras: expected a list with a camera for each view, got one camera"),
        ({"rates": 1e-3}, "rates: expected Mapping or NoneType, got 0.001; pass rates by parameter"),
        ({"refine_lenses": "fast"}, "refine_lenses: expected a number, got 'fast'"),
        ({"refine_poses": -1.0}, "^refine_poses: expected a finite rate >= 0, got -1.0"),
        ({"refine_exposures": float("inf")}, "^refine_exposures: expected a finite rate >= 0, got inf"),
        (
            {"calibrations": [0, 0]},
            "calibrations: expected refine_intrinsics or refine_lenses with it, .* leave it out",
        ),
        ({"calibrations": [0, 0], "refine_poses": 1e-3}, "calibrations: expected refine_intrinsics or refine_lenses"),
        (
            {"target_images": ["a.png", "b.png"]},
            r"target_images\[0\]: expected an image, got the path 'a.png'; read the file, or",
        ),
        ({"target_images": [IMAGES[0], Path("a.png")]}, r"target_images\[1\]: expected an image, got the path 'a.png'"),
        (
            {"target_images": [IMAGES[0], np.zeros((4, 4), np.float32)]},
            r"^target_images\[1\]: color: expected shape \[H, W, K\], got \[4, 4\]",
        ),
        (
            {"target_images": [lambda: IMAGES[0], lambda: IMAGES[1][0]]},
            r"^target_images\[1\]: color: expected shape \[H, W, K\], got ",
        ),
        ({"target_images": [None, "b.png"]}, "color: expected at least one of color, mask and depth, got none"),
        ({"target_images": None, "loss": Loss()}, "loss: expected target_images with it, .* or leave it out"),
        (
            {"background": np.zeros((2, 3))},
            "^background: expected 3 values, one per channel, or none: .* all views, got 6",
        ),
        ({"background": [0.0] * 4}, "^background: expected 3 values, one per channel, or none: .* all views, got 4"),
    ],
)
def test_arguments_of_another_kind_are_named(client: Client, arguments: dict[str, Any], text: str) -> None:
    given = {"cameras": CAMERAS[:2], "target_images": IMAGES[:2], **arguments}
    with pytest.raises(InvalidArgument, match=text):
        client.trainer(LESSON.scene, **given)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((7, "lease"), "training_id: expected str, got 7; pass `Trainer.training_id`"),
        (("id", None), "lease: expected str, got None; pass `Trainer.lease`"),
    ],
)
def test_what_names_no_training_is_not_resumed(client: Client, arguments: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        client.resume_trainer(*arguments)


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_closed_trainer_says_so_and_how_to_go_on(is_finished: bool, client: Client) -> None:
    trainer = client.trainer(LESSON.scene, CAMERAS[:2], IMAGES[:2], **OPTIONS)
    trainer.close(finish=is_finished)
    calls: list[Callable[[], Any]] = [
        *(trainer.scene, trainer.publish, trainer.snapshot, trainer.views, trainer.step, trainer.cameras),
        *(lambda: list(trainer.steps(1)), lambda: list(trainer.batches(1))),
    ]
    for call in calls:
        with pytest.raises(LumigradError, match=r"^this trainer is closed; .*finish=False by `Client.resume_trainer`"):
            call()
    trainer.close()
    if not is_finished:
        client.resume_trainer(trainer.training_id, trainer.lease).close()


@pytest.mark.parametrize("name", ["poses", "end_poses", "intrinsics", "lenses", "exposures"])
@pytest.mark.parametrize("rate", [0.5, Rate(0.5, 1e-3, 100)])
def test_rates_beyond_any_error_are_told(client: Client, name: str, rate: float | Rate) -> None:
    # Neither cameras nor rates of these scenes are looked at before the warning.
    said = r"expected a rate of at most 0\.1, such as 1e-4, got 0\.5"
    with pytest.warns(UserWarning, match=rf"^refine_{name}: {said}") as told, suppress(InvalidArgument):
        client.trainer(LESSON.scene, CAMERAS[:2], IMAGES[:2], **{f"refine_{name}": rate}).close()
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=rf"^rates\['{name}'\]: {said}"), suppress(InvalidArgument):
        client.trainer(LESSON.scene, CAMERAS[:2], IMAGES[:2], rates={"means": 1e-3, name: rate}).close()


def test_snapshots_that_are_not_written_are_told(client: Client, tmp_path: Path) -> None:
    said = r"^snapshot_every: the worker writes no snapshots of this training: it has no spool \(--spool\)"
    with pytest.warns(UserWarning, match=said) as told:
        client.trainer(LESSON.scene, CAMERAS[:2], IMAGES[:2], snapshot_every=5).close()
    assert told[0].filename == __file__
    # A warning that is raised leaves no training behind.
    scene = client.put(LESSON.scene)
    for _ in range(2):
        with warnings.catch_warnings(), pytest.raises(UserWarning, match=said):
            warnings.simplefilter("error")
            client.trainer(scene, CAMERAS[:2], IMAGES[:2], snapshot_every=5)
    with (
        worker("--device", "cpu", "--spool", str(tmp_path)) as process,
        Client(process.target) as own,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        own.trainer(LESSON.scene, CAMERAS[:2], IMAGES[:2], snapshot_every=5).close()


def test_default_rates_are_those_of_a_scene_that_the_client_has_no_copy_of(client: Client) -> None:
    scenes = [gaussian_lesson(30, degree).scene for degree in (None, 0, 2)]
    lesson = sphere_lesson(30).scene
    spheres = replace(lesson, opacities=np.full(len(lesson), 0.5, np.float32))
    for scene in (*scenes, lesson, spheres):
        handle = client.put(scene)
        with client.trainer(client.get(handle.scene_id), CAMERAS[:2], IMAGES[:2], total_steps=10) as trainer:
            list(trainer.steps(3))
            found = trainer.scene()
            published = trainer.publish()
        assert all(not np.array_equal(found.tensors[name], scene.tensors[name]) for name in scene.tensors)
        with client.trainer(published, CAMERAS[:2], IMAGES[:2], total_steps=10) as trainer:
            list(trainer.steps(1))


@pytest.mark.parametrize("degree", [None, 1])
def test_other_mistakes_are_named_for_such_a_scene(client: Client, degree: int | None) -> None:
    handle = client.get(client.put(gaussian_lesson(30, degree).scene).scene_id)
    with pytest.raises(InvalidArgument, match=r"^rates\[poses\]\.initial: expected a finite rate >= 0, got -1"):
        client.trainer(handle, CAMERAS[:2], IMAGES[:2], refine_poses=Rate(-1.0))
