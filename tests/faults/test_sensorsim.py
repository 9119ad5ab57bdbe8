"""Driving simulators' contract under bad requests, broken scenes, full queues, and workers that stop or die."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from google.rpc.error_details_pb2 import BadRequest

from lumigrad.client import Camera, Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.protos.details import find
from lumigrad.server.core.errors import BusyError
from lumigrad.server.sensorsim.renders import _own
from support.calls.gaussian_calls import gaussian_spec
from support.calls.raw_calls import opencv_camera
from support.driving.fixtures import driving_client_fixture, street_fixture, street_worker_fixture
from support.driving.scenes import AROUND, END_US, FRONT, SCENE, WIDE, Street, frame, moved, pose, street
from support.driving.stubs import MESSAGES, PLANAR, TOP_TO_BOTTOM, DrivingClient
from support.workers.slow_render import SlowRender, wait_until
from support.workers.tenant import tenant_client
from support.workers.worker import LUMIGRAD, WorkerProcess, replaceable_worker, worker

Code = grpc.StatusCode
CONFIG_ERROR = 2
# AlpaSim's pauses before it repeats a call that ended with UNAVAILABLE, and more for a busy machine.
RETRY_SECONDS = (0.5, *[2.0] * 60)

place, simulator = street_fixture(), driving_client_fixture()
process = street_worker_fixture("--max-pixels", "100000")


def test_no_tenant_waits_for_a_scene_that_another_one_reads(place: Street) -> None:
    options = ("--device", "cpu", "--sensorsim", str(place.folder))
    with (
        worker(*options, tokens={"alice": "a" * 32, "bob": "b" * 32}) as started,
        started.channel() as channel,
        ThreadPoolExecutor(1) as threads,
    ):
        alice, bob = tenant_client(channel, "a" * 32), tenant_client(channel, "b" * 32)
        spec = gaussian_spec(opencv_camera(32, 24))
        spec.scene_ref.name = SCENE
        slow = SlowRender(alice)
        # Alice's renders run before the work that stores the scene she reads.
        views = max(1, round(0.7 / slow.seconds_per_view()))
        for _ in range(24):
            slow.start(views)
        wait_until(lambda: started.metric("lumigrad_queue_depth") >= 10, "a queue")
        hers = threads.submit(alice.render, spec)
        time.sleep(0.3)
        assert bob.render(spec).arrays["color"].shape == (1, 24, 32, 3)
        assert not hers.done()
        slow.cancel()
        assert hers.result(150).arrays["color"].shape == (1, 24, 32, 3)


def setting(*path: str | int, to: Any) -> Callable[[Any], None]:
    """A function that changes a field of a message."""

    def apply(message: Any) -> None:
        for step in path[:-1]:
            message = message[step] if isinstance(step, int) else getattr(message, step)
        last = path[-1]
        if isinstance(last, int):
            message[last] = to
        elif isinstance(to, list):
            getattr(message, last)[:] = to
        else:
            setattr(message, last, to)

    return apply


def rolling(message: Any) -> None:
    message.camera_intrinsics.shutter_type = TOP_TO_BOTTOM
    message.sensor_pose.end_pose.quat.w = float("nan")


SPEC = "camera_intrinsics"
FTHETA, PINHOLE, FISHEYE = (f"{SPEC}.{name}_param" for name in ("ftheta", "opencv_pinhole", "opencv_fisheye"))


@dataclass(frozen=True)
class Case:
    """A camera's frame, the change made to it, and the field and status of its refusal; no field if it is accepted."""

    camera: str
    spoil: Callable[[Any], None]
    field: str = ""
    code: Code = Code.INVALID_ARGUMENT


