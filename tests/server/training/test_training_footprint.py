"""A training reserves, by its shapes, what its tensors take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lumigrad.server.core.accounts import Account
from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import BusyError, DeviceMemoryError
from lumigrad.server.core.limits import Limits
from lumigrad.server.device.memory import DeviceMemory
from lumigrad.server.storage.trainings import Footprint, TrainingStore, counted
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import TrainingState, footprint_of
from lumigrad.server.training.views import Views
from lumigrad.v1 import errors_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, detail, failure, sphere_cloud
from support.calls.raw_training import RawTraining, cameras, start_of, taken_up
from support.workers.worker import worker

MIB = 1 << 20
LIMITS = Limits.of(Config())
GAUSSIANS = {name: array for name, array in gaussian_cloud(50).items() if name != "covariances"}
RATES = ("means", "quats", "scales", "opacities", "sh0", "poses", "intrinsics", "exposures")
CASES = {
    "gaussians": (GAUSSIANS, "gaussians", RATES, {}),
    "adaptive": (GAUSSIANS, "gaussians", RATES[:4], {"density": {"adaptive": {}, "extent": 1}}),
    "mcmc": (GAUSSIANS, "gaussians", RATES[:4], {"density": {"mcmc": {"cap": 60}, "extent": 1}}),
    "spheres": (sphere_cloud(50), "spheres", ("positions", "radii"), {}),
}


def store_of(limit: int, memory_bytes: int = 1 << 40) -> TrainingStore:
    account = Account("bytes", limit, "--all")
    return TrainingStore(account, "a", 60.0, memory_of(account, memory_bytes))


def memory_of(account: Account, nbytes: int = 1 << 40) -> DeviceMemory:
    memory = DeviceMemory(torch.device("cpu"), nbytes)
    nothing: Any = SimpleNamespace(bytes=0, drop=lambda nbytes: None)
    memory.share_with(nothing, nothing, account)
    return memory


def nbytes_of(bound: Any) -> int:
    """The bytes of all tensors of what is bound for steps without Python."""
    if isinstance(bound, torch.Tensor):
        return bound.nbytes
    return sum(map(nbytes_of, vars(bound).values())) if hasattr(bound, "__dataclass_fields__") else 0


@pytest.mark.parametrize("case", CASES)
def test_what_is_reserved_is_what_is_allocated(case: str) -> None:
    cloud, kind, rates, fields = CASES[case]
    spec: Any = training_pb2.TrainingSpec(
        optimizer={"rates": {name: {"initial": 1e-3} for name in rates}}, **{kind: {}}, **fields
    )
    tensors = {name: torch.from_numpy(array) for name, array in cloud.items()}
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    plan = TrainingPlan.of(spec, kind, shapes, LIMITS, "spec")
    views = Views([training_pb2.TrainingView(camera=camera) for camera in cameras(3)], [None] * 3)
    footprint = footprint_of(plan, shapes, views)
    with store_of(1 << 30).reserved(footprint, 50) as reservation:
        parameters = Parameters.of_scene(tensors, plan.optimizer)
        density = None if plan.density is None else DensityState(plan.density, parameters)
        state = TrainingState("scene", plan, views, parameters, density, reservation)
    taken = {name: tensor.nbytes for name, tensor in state.tensors().items() if not name.endswith("was_reset")}
    # Copies on the device, for steps without Python.
    refined = state.refinement.bound(views, plan.optimizer, torch.device("cpu"), are_sensors=True)
    copies = sum(nbytes_of(each) for each in refined.values())
    assert reservation.bytes == footprint.bytes(50) == sum(taken.values()) + copies + views.bytes


def test_only_what_lies_behind_an_activation_takes_more_while_it_begins() -> None:
    shapes = {"means": [50, 3], "scales": [50, 3], "opacities": [50], "sh": [50, 16, 3]}
    # A value in double precision, the value within limits, and its logit exist at the same time.
    assert Parameters.working_bytes(shapes) == 3 * 3 * 8
    assert Parameters.working_bytes({"positions": [50, 3]}) == 0


def test_growth_reserves_what_lasts() -> None:
    footprint = Footprint(row_bytes=10, fixed_bytes=5, working_bytes=0)
    store = store_of(400)
    with store.reserved(footprint, 10) as reservation:
        assert (reservation.bytes, reservation.copied_bytes) == (105, 200)
    reservation.grow(5)
    assert reservation.bytes == 105
    reservation.grow(20)
    assert reservation.bytes == 205
    with pytest.raises(BusyError):
        reservation.grow(40)
    assert reservation.bytes == 205
    reservation.resize(20)
    assert reservation.bytes == 205
    reservation.release()
    assert store.reserve(400).amount == 400


def test_growth_takes_no_memory_that_the_device_has_not() -> None:
    store, footprint = store_of(1000, memory_bytes=250), Footprint(row_bytes=10, fixed_bytes=0, working_bytes=0)
    with store.reserved(footprint, 20) as reservation:
        pass
    reservation.grow(25)
    reservation.resize(20)
    with pytest.raises(DeviceMemoryError) as caught:
        reservation.grow(30)
    assert (caught.value.asked_bytes, caught.value.available_bytes, reservation.bytes) == (100, 50, 200)
    with pytest.raises(DeviceMemoryError) as caught, counted(reservation.bytes):
        raise DeviceMemoryError(0, -30)
    assert (caught.value.asked_bytes, caught.value.available_bytes) == (200, 170)


DENSITIES = {
    "adaptive": {"adaptive": {"start": 0, "every": 2, "grow_gradient": 1e9, "prune_opacity": 1e-6, "reset_every": 3}},
    "mcmc": {"mcmc": {"start": 0, "every": 2, "cap": 8000, "min_opacity": 1e-6}},
}


@pytest.mark.parametrize("kind", DENSITIES)
def test_a_training_of_half_of_the_memory_has_density_control(kind: str) -> None:
    with worker("--device", "cpu", "--training-mib", "14", "--max-payload-mib", "16") as process:
        client = RawClient(process.target)
        control: Any = {"extent": 2.0, **DENSITIES[kind]}
        start = start_of(client, gaussian_cloud(8000, coefficients=16, seed=1), density=control)
        training = RawTraining(client, start)
        training.started()
        nbytes = process.metric("lumigrad_training_bytes")
        assert 5 * MIB < nbytes < 7 * MIB
        assert [training.step(number).number for number in range(5)] == list(range(5))
        assert process.metric("lumigrad_training_bytes") <= nbytes
        training.finish()
        client.close()


def test_the_copies_of_density_control_are_in_the_cost_of_their_step() -> None:
    """A device with memory for the training and its steps, but not for copies, refuses a step and stays as it was."""
    sizes = ("--training-mib", "64", "--scene-mib", "64", "--max-payload-mib", "32", "--transit-mib", "64")
    with worker("--device", "cpu", *sizes, "--device-memory-mib", "90") as process, RawClient(process.target) as client:
        control: Any = {"extent": 2.0, **DENSITIES["adaptive"]}
        start = start_of(client, gaussian_cloud(40_000, coefficients=16, seed=1), density=control)
        training = RawTraining(client, start)
        started = training.started()
        nbytes = process.metric("lumigrad_training_bytes")
        assert [training.step(number).number for number in range(2)] == [0, 1]
        short = detail(failure(lambda: training.step(2)), errors_pb2.DeviceMemoryShort)
        assert short.asked_bytes > 1.9 * nbytes and short.asked_bytes > short.available_bytes > nbytes
        again = RawTraining(client, taken_up(started))
        assert again.started().step == 2


def test_idle_trainings_make_room_only_if_that_is_enough() -> None:
    store, call = store_of(100), SimpleNamespace(check=lambda: None)
    for number in range(3):
        with store.begin(f"scene-{number}", "", call) as training:
            with store.reserved(Footprint(0, 30, 0), 1) as reservation:
                pass
            store.keep(training, SimpleNamespace(scene_id=f"scene-{number}", reservation=reservation))
    held = store.reserve(10)
    with pytest.raises(BusyError):
        store.reserve(95)
    assert len(store) == 3
    assert store.reserve(60).amount == 60
    assert len(store) == 1
    held.release()


def test_idle_trainings_are_few_however_small_they_are() -> None:
    store, call = store_of(1 << 20), SimpleNamespace(check=lambda: None)
    leases = []
    for number in range(300):
        with store.begin(f"scene-{number}", "", call) as training:
            leases.append((training.training_id, training.lease))
            with store.reserved(Footprint(0, 1, 0), 1) as reservation:
                pass
            store.keep(training, SimpleNamespace(scene_id=f"scene-{number}", reservation=reservation))
    assert len(store) == 256
    # The trainings that were idle for longest have gone, and their memory with them.
    assert store.reserve((1 << 20) - 256).amount == (1 << 20) - 256
    with store.take_up(*leases[44], 0, call) as training:
        assert training.is_made
    with store.take_up(*leases[43], 0, call) as training:
        assert not training.is_made


def test_what_others_have_is_theirs() -> None:
    account = Account("bytes", 100, "--all", share=60, share_option="--each")
    one, other = (TrainingStore(account, tenant, 60.0, memory_of(account)) for tenant in "ab")
    call = SimpleNamespace(check=lambda: None)
    with one.begin("scene", "", call) as training:
        with one.reserved(Footprint(0, 50, 0), 1) as reservation:
            pass
        one.keep(training, SimpleNamespace(scene_id="scene", reservation=reservation))
    with pytest.raises(BusyError, match="--all"):
        other.reserve(55)
    with pytest.raises(BusyError, match=r"61 bytes are needed, of which there are 60 at the most \(--each\)"):
        other.reserve(61)
    assert (len(one), other.reserve(50).amount) == (1, 50)
