"""What a training reserves by its shapes is what its tensors take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lumigrad.server.accounts import Account
from lumigrad.server.config import Config
from lumigrad.server.errors import BusyError
from lumigrad.server.limits import Limits
from lumigrad.server.training.density_state import DensityState
from lumigrad.server.training.footprint import Footprint
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.store import TrainingStore
from lumigrad.server.training.views import Views
from lumigrad.v1 import training_pb2
from support.gaussian_calls import gaussian_cloud
from support.raw_calls import sphere_cloud
from support.raw_training import cameras

LIMITS = Limits.of(Config())
GAUSSIANS = {name: array for name, array in gaussian_cloud(50).items() if name != "covariances"}
RATES = ("means", "quats", "scales", "opacities", "sh0", "poses", "exposures")
CASES = {
    "gaussians": (GAUSSIANS, "gaussians", RATES, {}),
    "adaptive": (GAUSSIANS, "gaussians", RATES[:4], {"density": {"adaptive": {}, "extent": 1}}),
    "mcmc": (GAUSSIANS, "gaussians", RATES[:4], {"density": {"mcmc": {"cap": 60}, "extent": 1}}),
    "spheres": (sphere_cloud(50), "spheres", ("positions", "radii"), {}),
}


def store_of(limit: int, share: int | None = None) -> TrainingStore:
    return TrainingStore(Account("bytes", limit, "--all", share=share, share_option="--each"), "a", 60.0)


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
    footprint = Footprint.of(plan, shapes, views)
    with store_of(1 << 30).room(footprint, 50) as room:
        parameters = Parameters.of_scene(tensors, plan.optimizer)
        density = None if plan.density is None else DensityState(plan.density, parameters)
        state = TrainingState("scene", plan, views, parameters, density, room)
    taken = {name: tensor.nbytes for name, tensor in state.tensors().items() if not name.endswith("was_reset")}
    assert room.bytes == footprint.bytes(50) == sum(taken.values()) + views.bytes


def test_only_what_lies_behind_an_activation_takes_more_while_it_begins() -> None:
    shapes = {"means": [50, 3], "scales": [50, 3], "opacities": [50], "sh": [50, 16, 3]}
    # The double of a value, that within limits, and its logit.
    assert Parameters.working_bytes(shapes) == 3 * 3 * 8
    assert Parameters.working_bytes({"positions": [50, 3]}) == 0


def test_growth_has_the_old_and_the_new_until_it_is_done() -> None:
    footprint = Footprint(row_bytes=10, fixed_bytes=5, working_bytes=0)
    store = store_of(400)
    with store.room(footprint, 10) as room:
        assert room.bytes == 105
    room.grow(20)
    assert room.bytes == 305
    with pytest.raises(BusyError):
        room.grow(40)
    assert room.bytes == 305
    room.settle(20)
    assert room.bytes == 205
    room.release()
    assert store.reserve(400).amount == 400


def test_idle_trainings_make_room_only_if_that_is_enough() -> None:
    store, call = store_of(100), SimpleNamespace(check=lambda: None)
    for number in range(3):
        with store.begin(f"scene-{number}", "", call) as training:
            with store.room(Footprint(0, 30, 0), 1) as room:
                pass
            store.keep(training, SimpleNamespace(scene_id=f"scene-{number}", room=room))
    held = store.reserve(10)
    with pytest.raises(BusyError):
        store.reserve(95)
    assert len(store) == 3
    assert store.reserve(60).amount == 60
    assert len(store) == 1
    held.release()


def test_what_others_have_is_theirs() -> None:
    account = Account("bytes", 100, "--all", share=60, share_option="--each")
    one, other = TrainingStore(account, "a", 60.0), TrainingStore(account, "b", 60.0)
    call = SimpleNamespace(check=lambda: None)
    with one.begin("scene", "", call) as training:
        with one.room(Footprint(0, 50, 0), 1) as room:
            pass
        one.keep(training, SimpleNamespace(scene_id="scene", room=room))
    with pytest.raises(BusyError, match="--all"):
        other.reserve(55)
    with pytest.raises(BusyError, match=r"61 bytes are needed, of which there are 60 at the most \(--each\)"):
        other.reserve(61)
    assert (len(one), other.reserve(50).amount) == (1, 50)
