"""Driving simulators' contract on a real worker: pictures are those of `Client.render` of the same scene and camera."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation, Slerp

from lumigrad.client import (
    Camera,
    Client,
    FisheyeLens,
    FThetaLens,
    Gaussians,
    InvalidArgument,
    PinholeLens,
    SceneNotFound,
    Transform,
    Windshield,
)
from support.driving.fixtures import driving_client_fixture, street_fixture, street_worker_fixture
from support.driving.scenes import (
    AROUND,
    END_US,
    FORWARD,
    FRONT,
    LENSES,
    SCENE,
    START_US,
    WIDE,
    Street,
    camera_spec,
    frame,
    matrix_of,
    moved,
    pose,
    street,
)
from support.driving.stubs import (
    BOTTOM_TO_TOP,
    JPEG,
    LEFT_TO_RIGHT,
    MESSAGES,
    NAMES,
    PLANAR,
    PNG,
    RIGHT_TO_LEFT,
    TOP_TO_BOTTOM,
    DrivingClient,
)
from support.files.documents import ROOT, run_all_of
from support.workers.client_load import client_fixture
from support.workers.worker import LUMIGRAD, WorkerProcess, worker

SHUTTERS = {
    "top_to_bottom": TOP_TO_BOTTOM,
    "left_to_right": LEFT_TO_RIGHT,
    "bottom_to_top": BOTTOM_TO_TOP,
    "right_to_left": RIGHT_TO_LEFT,
}

place, simulator = street_fixture(), driving_client_fixture()
process = street_worker_fixture()
client = client_fixture("process", scope="module")


def levels_of(raw: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))


def merged(place: Street) -> Gaussians:
    """World and car in one scene, the car's harmonics filled up with zeros."""
    world, car = place.world, place.car
    sh = np.zeros((len(car), *world.sh.shape[1:]), np.float32)
    sh[:, : car.sh.shape[1]] = car.sh
    both = {name: np.concatenate([getattr(world, name), getattr(car, name)]) for name in ("means", "quats", "scales")}
    opacities = np.concatenate([world.opacities, car.opacities])
    return Gaussians(**both, opacities=opacities, sh=np.concatenate([world.sh, sh]))


def lens_of(name: str, scale: float = 1.0) -> Any:
    """The client's lens for an entry of LENSES, in the contract's terms."""
    given = LENSES[name][1]
    values = given[given["model"]]
    x, y = values["principal_point"]
    if given["model"] == "ftheta":
        return FThetaLens(
            cx=(x + 0.5) * scale, cy=(y + 0.5) * scale, max_angle=values["max_angle"],
            reference="pixel_distance_to_angle",
            pixel_distance_to_angle=[k / scale**i for i, k in enumerate(values["pixeldist_to_angle"])],
            angle_to_pixel_distance=[k * scale for k in values["angle_to_pixeldist"]],
            linear=tuple(values["linear_cde"].values()),
        )  # fmt: skip
    fx, fy = values["focal_length"]
    film = {"fx": fx * scale, "fy": fy * scale, "cx": x * scale, "cy": y * scale}
    if given["model"] == "opencv_fisheye":
        return FisheyeLens(**film, radial=values["radial"], max_angle=values["max_angle"])
    return PinholeLens(
        **film, radial=values["radial"], tangential=values["tangential"], thin_prism=values["thin_prism"]
    )


def view(message: Any) -> tuple[np.ndarray, np.ndarray]:
    """World to camera of a camera-to-local pose."""
    inverse = np.linalg.inv(matrix_of(message))
    return inverse[:3, :3], inverse[:3, 3]


def expected(client: Client, place: Street, camera: Camera, car: np.ndarray | None) -> np.ndarray:
    """The levels of a picture with the car at a pose, or without it."""
    scene, count = merged(place), len(place.world)
    transforms = [] if car is None else [Transform(count, len(scene), car)]
    shown = place.world if car is None else scene
    wide = getattr(camera.model.lens, "max_angle", None) or 0.0
    order = "distance" if wide > np.radians(80) else "z"
    color = client.render(shown, camera, transforms=transforms, depth_order=order).color
    return np.rint(np.clip(color, 0, 1) * 255).astype(np.uint8)