CASES = {
    "no scene": Case(FRONT, setting("scene_id", to=""), "scene_id", code=Code.NOT_FOUND),
    "an early frame": Case(FRONT, setting("frame_start_us", to=1), "frame_start_us", code=Code.OUT_OF_RANGE),
    "a late frame": Case(
        FRONT,
        lambda it: [setting(name, to=END_US + 9)(it) for name in ("frame_start_us", "frame_end_us")],
        "frame_start_us",
        code=Code.OUT_OF_RANGE,
    ),
    "a frame that ends first": Case(FRONT, setting("frame_end_us", to=1), "frame_end_us"),
    "no height": Case(FRONT, setting("resolution_h", to=0), "resolution_h"),
    "a huge width": Case(FRONT, setting("resolution_w", to=(1 << 32) - 1), "resolution_w"),
    "many pixels": Case(FRONT, setting("resolution_w", to=2000), "resolution_w"),
    "a huge camera": Case(
        FRONT, lambda it: [setting(SPEC, name, to=(1 << 32) - 1)(it) for name in ("resolution_h", "resolution_w")]
    ),
    "no camera": Case(FRONT, lambda it: it.ClearField(SPEC), SPEC),
    "no lens": Case(FRONT, lambda it: it.camera_intrinsics.ClearField("opencv_pinhole_param"), SPEC),
    "another shutter": Case(FRONT, setting(SPEC, "shutter_type", to=9), f"{SPEC}.shutter_type"),
    "an infinite lens": Case(
        FRONT, setting(SPEC, "opencv_pinhole_param", "focal_length_x", to=float("inf")), f"{PINHOLE}.focal_length_x"
    ),
    "no focal length": Case(
        FRONT, setting(SPEC, "opencv_pinhole_param", "focal_length_y", to=0.0), f"{PINHOLE}.focal_length_y"
    ),
    "seven coefficients": Case(
        FRONT, setting(SPEC, "opencv_pinhole_param", "radial_coeffs", to=[0.1] * 7), f"{PINHOLE}.radial_coeffs"
    ),
    "a huge coefficient": Case(
        FRONT, setting(SPEC, "opencv_pinhole_param", "radial_coeffs", to=[1000000000.0]), f"{PINHOLE}.radial_coeffs"
    ),
    "a fisheye that folds": Case(
        AROUND, setting(SPEC, "opencv_fisheye_param", "radial_coeffs", to=[-0.3]), f"{FISHEYE}.max_angle"
    ),
    "a fisheye that ends where it folds": Case(
        AROUND,
        lambda it: [
            setting(SPEC, "opencv_fisheye_param", name, to=value)(it)
            for name, value in (("radial_coeffs", [-0.13]), ("max_angle", 0.0))
        ],
    ),
    "an f-theta that folds": Case(
        WIDE, setting(SPEC, "ftheta_param", "pixeldist_to_angle_poly", to=[0, 0.01, -0.0001]), f"{FTHETA}.max_angle"
    ),
    "an f-theta that falls": Case(
        WIDE,
        setting(SPEC, "ftheta_param", "pixeldist_to_angle_poly", to=[0, -0.01]),
        f"{FTHETA}.pixeldist_to_angle_poly",
    ),
    "no reference": Case(WIDE, setting(SPEC, "ftheta_param", "reference_poly", to=0), f"{FTHETA}.reference_poly"),
    "a flat map": Case(
        WIDE,
        lambda it: [setting(SPEC, "ftheta_param", "linear_cde", f"linear_{n}", to=1.0)(it) for n in "cde"],
        f"{FTHETA}.linear_cde",
    ),
    "a negative angle": Case(WIDE, setting(SPEC, "ftheta_param", "max_angle", to=-1.0), f"{FTHETA}.max_angle"),
    "half a windshield": Case(
        WIDE,
        setting(SPEC, "bivariate_windshield_model_param", "horizontal_poly", to=[0, 1]),
        f"{SPEC}.bivariate_windshield_model_param.horizontal_poly",
    ),
    "no pose": Case(FRONT, lambda it: it.ClearField("sensor_pose"), "sensor_pose.start_pose.quat"),
    "a long quaternion": Case(
        FRONT, setting("sensor_pose", "start_pose", "quat", "w", to=0.7), "sensor_pose.start_pose.quat"
    ),
    "nowhere": Case(
        FRONT, setting("sensor_pose", "start_pose", "vec", "y", to=float("nan")), "sensor_pose.start_pose.vec"
    ),
    "no end of a rolling shutter": Case(FRONT, rolling, "sensor_pose.end_pose.quat"),
    "a track without a pose": Case(
        FRONT, lambda it: it.dynamic_objects.add(track_id="car"), "dynamic_objects[0].pose_pair.start_pose.quat"
    ),
    "a track twice": Case(
        FRONT, lambda it: it.dynamic_objects.extend([moved("car", pose((0, 0, 0)))] * 2), "dynamic_objects[1].track_id"
    ),
    "a video": Case(FRONT, setting("image_format", to=5), "image_format"),
    "an unknown format": Case(FRONT, setting("image_format", to=77), "image_format"),
    "too good": Case(FRONT, setting("image_quality", to=101.0), "image_quality"),
    "too bad": Case(FRONT, setting("image_quality", to=-0.5), "image_quality"),
    "no number": Case(FRONT, setting("image_quality", to=float("nan")), "image_quality"),
    "no mask": Case(FRONT, setting("insert_ego_mask", to=True), "ego_mask_id", code=Code.NOT_FOUND),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_with_a_frame_is_named_by_its_path(simulator: DrivingClient, name: str) -> None:
    case = CASES[name]
    request = frame(case.camera)
    case.spoil(request)
    batch = MESSAGES["Batch"](items=[{"camera_name": "x", "request": request}])
    if not case.field:
        simulator.call("render_rgb", request)
        return
    with pytest.raises(grpc.RpcError) as refused:
        simulator.call("render_rgb", request)
    error = refused.value
    assert (error.code(), error.details().split(": expected")[0]) == (case.code, case.field)
    detail = find(error.trailing_metadata(), BadRequest)
    assert [violation.field for violation in detail.field_violations] == [case.field]
    (reply,) = simulator.call("batch_render_rgb", batch).items
    assert reply.error_message.startswith(f"{case.code.name}: items[0].request.{case.field}: expected")


def test_what_is_not_served_says_so(simulator: DrivingClient) -> None:
    for method, fields, code, text in (
        ("shut_down", {}, Code.PERMISSION_DENIED, "a client does not end this worker"),
        ("get_available_cameras", {"scene_id": "x"}, Code.NOT_FOUND, "scene_id: expected one of street-1, got x"),
        ("get_dynamic_objects", {}, Code.NOT_FOUND, "scene_id: expected one of street-1, got none"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            simulator.call(method, **fields)
        assert refused.value.code() == code, method
        assert refused.value.details().startswith(text)


def test_refused_frames_with_ego_masks_leave_no_memory_behind(place: Street) -> None:
    with (
        worker("--device", "cpu", "--sensorsim", str(place.folder)) as process,
        DrivingClient(process.target) as simulator,
    ):
        mask = {"camera_logical_id": WIDE, "rig_config_id": "rig-1"}
        assert simulator.call("render_rgb", frame(WIDE, insert_ego_mask=True, ego_mask_id=mask)).image_bytes
        memory = psutil.Process(process.process.pid).memory_info
        before = memory().rss
        for index in range(8):
            # Each mask would take 59 MB.
            request = frame(
                WIDE, insert_ego_mask=True, ego_mask_id=mask, image_quality=1e9,
                resolution_w=5120, resolution_h=2880 + 16 * index,
            )  # fmt: skip
            request.camera_intrinsics.resolution_w = request.camera_intrinsics.resolution_h = 0
            with pytest.raises(grpc.RpcError, match="image_quality"):
                simulator.call("render_rgb", request)
        assert memory().rss - before < 64 << 20


def test_huge_times_are_times(place: Street, tmp_path: Path) -> None:
    free = street(tmp_path)
    free.write(time_range_us=None)
    with (
        worker("--device", "cpu", "--sensorsim", str(tmp_path)) as process,
        DrivingClient(process.target) as simulator,
    ):
        last = (1 << 64) - 1
        for start, end in ((0, 0), (0, 1), (0, last), (last, last)):
            assert simulator.call("render_rgb", frame(frame_start_us=start, frame_end_us=end)).image_bytes


def test_scenes_with_broken_files_are_refused_when_they_are_used(tmp_path: Path) -> None:
    place = street(tmp_path)
    (tmp_path / SCENE / "car.ply").write_bytes(b"ply\nformat ascii 1.0\nelement vertex 5\nend_header\n")
    street(tmp_path / "more", "good")
    (tmp_path / "more" / "good").rename(tmp_path / "good")
    with (
        worker("--device", "cpu", "--sensorsim", str(place.folder)) as process,
        DrivingClient(process.target) as simulator,
    ):
        with pytest.raises(grpc.RpcError) as refused:
            simulator.call("render_rgb", frame())
        assert refused.value.code() == Code.FAILED_PRECONDITION
        assert refused.value.details().startswith("scene street-1: car.ply: ")
        assert str(tmp_path) not in refused.value.details()
        items = [{"request": frame()}, {"request": frame(scene_id="good")}]
        replies = simulator.call("batch_render_rgb", items=items).items
        assert replies[0].error_message.startswith("FAILED_PRECONDITION: scene street-1: car.ply: ")
        assert replies[1].success
        with (
            Client(process.target) as client,
            pytest.raises(InvalidArgument, match=r"scene street-1: car\.ply: expected"),
        ):
            broken = next(stored for stored in client.list() if stored.name == SCENE)
            client.render(broken, Camera.look_at((0, 0, 4), (0, 0, 0), (0, -1, 0), width=48, height=32))
    with pytest.raises(RuntimeError, match=r"--sensorsim-preload: scene street-1: car\.ply"):
        WorkerProcess("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload")


def test_a_broken_manifest_ends_the_start_once(tmp_path: Path) -> None:
    place = street(tmp_path)
    place.write(version=7)
    command = [LUMIGRAD, "serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", "--sensorsim", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == CONFIG_ERROR
    expected = f"lumigrad: error: --sensorsim: {place.file}: version: expected a whole number from 1 to 1, got 7\n"
    assert done.stderr == expected


def test_scenes_are_loaded_kept_evicted_and_loaded_again(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        # 0.6 MiB each, one of which fits.
        street(tmp_path, name, world_count=4000, seed=seed)
    options = ("--max-payload-mib", "1", "--scene-mib", "1", "--sensorsim", str(tmp_path))
    with worker("--device", "cpu", *options) as process, DrivingClient(process.target) as simulator:
        assert not simulator.call("get_loaded_scenes").scenes
        first = {name: simulator.call("render_rgb", frame(scene_id=name)).image_bytes for name in ("one", "two")}
        assert [scene.scene_id for scene in simulator.call("get_loaded_scenes").scenes] == ["two"]
        assert simulator.call("get_loaded_scenes").loaded_instance_capacity == 2
        for name in ("one", "two", "one"):
            assert simulator.call("render_rgb", frame(scene_id=name)).image_bytes == first[name]
        assert process.metric("lumigrad_evictions_total", store="scenes", reason="room") == 4
    with pytest.raises(RuntimeError, match=r"--sensorsim-preload: expected room for all scenes \(--scene-mib\)"):
        WorkerProcess("--device", "cpu", *options, "--sensorsim-preload")
    enough = ("--sensorsim", str(tmp_path), "--sensorsim-preload")
    with worker("--device", "cpu", *enough) as process, DrivingClient(process.target) as simulator:
        assert len(simulator.call("get_loaded_scenes").scenes) == 2


def test_a_full_queue_is_unavailable(place: Street) -> None:
    options = ("--queue-size", "1", "--sensorsim", str(place.folder), "--sensorsim-preload")
    with worker("--device", "cpu", *options) as process, DrivingClient(process.target) as simulator:
        request = frame(resolution_w=1600, resolution_h=960, image_format=PLANAR)

        def ask(_: int) -> grpc.StatusCode:
            try:
                simulator.call("render_rgb", request)
            except grpc.RpcError as error:
                return error.code()
            return Code.OK

        with ThreadPoolExecutor(12) as threads:
            codes = set(threads.map(ask, range(36)))
        assert codes == {Code.OK, Code.UNAVAILABLE}


def rollout(target: Callable[[], str], scene_id: str, steps: int, answered: list[float]) -> None:
    """Does what AlpaSim does: a channel, cameras, masks, and batches, repeated twice if they are UNAVAILABLE."""
    with DrivingClient(target()) as simulator:
        cameras = simulator.call("get_available_cameras", scene_id=scene_id).available_cameras
        simulator.call("get_available_ego_masks")
        for step in range(steps):
            at = (1.5 + 0.1 * (step % 100), 0.1, 1.4)
            items = [
                {"camera_name": it.logical_id, "request": frame(it.logical_id, at=at, scene_id=scene_id)}
                for it in cameras
            ]
            for pause in (*RETRY_SECONDS, None):
                try:
                    replies = simulator.call("batch_render_rgb", items=items).items
                    break
                except grpc.RpcError as error:
                    assert error.code() == Code.UNAVAILABLE, error
                    if pause is None:
                        raise
                    time.sleep(pause)
            assert all(reply.success for reply in replies), replies
            answered.append(time.monotonic())


def rollouts(target: Callable[[], str], steps: int, disturb: Callable[[], None], count: int = 4) -> None:
    """Runs several rollouts, and disturbs the worker while all are in progress: they only repeat their batches."""
    answered: list[list[float]] = [[] for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        running = [threads.submit(rollout, target, SCENE, steps, own) for own in answered]
        wait_until(lambda: all(answered), "a batch of each rollout")
        disturb()
        for one in running:
            one.result(240)
    assert [len(own) for own in answered] == [steps] * count


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest) -> int:
    """The steps of a rollout; with `--whole`, as many as in a simulation of 20 s."""
    return 200 if request.config.getoption("whole") else 10


def test_four_rollouts_at_once(process: WorkerProcess, steps: int) -> None:
    rollouts(lambda: process.target, steps, lambda: None)


def test_rollouts_survive_a_worker_that_is_killed(place: Street, steps: int) -> None:
    options = ("--sensorsim", str(place.folder), "--sensorsim-preload")
    with worker("--device", "cpu", *options, supervised=True, is_balanced=False) as process:
        rollouts(lambda: process.target, steps, lambda: os.kill(process.worker_pid, signal.SIGKILL))


def test_rollouts_survive_a_worker_that_drains(place: Street, steps: int) -> None:
    """The successor takes the port, as in a container."""
    options = ("--device", "cpu", "--sensorsim", str(place.folder), "--sensorsim-preload", "--lame-duck-seconds", "0")
    with replaceable_worker(*options) as (first, replace):
        rollouts(lambda: first.target, steps, replace)


@pytest.mark.parametrize("is_first", [True, False])
def test_refused_frames_leave_no_garbage(is_first: bool) -> None:
    held: list[weakref.ref[np.ndarray]] = []

    def render() -> dict[int, Exception]:
        rows = np.zeros(8)
        held.append(weakref.ref(rows))
        outcomes = {}
        try:
            raise BusyError("no room", 1.0)
        except BusyError as error:
            outcomes[0] = own = _own(error, is_first=is_first)
        assert isinstance(own, BusyError)
        return outcomes

    gc.disable()
    try:
        with suppress(BusyError):
            render()
        assert held[0]() is None
    finally:
        gc.enable()
