"""Kernels stop early at the request of another thread, without an effect on the next call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import Stopped, StopRequest, Unstoppable, check_stop
from lumigrad.kernels.gaussians import Gaussians, Settings
from support.backends import emulation, gaussian_engines, mesh_engines
from support.backends.engines import ENGINES, Engine
from support.gaussians import cases as gaussian_cases
from support.gaussians import runs as gaussian_runs
from support.gaussians import sensor_cases
from support.meshes import runs as mesh_runs
from support.meshes import shapes
from support.meshes.case import Placed
from support.meshes.cases import TURNED, case_of
from support.meshes.spheres import Crowd
from support.spheres import cases as sphere_cases
from support.spheres import runs as sphere_runs

GAUSSIANS = gaussian_cases.build(
    "stopped", gaussian_cases.Cloud(count=4000, slope=0.6, scales=(0.005, 0.2)), width=300, height=260
)
SPHERES = sphere_cases.build(
    "stopped", sphere_cases.Cloud(count=3000, half_width=2.5, radii=(0.02, 0.5)), width=300, height=260
)
PATH = Crowd(batches=8, horizon=8, count=40, step=0.2)
DISTANCES = case_of("stopped", Placed(shapes.torus(40, 20), TURNED), crowd=PATH, activation_distance=0.03)
LOSS = ("color", "alpha", "depth")
Arrays = dict[str, Any]
# A forward pass, which returns its arrays and a function for the backward pass.
Passes = Callable[[], tuple[Arrays, Callable[[], Arrays]]]


def gaussians(engine: gaussian_engines.Engine) -> tuple[Arrays, Callable[[], Arrays]]:
    cameras, scene = gaussian_runs.cameras_of(GAUSSIANS), gaussian_runs.scene_of(GAUSSIANS)
    outputs, state = engine.forward(scene, cameras, Settings(), outputs=LOSS, retain=True)
    upstream = {name: torch.ones_like(value) for name, value in outputs.items()}
    return outputs, lambda: engine.backward(state, upstream, None)[0]


def rays() -> tuple[Arrays, Callable[[], Arrays]]:
    case, engine = next(iter(sensor_cases.RAY_CASES.values())), gaussian_engines.cpu()
    outputs, state = engine.forward(Gaussians(**case.scene), [case.camera()], Settings(**case.settings), retain=True)
    return outputs, lambda: engine.backward(state, {"color": torch.ones_like(outputs["color"])}, None)[0]


def spheres(semantics: sphere_runs.Semantics, engine: Engine) -> tuple[Arrays, Callable[[], Arrays]]:
    positions, colors, radii = map(torch.from_numpy, (SPHERES.positions, SPHERES.colors, SPHERES.radii))
    settings = sphere_runs.settings_of(SPHERES, semantics)
    cameras = [sphere_runs.camera_of(SPHERES)]
    outputs, state = engine.forward(positions, colors, radii, cameras, settings, retain=True)
    upstream = {"color": torch.ones_like(outputs["color"])}
    return outputs, lambda: engine.backward(state, upstream, sphere_runs.SPHERE_INPUTS)[0]


def distances() -> tuple[Arrays, Callable[[], Arrays]]:
    return dict(mesh_runs.run(mesh_engines.cpu(), DISTANCES, outputs=mesh_runs.OUTPUTS).outputs), dict


KINDS: dict[str, Passes] = {
    "gaussians": lambda: gaussians(gaussian_engines.cpu()),
    "rays": rays,
    "exact spheres": lambda: spheres("exact", ENGINES["cpu"]()),
    "compat spheres": lambda: spheres("compat", ENGINES["cpu"]()),
    "distances": distances,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
WITH_GRADIENTS = [kind for kind in KINDS if kind != "distances"]


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest, keep_threads: None) -> None:
    _native.set_thread_count(request.param)


@pytest.fixture
def made() -> StopRequest:
    request = StopRequest()
    request.make()
    return request


def whole(passes: Passes) -> Arrays:
    outputs, backward = passes()
    return {**outputs, **{f"gradient of {name}": value for name, value in backward().items()}}


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(expected[name]), err_msg=name)


@every_kind
def test_request_made_before_a_call_stops_it(kind: str, made: StopRequest) -> None:
    expected = whole(KINDS[kind])
    with made, pytest.raises(Stopped, match="stopped before they were done"):
        KINDS[kind]()
    assert_same(whole(KINDS[kind]), expected)


@pytest.mark.parametrize("kind", WITH_GRADIENTS)
def test_stopped_backward_pass_can_be_repeated(kind: str, made: StopRequest) -> None:
    _, backward = KINDS[kind]()
    expected = backward()
    with made, pytest.raises(Stopped):
        backward()
    assert_same(backward(), expected)


@every_kind
def test_call_stopped_anywhere_leaves_the_next_one_as_it_is(kind: str) -> None:
    expected = whole(KINDS[kind])
    began = time.perf_counter()
    whole(KINDS[kind])
    seconds, stopped = time.perf_counter() - began, 0
    # A busy machine may have made the measured call longer than those after it.
    for longest in seconds / 2.0 ** np.arange(10):
        for fraction in np.linspace(0.02, 0.98, 10):
            stopped += is_stopped_after(fraction * longest, KINDS[kind])
            assert_same(whole(KINDS[kind]), expected)
        if stopped:
            return
    pytest.fail("no call was stopped")


def is_stopped_after(seconds: float, passes: Passes) -> bool:
    """Returns whether a request to stop after this time comes before the end."""
    request = StopRequest()
    timer = threading.Timer(seconds, request.make)
    timer.start()
    try:
        with request:
            whole(passes)
    except Stopped:
        return True
    finally:
        timer.join()
    return False


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_all_threads_that_work_on_a_call_stop() -> None:
    case = gaussian_cases.build("large", gaussian_cases.Cloud(count=4000, slope=0.6), width=2000, height=1600)
    scene, cameras, engine = gaussian_runs.scene_of(case), gaussian_runs.cameras_of(case), gaussian_engines.cpu()

    def seconds(stop_after: float) -> float:
        """Returns the processor time of a call that is stopped; other work on the machine does not add to it."""
        request, is_done, began = StopRequest(), threading.Event(), time.process_time()

        def stop() -> None:
            while time.process_time() - began < stop_after and not is_done.wait(0.001):
                pass
            request.make()

        stopping = threading.Thread(target=stop)
        stopping.start()
        with suppress(Stopped), request:
            engine.forward(scene, cameras, Settings(), outputs=LOSS)
        is_done.set()
        stopping.join()
        return time.process_time() - began

    seconds(60.0)
    whole_call = min(seconds(60.0) for _ in range(3))
    # If only one thread stopped, the other one would do its part of the work too. A busy machine may stop them late.
    assert any(seconds(0.2 * whole_call) < 0.7 * whole_call for _ in range(20))


def test_request_concerns_the_thread_that_heeds_it_alone(made: StopRequest) -> None:
    expected = whole(KINDS["gaussians"])
    found: list[Arrays] = []
    other = threading.Thread(target=lambda: found.append(whole(KINDS["gaussians"])))
    with made:
        other.start()
        while other.is_alive():
            with suppress(Stopped):
                KINDS["gaussians"]()
        other.join()
    assert_same(found[0], expected)


def test_a_thread_heeds_one_request_at_a_time(made: StopRequest) -> None:
    with made, pytest.raises(RuntimeError, match="heeds another request already"), StopRequest():
        pass
    with made, pytest.raises(Stopped):
        KINDS["gaussians"]()


@pytest.mark.parametrize("kind", ["gaussians", "exact spheres"])
def test_kernels_for_a_gpu_stop_where_they_wait_for_a_count(kind: str) -> None:
    module = emulation.load("_emulation")

    def passes() -> Arrays:
        if kind == "gaussians":
            return gaussians(gaussian_engines.ENGINES["emulation"]())[0]
        return spheres("exact", ENGINES["emulation"]())[0]

    outputs = passes()
    module.set_stopping(True)
    try:
        with pytest.raises(Stopped):
            passes()
    finally:
        module.set_stopping(False)
    assert_same(passes(), outputs)


def test_loops_show_that_they_make_progress() -> None:
    request = StopRequest()
    time.sleep(0.1)
    assert request.idle_seconds > 0.09
    began = time.monotonic()
    with request:
        KINDS["gaussians"]()
    # Read before the clock, so that a pause in between does not count.
    idle = request.idle_seconds
    assert idle <= time.monotonic() - began


def test_what_must_be_done_to_the_end_heeds_no_request(made: StopRequest) -> None:
    expected = whole(KINDS["gaussians"])
    with made:
        with Unstoppable():
            check_stop()
            found = whole(KINDS["gaussians"])
        with pytest.raises(Stopped):
            check_stop()
    assert_same(found, expected)