def same(one: np.ndarray, other: np.ndarray, most: int = 1) -> None:
    """Fails unless pictures are equal up to rounding: the worker renders in a frame near the camera."""
    assert one.shape == other.shape
    difference = np.abs(one.astype(int) - other.astype(int))
    assert difference.max() <= most
    assert (difference > 0).mean() < 0.02


def recorded(place: Street, time_us: int) -> np.ndarray:
    """The car's recorded pose [4, 4], interpolated on a straight line and by scipy's slerp."""
    track = place.manifest["tracks"][0]
    times, poses = np.array(track["timestamps_us"]), np.array(track["poses"], float)
    matrix = np.eye(4)
    matrix[:3, 3] = [np.interp(time_us, times, column) for column in poses[:, :3].T]
    clamped = np.clip(time_us, *times)
    matrix[:3, :3] = Slerp(times, Rotation.from_quat(poses[:, 3:]))(clamped).as_matrix()
    return matrix


def sensor(name: str, at: Any, end: Any = None, scale: float = 1.0, shutter: str = "global") -> Camera:
    height, width = (int(size * scale) for size in LENSES[name][0])
    stop = {} if end is None else dict(zip(("end_rotation", "end_translation"), view(end), strict=True))
    return Camera.sensor(lens_of(name, scale), *view(at), width, height, shutter=shutter, **stop)


@pytest.mark.parametrize("service", NAMES)
def test_it_is_served_by_both_names_and_describes_what_it_has(process: WorkerProcess, service: str) -> None:
    with DrivingClient(process.target, service) as simulator:
        version = simulator.call("get_version")
        assert (version.grpc_api_version.minor, bool(version.version_id)) == (54, True)
        assert list(simulator.call("get_available_scenes").scene_ids) == [SCENE]
        found = simulator.call("get_available_cameras", scene_id=SCENE).available_cameras
        assert [camera.logical_id for camera in found] == list(LENSES)
        assert [camera.intrinsics for camera in found] == [camera_spec(name) for name in LENSES]
        assert found[0].rig_to_camera == pose((1.5, 0.1, 1.4), FORWARD)
        (motion,) = simulator.call("get_available_trajectories", scene_id=SCENE).available_trajectories
        assert [it.timestamp_us for it in motion.trajectory.poses] == [START_US, END_US]
        assert motion.trajectory.poses[1].pose == pose((20, 0, 0))
        (mask,) = simulator.call("get_available_ego_masks").ego_mask_metadata
        assert (mask.ego_mask_id.camera_logical_id, mask.ego_mask_id.rig_config_id) == (WIDE, "rig-1")
        (track,) = simulator.call("get_dynamic_objects", scene_id=SCENE).dynamic_objects
        assert (track.id, track.semantic_class, track.object_size.size_x) == ("car", "automobile", 4.5)
        assert len(track.trajectory.poses) == 2
        assert not simulator.call("get_external_asset_objects", scene_id=SCENE).track_ids
        config = {entry.key: entry.value for entry in simulator.call("get_server_config").server_config}
        assert config["device"] == "cpu"
        edited = simulator.call("edit_assets", scene_id=SCENE)
        assert not edited.success
        assert "does not edit" in edited.message
        simulator.call("restore_model_parameters", scene_id=SCENE)


@pytest.mark.parametrize("name", LENSES)
def test_a_picture_is_that_of_the_same_scene_and_camera(
    simulator: DrivingClient, client: Client, place: Street, name: str
) -> None:
    turned = (Rotation.from_euler("z", 10, degrees=True) * Rotation.from_quat(FORWARD)).as_quat()
    at = pose((1.5, 0.1, 1.4), turned)
    got = levels_of(simulator.call("render_rgb", frame(name, at=at)).image_bytes)
    want = expected(client, place, sensor(name, at), recorded(place, 1_500_000))
    assert want.std() > 20
    same(got, want)


