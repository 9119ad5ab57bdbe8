"""Prepared queries have the bits of `evaluate` for all spheres, settings and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.meshes import OUTPUTS, Queries, Settings, cpu_queries, cuda_queries, evaluate, prepare
from lumigrad.kernels.meshes.engine import CudaEngine
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.calls.distance_worlds import NUMBERS, local_world, ways

HEAD = b"head of a length that leaves nothing aligned"
LAST = {"gradient": (4,), "normal": (3,), "closest": (3,)}
BYTES = {"beyond": 1, "exhausted": 1}


def request_of(*arrays: np.ndarray) -> _native.QueryRequest:
    payload = PayloadWriter()
    spec = distance_pb2.DistanceSpec(spheres=payload.add(arrays[0]))
    if len(arrays) > 1:
        spec.environments.CopyFrom(payload.add(arrays[1]))
    spec.scene_ref.scene_id = "world"
    data = b"".join(payload.buffers)
    message = distance_pb2.QueryRequest(spec=spec, payload_bytes=len(data), data=data)
    return _native.read_query_request(message.SerializeToString())


@dataclass(frozen=True)
class Device:
    """The queries of a device, with an `evaluate` function that gives the same bits."""

    queries: Queries
    evaluate: Any


@pytest.fixture(params=["cpu", "emulation"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cpu":
        return Device(cpu_queries(), evaluate)
    cuda: CudaDevice = request.getfixturevalue("emulated_cuda")
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    return Device(cuda_queries(cuda.native, 0, 0, 0), emulated(evaluate, engine))


class Kind:
    """Queries of one world that differ in their spheres."""

    def __init__(
        self, device: Device, settings: Settings, names: tuple[str, ...], *, has_environments: bool = True
    ) -> None:
        self.device, self.world, self.settings, self.names = device, local_world(), settings, names
        self.has_environments = has_environments
        self.evaluate(ways(seed=1))
        self.places, end = [], 0
        for name in names:
            begin = -(-end // 64) * 64
            self.places.append((name, begin))
            end = begin + BYTES.get(name, 4) * 3 * 4 * 20 * int(np.prod(LAST.get(name, ())))
        self.nbytes = end
        self.query = prepare(
            device.queries, self.world, settings, (3, 4, 20), spheres=0,
            environments=3840 if has_environments else None, places=self.places, payload_bytes=end, head=HEAD, kind=7,
            cost_bytes=0,
        )  # fmt: skip
        assert self.query is not None

    def evaluate(self, spheres: np.ndarray) -> Any:
        where = torch.from_numpy(NUMBERS) if self.has_environments else None
        rows = torch.from_numpy(spheres)
        return self.device.evaluate(rows, self.world, self.settings, environments=where, outputs=self.names).outputs

    def call(self, queue: _native.Queue, *arrays: np.ndarray) -> _native.QueryCall:
        reserved = _native.Account(1 << 40, 1 << 40, 0).take("", 1)
        staging = np.empty(self.query.staging_bytes, np.uint8)
        return _native.QueryCall(queue, self.query, request_of(*arrays), staging, reserved, "", 1, inf, 1 << 30)

    def check(self, queue: _native.Queue, seed: int) -> None:
        spheres = ways(seed=seed)
        call = self.call(queue, spheres, *([NUMBERS] if self.has_environments else []))
        assert call.run(0.0) == _native.Outcome.DONE
        assert call.reply.startswith(HEAD)
        payload, rest = call.reply[len(HEAD) :][: self.nbytes], call.reply[len(HEAD) + self.nbytes :]
        found, end = self.evaluate(spheres), 0
        for name, begin in self.places:
            assert payload[end:begin] == bytes(begin - end)
            expected = found[name].contiguous().numpy().tobytes()
            end = begin + len(expected)
            assert payload[begin:end] == expected, name
        timings = distance_pb2.QueryReply.FromString(rest).timings
        assert [stage.name for stage in timings.stages] == list(call.stages)
        assert timings.total_milliseconds == call.total_milliseconds > 0


EXACT: dict[str, Any] = {"activation_distance": 0.125}
CUROBO: dict[str, Any] = {"activation_distance": 0.125, "semantics": "curobo"}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "everything": ({**EXACT, "max_distance": 0.25}, OUTPUTS),
    "in another order": (EXACT, OUTPUTS[::-1]),
    "one": (EXACT, ("cost",)),
    "weight": ({**EXACT, "weight": 0.3}, ("cost", "gradient")),
    "sweep": ({**EXACT, "sweep": True, "weight": -0.7}, ("gradient", "cost", "exhausted")),
    "speed": ({**EXACT, "sweep": True, "speed_metric": True, "time_step_s": 0.25}, ("cost", "gradient")),
    "maximum": ({**EXACT, "reduction": "max"}, ("cost", "gradient", "distance")),
    "curobo": ({**CUROBO, "weight": 2.5}, ("cost", "gradient", "distance")),
    "curobo's sweep": ({**CUROBO, "sweep": True, "samples": 5}, ("cost", "gradient")),
    "curobo's field": ({"semantics": "curobo_field"}, ("cost", "gradient", "normal")),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("has_environments", [False, True])
def test_prepared_queries_have_the_bits_of_others(
    queue: _native.Queue, device: Device, case: str, has_environments: bool
) -> None:
    given, names = CASES[case]
    kind = Kind(device, Settings(**given), names, has_environments=has_environments)
    for seed in (2, 3, 4):
        kind.check(queue, seed)


@pytest.mark.parametrize("value", [nan, inf, -inf, 3e38])
def test_spheres_that_are_refused_are_left_to_others(queue: _native.Queue, device: Device, value: float) -> None:
    kind = Kind(device, Settings(**EXACT), ("cost",), has_environments=False)
    spheres = ways(seed=2)
    spheres[2, 3, 19, 3] = value
    call = kind.call(queue, spheres)
    assert call.run(0.0) == _native.Outcome.FAILED and call.reply is None
    kind.check(queue, 3)


@pytest.mark.parametrize("number", [-1, 2, 1 << 30])
def test_environments_that_there_are_not_are_left_to_others(queue: _native.Queue, device: Device, number: int) -> None:
    kind = Kind(device, Settings(**EXACT), ("cost",))
    call = kind.call(queue, ways(seed=2), np.array([0, number, 1], np.int32))
    assert call.run(0.0) == _native.Outcome.FAILED


def test_queries_of_several_launches_are_not_prepared() -> None:
    world, settings = local_world(), Settings(**EXACT)
    evaluate(torch.from_numpy(ways()), world, settings)
    options: dict[str, Any] = {"spheres": 0, "environments": None, "places": [("cost", 0)], "head": b""}
    rows = (1 << 20, 4, 20)
    nbytes = 4 * rows[0] * 80
    assert prepare(cpu_queries(), world, settings, rows, payload_bytes=nbytes, kind=1, cost_bytes=0, **options) is None
