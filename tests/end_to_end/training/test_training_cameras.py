"""Trainings refine cameras: intrinsics and lenses of calibrations, and both poses of rolling shutters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import (
    AdaptiveDensity,
    Camera,
    Client,
    FisheyeLens,
    FThetaLens,
    InvalidArgument,
    Mcmc,
    OrthographicLens,
    PinholeLens,
    Rate,
    Windshield,
)
from lumigrad.client.values.lenses import Lens
from lumigrad.client.values.rotations import axis_angle_rotation
from lumigrad.v1 import training_pb2
from support.training.scenes import gaussian_lesson
from support.workers.worker import worker

SCENE = gaussian_lesson(count=300).scene
EYES = [(4 * np.sin(angle), 0.7 * np.cos(3 * angle), 4 * np.cos(angle)) for angle in np.linspace(0, 5.2, 6)]
SIZE = (64, 48)
FILM = {"fx": 60.0, "fy": 62.0, "cx": 32.0, "cy": 24.0}
SHIFT = np.array([0.1, -0.05, 0.05])
STILL = {"sh0": 0.0}


def cameras(lens: Lens, size: tuple[int, int] = SIZE, **options: Any) -> list[Camera]:
    """Cameras around the origin, with one lens."""
    models = [Camera.look_at(eye, (0, 0, 0)).model for eye in EYES]
    return [Camera.sensor(lens, model.rotation, model.translation, *size, **options) for model in models]


def refined(
    client: Client,
    true: Sequence[Camera],
    begun: Sequence[Camera],
    steps: int = 150,
    share: float = 0.3,
    **options: Any,
) -> list[Camera]:
    """The cameras that a training finds if it begins with `begun`, while `true` took its photographs.

    The loss falls to `share` of what it was.
    """
    shown = [client.render(SCENE, camera).color for camera in true]
    with client.trainer(SCENE, begun, shown, rates=STILL, **options) as trainer:
        done = list(trainer.steps(steps))
        found = list(trainer.cameras())
    # The mean over all views: the worker takes each once before any again.
    count = len(begun)
    before, after = (np.mean([step.loss for step in some]) for some in (done[:count], done[-count:]))
    assert after < share * before, (before, after, found[0].model)
    return found


def falling(rate: float, steps: int = 150, to: float = 1 / 30) -> Rate:
    return Rate(rate, rate * to, steps)


def test_a_wrong_lens_focal_length_and_end_pose_are_found(client: Client) -> None:
    """Each view sees the same lens; the poses at the end of the exposure are its own."""
    lens = PinholeLens(**FILM, radial=(-0.2,))
    still = cameras(lens)
    rolling = [
        dataclasses.replace(
            camera,
            model=dataclasses.replace(
                camera.model,
                shutter=shutter,
                end_rotation=axis_angle_rotation(np.array([0.0, 0.01, 0.02])) @ camera.model.rotation,
                end_translation=camera.model.translation + SHIFT,
            ),
        )
        for camera, shutter in zip(still, ["top_to_bottom", "left_to_right"] * 3, strict=True)
    ]
    wrong = dataclasses.replace(lens, fx=57.0, fy=59.0, cx=32.6, radial=(0.0,))
    begun = [
        dataclasses.replace(
            camera,
            model=dataclasses.replace(
                camera.model, lens=wrong, end_rotation=camera.model.rotation, end_translation=camera.model.translation
            ),
        )
        for camera in rolling
    ]
    rates = {"refine_intrinsics": 4e-3, "refine_lenses": 1e-2, "refine_end_poses": 1e-2}
    found = refined(client, rolling, begun, 600, **{name: falling(rate, 600, 1 / 100) for name, rate in rates.items()})
    assert len({camera.model.lens for camera in found}) == 1
    model = found[0].model
    np.testing.assert_allclose([model.lens.fx, model.lens.fy], [60, 62], atol=0.15)
    np.testing.assert_allclose([model.lens.cx, model.lens.cy], [32, 24], atol=0.05)
    np.testing.assert_allclose(model.lens.radial, (-0.2,), atol=5e-3)
    for camera, true in zip(found, rolling, strict=True):
        np.testing.assert_array_equal(camera.model.rotation, true.model.rotation)
        np.testing.assert_allclose(camera.model.end_translation, true.model.end_translation, atol=0.02)


LENSES = {
    "fisheye": (FisheyeLens(**FILM, radial=(0.06, -0.02)), {"radial": (0.0, 0.0)}),
    "ftheta": (
        FThetaLens(cx=32, cy=24, max_angle=1.0, angle_to_pixel_distance=(0, 60, 0, -6), linear=(1.02, 0.01, 0.0)),
        {"angle_to_pixel_distance": (0, 58, 0, 0), "linear": (1.0, 0.0, 0.0)},
    ),
    "inverse ftheta": (
        FThetaLens(
            cx=32,
            cy=24,
            max_angle=0.7,
            reference="pixel_distance_to_angle",
            pixel_distance_to_angle=(0, 0.0165, 0, 1e-6),
        ),
        {"pixel_distance_to_angle": (0, 0.0172, 0, 0)},
    ),
    "thin prism": (PinholeLens(**FILM, thin_prism=(0.02, 0.0, -0.03, 0.0)), {"thin_prism": (0.0,) * 4}),
}


@pytest.mark.parametrize("name", LENSES)
def test_lenses_of_all_kinds_are_found(name: str, client: Client) -> None:
    lens, changes = LENSES[name]
    begun = dataclasses.replace(lens, **changes)
    (found,) = {c.model.lens for c in refined(client, cameras(lens), cameras(begun), refine_lenses=falling(4e-3))}
    before, after = (np.abs(pixels(lens) - pixels(other)).max() for other in (begun, found))
    assert after < 0.15 * before, (before, after, found)


def pixels(lens: Any) -> np.ndarray:
    """The pixels of points in the field of view, by the definition of a lens."""
    x, y = np.meshgrid(np.linspace(-0.4, 0.4, 9), np.linspace(-0.3, 0.3, 7))
    if isinstance(lens, PinholeLens):
        s, (s1, s2, s3, s4) = x * x + y * y, lens.thin_prism
        return np.stack([lens.fx * (x + s1 * s + s2 * s * s), lens.fy * (y + s3 * s + s4 * s * s)])
    distance = np.hypot(x, y)
    angle = np.arctan(distance)
    if isinstance(lens, FisheyeLens):
        k1, k2 = lens.radial
        radius = angle + k1 * angle**3 + k2 * angle**5
        return np.stack([lens.fx * x, lens.fy * y]) * radius / np.maximum(distance, 1e-9)
    if lens.reference == "angle_to_pixel_distance":
        radius = np.polynomial.Polynomial(lens.angle_to_pixel_distance)(angle)
    else:
        table = np.linspace(0, 60, 6001)
        radius = np.interp(angle, np.polynomial.Polynomial(lens.pixel_distance_to_angle)(table), table)
    c, d, e = lens.linear
    u, v = x * radius / np.maximum(distance, 1e-9), y * radius / np.maximum(distance, 1e-9)
    return np.stack([c * u + d * v, e * u + v])


def test_a_lens_with_a_rolling_shutter_is_found_along_rays(client: Client) -> None:
    lens, options = PinholeLens(**FILM, radial=(-0.2,)), {"response": "ray"}
    moves = {"shutter": "top_to_bottom"}
    true = [
        dataclasses.replace(camera, model=dataclasses.replace(
            camera.model, **moves, end_rotation=camera.model.rotation, end_translation=camera.model.translation + SHIFT
        ))
        for camera in cameras(lens)
    ]  # fmt: skip
    begun = [
        dataclasses.replace(
            camera, model=dataclasses.replace(camera.model, lens=dataclasses.replace(lens, radial=(0.0,)))
        )
        for camera in true
    ]
    shown = [client.render(SCENE, camera, **options).color for camera in true]
    with client.trainer(SCENE, begun, shown, rates=STILL, refine_lenses=falling(1e-2), **options) as trainer:
        losses = [step.loss for step in trainer.steps(150)]
        found = trainer.cameras()
    assert np.mean(losses[-6:]) < 0.1 * np.mean(losses[:6])
    np.testing.assert_allclose(found[0].model.lens.radial, (-0.2,), atol=5e-3)


def test_gaussians_are_trained_along_rays_and_density_by_mcmc(client: Client) -> None:
    true = cameras(FisheyeLens(**FILM, radial=(0.06, -0.02)))
    shown = [client.render(SCENE, camera, response="ray").color for camera in true]
    begun = dataclasses.replace(SCENE, means=SCENE.means + np.float32(0.03), opacities=0.8 * SCENE.opacities)
    mcmc = Mcmc(cap=320, start=10, every=10, noise=0.0)
    with client.trainer(begun, true, shown, response="ray", density=mcmc, extent=2.0) as trainer:
        losses = [step.loss for step in trainer.steps(60)]
        assert len(trainer.scene().means) == 320
    assert np.mean(losses[-6:]) < 0.7 * np.mean(losses[:6])
    with pytest.raises(InvalidArgument, match=r"adaptive: expected mcmc, or none, with RESPONSE_RAY"):
        client.trainer(begun, true, shown, response="ray", density=AdaptiveDensity(), extent=2.0)


def test_windshields_are_found(client: Client) -> None:
    lens = PinholeLens(**FILM)
    true, begun = Windshield(horizontal=(0.01, 1.03, 0.02), vertical=(-0.01, 0.0, 0.98)), (0.0, 1.0, 0.0)
    glass = Windshield(horizontal=begun, vertical=(0.0, 0.0, 1.0))
    found = refined(
        client, cameras(lens, windshield=true), cameras(lens, windshield=glass), refine_lenses=falling(4e-3)
    )
    assert len({camera.model.windshield for camera in found}) == 1
    np.testing.assert_allclose(found[0].model.windshield.horizontal, true.horizontal, atol=2e-3)
    np.testing.assert_allclose(found[0].model.windshield.vertical, true.vertical, atol=2e-3)


def test_pictures_of_two_sizes_share_a_calibration(client: Client) -> None:
    lens = PinholeLens(**FILM, radial=(-0.2,))
    half = dataclasses.replace(lens, fx=30.0, fy=31.0, cx=16.0, cy=12.0)
    wrong = [
        dataclasses.replace(each, fx=each.fx * 0.96, cx=each.cx + each.fx * 0.01, radial=(-0.1,))
        for each in (lens, half)
    ]
    small = (32, 24)
    true = [*cameras(lens)[:3], *cameras(half, small)[3:]]
    begun = [*cameras(wrong[0])[:3], *cameras(wrong[1], small)[3:]]
    both = {"refine_intrinsics": falling(2e-3), "refine_lenses": falling(4e-3)}
    found = [camera.model.lens for camera in refined(client, true, begun, calibrations=[7] * 6, **both)]
    assert len(set(found)) == 2
    assert found[0].radial == found[5].radial
    np.testing.assert_allclose([found[0].fx, found[0].cx], [2 * found[5].fx, 2 * found[5].cx], rtol=1e-12)
    np.testing.assert_allclose([found[0].fx, found[0].cx], [60, 32], atol=0.3)
    # Equal lenses share a calibration, and others have their own.
    found = [camera.model.lens for camera in refined(client, true, begun, **both)]
    assert len(set(found)) == 2 and found[0].radial != found[5].radial


def test_intrinsics_of_opencv_cameras_are_found(client: Client) -> None:
    models = [Camera.look_at(eye, (0, 0, 0)).model for eye in EYES]
    true, begun = (
        [Camera.opencv(fx, 62, 32, cy, model.rotation, model.translation, *SIZE) for model in models]
        for fx, cy in ((60, 24), (57, 24.7))
    )
    found = refined(client, true, begun, refine_intrinsics=falling(2e-3))
    np.testing.assert_allclose([found[0].model.fx, found[0].model.cy], [60, 24], atol=0.2)
    # Each camera has its own calibration: two steps for each.
    found = refined(client, true, begun, 12, share=1.1, refine_intrinsics=2e-3, calibrations=range(6))
    assert len({camera.model.fx for camera in found}) == 6


def test_a_motion_moves_both_ends_unless_these_move_by_themselves(client: Client) -> None:
    options = {"shutter": "left_to_right", "end_rotation": np.eye(3), "end_translation": np.array([0.1, 0.0, 4.0])}
    true = Camera.sensor(PinholeLens(**FILM), np.eye(3), [0, 0, 4], *SIZE, **options)
    begun = Camera.sensor(
        PinholeLens(**FILM), np.eye(3), [0.05, 0, 4], *SIZE, **{**options, "end_translation": [0.15, 0, 4]}
    )
    (found,) = refined(client, [true], [begun], refine_poses=falling(3e-3))
    assert abs(found.model.translation[0]) < 0.01
    relative = found.model.end_rotation @ found.model.rotation.T
    np.testing.assert_allclose(relative, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(found.model.end_translation - found.model.translation, [0.1, 0, 0], atol=2e-3)


@pytest.mark.parametrize("is_sensor", [False, True])
@pytest.mark.filterwarnings("ignore:refine_intrinsics")
def test_intrinsics_that_no_number_can_hold_are_taken_back(client: Client, is_sensor: bool) -> None:
    models = [Camera.look_at(eye, (0, 0, 0)).model for eye in EYES]
    true, plain = (
        [Camera.opencv(focal, focal, 32, 24, model.rotation, model.translation, *SIZE) for model in models]
        for focal in (70, 60)
    )
    begun = cameras(PinholeLens(**FILM)) if is_sensor else plain
    shown = [client.render(SCENE, camera).color for camera in true]
    with client.trainer(SCENE, begun, shown, rates=STILL, refine_intrinsics=1e6) as trainer:
        assert len(list(trainer.steps(12))) == 12
        found = trainer.cameras()
    for camera in found:
        film = camera.model.lens if is_sensor else camera.model
        assert 0 <= film.fx < np.inf and abs(film.cx) < np.inf


def test_a_step_that_makes_a_lens_invalid_leaves_it_as_it_is(client: Client) -> None:
    """The polynomial with these coefficients rises just up to the largest angle."""
    true = FisheyeLens(**FILM, radial=(-0.3,), max_angle=0.9)
    begun = FisheyeLens(**FILM, radial=(-0.41,), max_angle=0.9)
    shown = [
        client.render(SCENE, camera).color
        for camera in cameras(dataclasses.replace(true, radial=(-0.5,), max_angle=None))
    ]
    with client.trainer(SCENE, cameras(begun), shown, rates=STILL, refine_lenses=0.02) as trainer:
        assert len(list(trainer.steps(12))) == 12
        (found,) = {camera.model.lens for camera in trainer.cameras()}
    assert -0.4116 < found.radial[0] < -0.3


@pytest.mark.parametrize("rates", [{"refine_intrinsics": 2e-3, "refine_lenses": 4e-3}, {}])
def test_a_training_goes_on_from_its_snapshot_with_what_was_found(rates: dict[str, float], tmp_path: Path) -> None:
    lens = PinholeLens(**FILM, radial=(-0.2, 0.05))
    begun = dataclasses.replace(lens, fx=57.0, radial=(0.0, 0.0))
    rates = {**rates, "refine_poses": 1e-4}
    with worker("--device", "cpu", "--spool", str(tmp_path)) as process, Client(process.target) as client:
        shown = [client.render(SCENE, camera).color for camera in cameras(lens)]
        with client.trainer(SCENE, cameras(begun), shown, rates=STILL, snapshot_every=5, **rates) as trainer:
            losses = [step.loss for step in trainer.steps(10)]
            found = trainer.cameras()
            trainer.close(finish=False)
        # The training goes back to the snapshot of step 5.
        started = {"training_id": trainer.training_id, "lease": trainer.lease}
        with client.resume_trainer(**started) as again:
            again._stream.close()
            # The client has no earlier steps to repeat.
            again._stream._undone = 5
            again._stream.start(training_pb2.TrainingStart(**started, at_step=5))
            again._next = again._sent = 5
            assert [step.loss for step in again.steps(5)] == losses[5:]
            for camera, expected in zip(again.cameras(), found, strict=True):
                assert camera.model.lens == expected.model.lens
                np.testing.assert_array_equal(camera.model.rotation, expected.model.rotation)
                np.testing.assert_array_equal(camera.model.translation, expected.model.translation)


REFUSED = {
    "no end": (cameras(PinholeLens(**FILM)), {"refine_end_poses": 1e-3}, "end_poses"),
    "no coefficients": (cameras(PinholeLens(**FILM)), {"refine_lenses": 1e-3}, "coefficients"),
    "no sensors": ([Camera.look_at(EYES[0], (0, 0, 0))], {"refine_lenses": 1e-3}, "sensor, for lenses are refined"),
    "other lenses": (
        [cameras(PinholeLens(**FILM, radial=(0.1,)))[0], cameras(PinholeLens(**FILM, radial=(0.1, 0.1)))[1]],
        {"refine_lenses": 1e-3, "calibrations": [0, 0]},
        "like that of view 0",
    ),
    "other kinds": (
        [cameras(PinholeLens(**FILM))[0], cameras(OrthographicLens(**FILM))[1]],
        {"refine_intrinsics": 1e-3, "calibrations": [0, 0]},
        "like that of view 0",
    ),
    "gsplat": (
        cameras(PinholeLens(**FILM)),
        {"refine_intrinsics": 1e-3, "semantics": "gsplat"},
        "EXACT, for intrinsics",
    ),
    "a way back": (
        cameras(PinholeLens(**FILM), windshield=Windshield(horizontal=(0,), vertical=(0,), horizontal_inverse=(0,))),
        {"refine_lenses": 1e-3},
        "no way back",
    ),
    "too few": (cameras(PinholeLens(**FILM)), {"refine_intrinsics": 1e-3, "calibrations": [0]}, "one for each camera"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cameras_lack_is_refused(why: str, client: Client) -> None:
    given, options, text = REFUSED[why]
    with pytest.raises(InvalidArgument, match=text):
        client.trainer(SCENE, given, rates=STILL, **options)