@pytest.mark.parametrize("shutter", SHUTTERS)
def test_rows_are_exposed_one_after_the_other(
    simulator: DrivingClient, client: Client, place: Street, shutter: str
) -> None:
    at = pose((1.5, 0.1, 1.4), FORWARD)
    turned = Rotation.from_euler("z", 3, degrees=True) * Rotation.from_quat(FORWARD)
    # The quaternion has the opposite sign: interpolation still takes the short way.
    end = pose((1.9, 0.2, 1.4), -turned.as_quat())
    spec = camera_spec(WIDE, shutter_type=SHUTTERS[shutter])
    gone = moved("car", pose((0, 0, -500)))
    request = frame(WIDE, at=at, end=end, camera_intrinsics=spec, dynamic_objects=[gone])
    got = levels_of(simulator.call("render_rgb", request).image_bytes)
    # In a frame at the camera's start, the translations of both kinds of interpolation agree to a fraction of a pixel.
    origin = np.array([1.5, 0.1, 1.4])
    shift = np.eye(4)
    shift[:3, 3] = -origin
    shifted = {name: getattr(place.world, name) for name in ("quats", "scales", "opacities", "sh")}
    scene = Gaussians(place.world.means - origin.astype(np.float32), **shifted)
    views = []
    for message in (at, end):
        inverse = np.linalg.inv(shift @ matrix_of(message))
        views += [inverse[:3, :3], inverse[:3, 3]]
    height, width = LENSES[WIDE][0]
    camera = Camera.sensor(
        lens_of(WIDE), *views[:2], width, height, shutter=shutter, end_rotation=views[2], end_translation=views[3]
    )
    color = client.render(scene, camera).color
    same(got, np.rint(np.clip(color, 0, 1) * 255).astype(np.uint8))
    still = levels_of(simulator.call("render_rgb", frame(WIDE, at=at, dynamic_objects=[gone])).image_bytes)
    assert np.abs(still.astype(int) - got).mean() > 1


@pytest.mark.parametrize("name", LENSES)
def test_tracks_move_are_where_they_were_recorded_and_vanish_outside_of_their_time(
    simulator: DrivingClient, client: Client, place: Street, process: WorkerProcess, name: str
) -> None:
    at = pose((1.5, 0.1, 1.4), FORWARD)
    place_of = pose((7, -1, 1.2), (0, 0, 0.2, 0.98))
    matrix = matrix_of(place_of)
    matrix[:3, :3] = Rotation.from_quat([0, 0, 0.2, 0.98]).as_matrix()
    before = process.metric("lumigrad_sensorsim_unknown_tracks_total")
    asked = {"frame_start_us": 2_800_000, "frame_end_us": 2_830_000}
    request = frame(name, dynamic_objects=[moved("somebody", pose((5, 0, 0))), moved("car", place_of)], **asked)
    got = levels_of(simulator.call("render_rgb", request).image_bytes)
    same(got, expected(client, place, sensor(name, at), matrix))
    assert process.metric("lumigrad_sensorsim_unknown_tracks_total") == before + 1
    later = levels_of(simulator.call("render_rgb", frame(name, **asked)).image_bytes)
    same(later, expected(client, place, sensor(name, at), None))
    assert np.abs(got.astype(int) - later).max() > 30


@pytest.mark.parametrize("shutter", SHUTTERS)
def test_tracks_move_while_rows_are_exposed(
    simulator: DrivingClient, client: Client, place: Street, shutter: str
) -> None:
    """A car that comes towards the camera looks like a car towards which the camera goes."""
    back = (Rotation.from_euler("z", 180, degrees=True) * Rotation.from_quat(FORWARD)).as_quat()
    spec = camera_spec(FRONT, shutter_type=SHUTTERS[shutter])

    def shown(camera: Any, car: Any) -> np.ndarray:
        # Only the car is behind the rig.
        poses = {"at": pose((0, 0, 1.5), back), "end": pose(camera, back)}
        request = frame(FRONT, camera_intrinsics=spec, dynamic_objects=[moved("car", pose((-7, 0, 1.5)), car)], **poses)
        picture = levels_of(simulator.call("render_rgb", request).image_bytes)
        described = client.drive_frame(request)
        color = client.render(described.scene, described.camera, **described.settings).color
        np.testing.assert_array_equal(picture, np.rint(np.clip(color, 0, 1) * 255))
        return picture

    still = shown((0, 0, 1.5), pose((-7, 0, 1.5)))
    went = shown((-0.5, 0.5, 1.5), pose((-7, 0, 1.5)))
    came = shown((0, 0, 1.5), pose((-6.5, -0.5, 1.5)))
    assert np.abs(went.astype(int) - still).mean() > 2
    # Harmonics are seen from the middle in both, positions are exact.
    same(came, went, most=3)


@pytest.mark.parametrize(
    ("own", "asked", "got"),
    [
        ((3848, 2168), (1900, 1080), (1916, 1080)),
        ((3848, 2168), (512, 320), (567, 320)),
        ((3848, 2168), (512, 200), (512, 288)),
        ((160, 96), (160, 96), (160, 96)),
        ((160, 96), (80, 48), (80, 48)),
        ((0, 0), (123, 45), (123, 45)),
    ],
)
def test_pictures_keep_the_aspect_of_the_camera_and_cover_what_was_asked(
    simulator: DrivingClient, own: tuple[int, int], asked: tuple[int, int], got: tuple[int, int]
) -> None:
    spec = camera_spec(FRONT, resolution_w=own[0], resolution_h=own[1])
    request = frame(FRONT, camera_intrinsics=spec, resolution_w=asked[0], resolution_h=asked[1])
    raw = simulator.call("render_rgb", request).image_bytes
    assert Image.open(io.BytesIO(raw)).size == got


@pytest.mark.parametrize("name", LENSES)
def test_lenses_scale_with_pictures(simulator: DrivingClient, client: Client, place: Street, name: str) -> None:
    height, width = (2 * size for size in LENSES[name][0])
    at = pose((1.5, 0.1, 1.4), FORWARD)
    raw = simulator.call("render_rgb", frame(name, resolution_h=height, resolution_w=width)).image_bytes
    same(levels_of(raw), expected(client, place, sensor(name, at, scale=2.0), recorded(place, 1_500_000)))


def test_the_page_leads_from_nothing_to_a_frame_with_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "simulators.md").read_text(encoding="utf-8")
    before, serve, after = re.split(r"^(lumigrad serve [^#\n]*).*$", page, maxsplit=1, flags=re.M)
    environment = {"PATH": f"{Path(LUMIGRAD).parent}:{os.environ['PATH']}"}
    (tmp_path / "before.md").write_text(before + "```")
    run_all_of(tmp_path / "before.md", environment)
    with worker("--device", "cpu", *serve.split()[2:]) as started:
        monkeypatch.setenv("LUMIGRAD_TARGET", started.target)
        (tmp_path / "after.md").write_text("```" + after.replace("localhost:50051", started.target))
        names = run_all_of(tmp_path / "after.md", environment)
    with Image.open(tmp_path / "frame.png") as frame:
        assert frame.size == (960, 540) and np.asarray(frame).std() > 30
    assert "world.ply: 20,000 Gaussians" in capfd.readouterr().out
    gradients: Any = names["gradients"]
    assert np.abs(gradients.camera_pose_end).max() > 0 and gradients.transforms.shape == (2, 4, 4)
    returns: Any = names["returns"]
    # The lowest rows meet the ground, from 1.9 m above it, ahead of the rig; there is nothing behind it.
    ahead = returns.alpha[-1, 800:1000] > 0.5
    assert ahead.mean() > 0.5 and returns.alpha[-1, :200].max() < 0.1
    assert np.abs(np.median(returns.expected_hit_distance[-1, 800:1000][ahead]) - 1.9 / np.sin(0.437)) < 1.0


def test_a_fisheye_sees_what_is_beside_and_behind_it(simulator: DrivingClient, client: Client, place: Street) -> None:
    spec = camera_spec(AROUND)
    spec.opencv_fisheye_param.max_angle = 2.0
    spec.opencv_fisheye_param.focal_length_x = 32.0
    spec.opencv_fisheye_param.focal_length_y = 30.0
    # The camera looks sideways: most of the street is 90 degrees or more from the axis.
    turned = (Rotation.from_euler("z", 100, degrees=True) * Rotation.from_quat(FORWARD)).as_quat()
    at = pose((1.5, 0.1, 1.4), turned)
    got = levels_of(simulator.call("render_rgb", frame(AROUND, at=at, camera_intrinsics=spec)).image_bytes)
    lens = FThetaLens(
        cx=60, cy=60, max_angle=2.0, angle_to_pixel_distance=[0, 30, 0, 30 * 0.01, 0, 30 * -0.002],
        linear=(32 / 30, 0, 0),
    )  # fmt: skip
    want = expected(client, place, Camera.sensor(lens, *view(at), 120, 120), recorded(place, 1_500_000))
    same(got, want)
    # The right border is 107 degrees from the axis.
    assert got[50:70, 110:].max() > 50


def test_a_fisheye_with_all_coefficients_sees_a_car_behind_it(
    simulator: DrivingClient, client: Client, place: Street
) -> None:
    spec = camera_spec(AROUND)
    lens, radial = spec.opencv_fisheye_param, [0.01, -0.002, 0.0008, -0.0001]
    lens.focal_length_x = lens.focal_length_y = 30.0
    lens.max_angle = 1.9
    lens.radial_coeffs[:] = radial
    at = pose((1.5, 0.1, 1.4), FORWARD)
    # A car to the left, 100 degrees from the axis, and a car where the lens does not reach.
    angle = np.radians(100)
    beside, gone = (
        pose(np.array([1.5, 0.1, 1.4]) + 20 * np.array([np.cos(angle), np.sin(angle), 0])),
        pose((-500, 0, 0)),
    )
    pictures = []
    for car in (beside, gone):
        request = frame(AROUND, at=at, camera_intrinsics=spec, dynamic_objects=[moved("car", car)])
        pictures.append(levels_of(simulator.call("render_rgb", request).image_bytes))
        ours = FisheyeLens(fx=30, fy=30, cx=60, cy=60, radial=radial, max_angle=1.9, behind=True)
        same(pictures[-1], expected(client, place, Camera.sensor(ours, *view(at), 120, 120), matrix_of(car)))
    of_car = np.abs(pictures[0].astype(float) - pictures[1]).max(-1)
    y, x = np.mgrid[:120, :120] + 0.5
    distance = angle + sum(k * angle ** (3 + 2 * power) for power, k in enumerate(radial))
    assert of_car.max() > 50
    assert abs((of_car * x).sum() / of_car.sum() - (60 - 30 * distance)) < 1
    assert abs((of_car * y).sum() / of_car.sum() - 60) < 1


def test_windshields_bend_rays(simulator: DrivingClient, client: Client, place: Street) -> None:
    spec, glass = camera_spec(WIDE), {"horizontal": [0.01, 0.97, 0.02], "vertical": [-0.02, 0.01, 1.03]}
    for name, values in glass.items():
        getattr(spec.bivariate_windshield_model_param, f"{name}_poly").extend(values)
    at = pose((1.5, 0.1, 1.4), FORWARD)
    got = levels_of(simulator.call("render_rgb", frame(WIDE, camera_intrinsics=spec)).image_bytes)
    camera = sensor(WIDE, at)
    behind = replace(camera, model=replace(camera.model, windshield=Windshield(**glass)))
    same(got, expected(client, place, behind, recorded(place, 1_500_000)))
    plain = levels_of(simulator.call("render_rgb", frame(WIDE)).image_bytes)
    assert np.abs(plain.astype(int) - got).mean() > 2


def test_formats_and_qualities(simulator: DrivingClient) -> None:
    png = simulator.call("render_rgb", frame(image_format=PNG)).image_bytes
    assert simulator.call("render_rgb", frame(image_format=0)).image_bytes == png
    planes = simulator.call("render_rgb", frame(image_format=PLANAR)).image_bytes
    assert planes == levels_of(png).transpose(2, 0, 1).tobytes()
    files = {
        quality: simulator.call("render_rgb", frame(image_format=JPEG, image_quality=quality)).image_bytes
        for quality in (0, 0.95, 95, 1, 100, 0.3, 30)
    }
    assert files[0] == files[0.95] == files[95]
    assert files[1] == files[100]
    assert files[0.3] == files[30]
    assert len(files[30]) < len(files[95]) < len(files[100])
    assert np.abs(levels_of(files[100]).astype(int) - levels_of(png)).mean() < 2


def test_ego_masks_are_laid_over_pictures(simulator: DrivingClient) -> None:
    mask = MESSAGES["EgoMaskId"](camera_logical_id=WIDE, rig_config_id="rig-1")
    plain = levels_of(simulator.call("render_rgb", frame(WIDE, ego_mask_id=mask)).image_bytes)
    request = frame(WIDE, insert_ego_mask=True, ego_mask_id=mask)
    covered = levels_of(simulator.call("render_rgb", request).image_bytes)
    assert (covered[100:] == (20, 40, 60)).all()
    assert (covered[:80] == plain[:80]).all()


def test_batches_mix_everything_and_a_bad_item_is_alone(simulator: DrivingClient, process: WorkerProcess) -> None:
    bad = frame(scene_id="nowhere")
    late = frame(frame_start_us=END_US + 1, frame_end_us=END_US + 1)
    requests = {"a": frame(WIDE), "b": bad, "c": frame(AROUND), "d": late, "e": frame(FRONT, image_format=JPEG)}
    items = [{"camera_name": name, "request": request} for name, request in requests.items()]
    items.append({"camera_name": "a", "request": frame(WIDE, resolution_w=80, resolution_h=60)})
    replies = simulator.call("batch_render_rgb", items=items).items
    assert [reply.camera_name for reply in replies] == ["a", "b", "c", "d", "e", "a"]
    assert [reply.success for reply in replies] == [True, False, True, False, True, True]
    assert replies[1].error_message == "NOT_FOUND: items[1].request.scene_id: expected one of street-1, got nowhere"
    assert replies[3].error_message.startswith("OUT_OF_RANGE: items[3].request.frame_start_us: expected a time from")
    assert not replies[1].HasField("result")
    for index, name in ((0, "a"), (2, "c"), (4, "e")):
        alone = simulator.call("render_rgb", requests[name]).image_bytes
        same(levels_of(replies[index].result.image_bytes), levels_of(alone))
    assert levels_of(replies[5].result.image_bytes).shape == (60, 80, 3)
    assert not simulator.call("batch_render_rgb").items


def test_cameras_of_one_size_and_lens_share_a_launch(simulator: DrivingClient, process: WorkerProcess) -> None:
    def launches() -> float:
        return process.metric("lumigrad_batch_views_count"), process.metric("lumigrad_batch_views_sum")

    before = launches()
    turned = [Rotation.from_euler("z", angle, degrees=True) * Rotation.from_quat(FORWARD) for angle in (-40, 0, 40)]
    ats = [pose((1.5, 0.3 * index, 1.4), turn.as_quat()) for index, turn in enumerate(turned)]
    items = [{"camera_name": str(index), "request": frame(at=at)} for index, at in enumerate(ats)]
    replies = simulator.call("batch_render_rgb", items=items).items
    assert tuple(np.subtract(launches(), before)) == (1, 3)
    for at, reply in zip(ats, replies, strict=True):
        same(levels_of(reply.result.image_bytes), levels_of(simulator.call("render_rgb", frame(at=at)).image_bytes))


def test_aggregated_frames_are_all_there_or_none(simulator: DrivingClient) -> None:
    requests = [frame(WIDE), frame(FRONT)]
    pictures = simulator.call("render_aggregated", rgb_requests=requests).rgb_returns
    alone = [simulator.call("render_rgb", request).image_bytes for request in requests]
    assert [picture.image_bytes for picture in pictures] == alone
    assert not simulator.call("render_aggregated").rgb_returns
    with pytest.raises(grpc.RpcError) as refused:
        simulator.call("render_aggregated", rgb_requests=[frame(WIDE), frame(scene_id="nowhere")])
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert refused.value.details().startswith("rgb_requests[1].scene_id: ")


def test_a_scene_far_from_the_origin_looks_the_same(tmp_path: Path) -> None:
    place = street(tmp_path)
    # Binary fractions, which float32 holds exactly even there.
    far = np.array([70_000.0, -30_000.0, 128.0])
    near = {"at": pose((1.5, 0.125, 1.5), FORWARD), "end": pose((1.75, 0.25, 1.5), FORWARD)}
    away = {name: pose(np.add((it.vec.x, it.vec.y, it.vec.z), far), FORWARD) for name, it in near.items()}
    spec = camera_spec(WIDE, shutter_type=TOP_TO_BOTTOM)
    pictures = []
    for offset, poses in ((np.zeros(3), near), (far, away)):
        track = {**place.manifest["tracks"][0]}
        track["poses"] = [[*np.add(it[:3], offset), *it[3:]] for it in track["poses"]]
        turned = {"translation_m": offset.tolist(), "rotation_xyzw": [0, 0, 0, 1]}
        place.write(gaussians=[{"file": "world.ply", "pose": turned}], tracks=[track])
        with (
            worker("--device", "cpu", "--sensorsim", str(place.folder)) as process,
            DrivingClient(process.target) as simulator,
        ):
            request = frame(WIDE, camera_intrinsics=spec, **poses)
            pictures.append(levels_of(simulator.call("render_rgb", request).image_bytes))
    same(*pictures)


def test_frames_of_a_log_are_rendered_and_differentiated(client: Client, simulator: DrivingClient) -> None:
    at, end = pose((1.5, 0.1, 1.4), FORWARD), pose((1.75, 0.1, 1.4), FORWARD)
    request = frame(WIDE, at=at, end=end, camera_intrinsics=camera_spec(WIDE, shutter_type=TOP_TO_BOTTOM))
    described = client.drive_frame(request.SerializeToString())
    scene, camera, transforms = described
    assert (scene.name, scene.count, len(transforms)) == (SCENE, 460, 2)
    assert (camera.width, camera.height, camera.model.shutter) == (160, 120, "top_to_bottom")
    np.testing.assert_allclose(described.origin, (1.5, 0.1, 1.4), atol=1e-6)
    rendered = client.render(scene, camera, **described.settings, retain=True)
    levels = np.rint(np.clip(rendered.color, 0, 1) * 255).astype(np.uint8)
    np.testing.assert_array_equal(levels, levels_of(simulator.call("render_rgb", request).image_bytes))
    gradients = rendered.backward(color=np.ones_like(rendered.color), wanted=("cameras", "transforms"))
    assert np.abs(gradients.transforms).max() > 0
    again = client.render(scene, camera, **described.settings)
    repeated = again.backward(color=np.ones_like(rendered.color), wanted=("cameras", "transforms"))
    np.testing.assert_allclose(repeated.transforms, gradients.transforms, rtol=1e-4, atol=1e-3)
    with pytest.raises(InvalidArgument, match="image_format"):
        client.drive_frame(frame(image_format=6))
    with pytest.raises(InvalidArgument, match="request: expected an RGBRenderRequest"):
        client.drive_frame(b"\xff\xff")


def test_scenes_in_files_are_listed_by_name(place: Street) -> None:
    with (
        worker("--device", "cpu", "--sensorsim", str(place.folder)) as process,
        Client(process.target) as client,
    ):
        (unread,) = client.list()
        assert (unread.name, unread.scene_id, unread.kind) == (SCENE, "", "gaussians")
        camera = sensor(FRONT, pose((1.5, 0.1, 1.4), FORWARD))
        first = client.render(unread, camera).color
        (read,) = client.list()
        assert (read.name, read.count) == (SCENE, 460)
        assert read.scene_id
        changed = client.update(read, opacities=np.zeros(460, np.float32))
        assert not changed.name
        assert client.render(changed, camera).color.max() == 0
        np.testing.assert_array_equal(client.render(unread, camera).color, first)
        with pytest.raises(SceneNotFound):
            client.render(replace(unread, name="nowhere"), camera)
