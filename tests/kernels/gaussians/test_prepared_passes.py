"""Prepared retained renders and backward passes have the bits of `forward` and `backward`, which take their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, State, backward, forward
from lumigrad.kernels.gaussians.engine import CudaEngine
from lumigrad.kernels.gaussians.prepared import Place, prepare
from lumigrad.kernels.gaussians.prepared_passes import Passes, cpu_passes, cuda_passes, images_of, state_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, tensor_pb2
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.backends.gaussian_engines import instruction_set
from support.backends.prepared import encoded, places_of, request_of
from support.gaussians.cases import Cloud, build
from support.gaussians.runs import scene_of

WIDTH, HEIGHT = 45, 33
NAME = "0" * 32
HEAD = b"\x12\x20" + NAME.encode() + b"a head that leaves nothing aligned"
# The emulation adds in any order without this.
SETTINGS = Settings(deterministic=True)


@dataclass(frozen=True)
class Device:
    """The passes of a device, with `forward` and `backward` functions that give the same bits."""

    passes: Passes
    forward: Any = forward
    backward: Any = backward


@pytest.fixture(params=["cpu", "emulation"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cpu":
        return Device(cpu_passes())
    cuda: CudaDevice = request.getfixturevalue("emulated_cuda")
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    return Device(cuda_passes(cuda.native, 0, 0, 0), emulated(forward, engine), emulated(backward, engine))


def cameras_at(seed: int, count: int) -> list[Camera]:
    source = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rotation = np.linalg.qr(source.normal(size=(3, 3)))[0]
        found.append(
            Camera.opencv(40, 42, 22, 16, rotation, (0.1, -0.2, 4.0) + 0.2 * source.normal(size=3), WIDTH, HEIGHT)
        )
    return found


def requested(cameras: Sequence[Camera]) -> _native.RenderRequest:
    sources: list[Any] = [camera.source for camera in cameras]
    return request_of([(source.rotation, source.translation) for source in sources], WIDTH, HEIGHT)


def scene_for(degree: int = 1) -> Gaussians:
    return scene_of(build("prepared", Cloud(count=80, degree=degree), width=WIDTH, height=HEIGHT))


class Kind:
    """Retained renders of one scene that differ in poses."""

    def __init__(
        self,
        device: Device,
        names: Sequence[str],
        encodings: Mapping[str, str],
        views: int,
        settings: Settings = SETTINGS,
    ) -> None:
        self.device, self.names, self.settings, self.views = device, names, settings, views
        self.scene = scene_for()
        first = self.forward(cameras_at(0, views))
        self.places, self.nbytes = places_of(first.outputs, encodings)
        render = prepare(self.scene, cameras_at(0, views), settings, self.places, self.nbytes, HEAD)
        self.native = _native.RetainedRender(
            render=render, images=list(images_of(first.state).items()), engine=device.passes.engine, kind=7, bytes=0
        )

    def forward(self, cameras: Sequence[Camera]) -> Any:
        return self.device.forward(self.scene, cameras, self.settings, outputs=self.names, retain=True)

    def call(self, queue: _native.Queue, cameras: Sequence[Camera]) -> _native.RetainCall:
        call = _native.RetainCall(queue, self.native, requested(cameras), *context_of(self.native))
        assert call.run(0.0) == _native.Outcome.DONE
        return call

    def state_of(self, call: _native.RetainCall, cameras: Sequence[Camera]) -> State:
        return state_of(
            self.device.passes, call.state, self.scene, cameras, self.settings, background=None, outputs=self.names
        )


def context_of(kind: Any) -> tuple[Any, ...]:
    reserved = _native.Account(1 << 40, 1 << 40, 0).take("", 1)
    return np.empty(kind.staging_bytes, np.uint8), reserved, "", 1, inf, 1 << 30


@pytest.mark.parametrize(
    ("names", "encodings", "views"),
    [
        (["color"], {"color": "levels"}, 1),
        (["alpha", "color", "depth", "ids"], {"alpha": "float16", "color": "bfloat16"}, 2),
        (["inverse_depth", "expected_depth", "radii", "transmittance", "contributors"], {}, 3),
    ],
    ids=["levels", "halves", "others"],
)
def test_retained_renders_are_those_of_forward(
    queue: _native.Queue, device: Device, names: list[str], encodings: dict[str, str], views: int
) -> None:
    kind = Kind(device, names, encodings, views)
    for seed in (1, 2):
        cameras = cameras_at(seed, views)
        call, expected = kind.call(queue, cameras), kind.forward(cameras)
        for place in kind.places:
            wanted = encoded(expected.outputs[place.name], place.encoding)
            begin = len(HEAD) + place.offset
            assert call.reply[begin : begin + len(wanted)] == wanted, place
        made = kind.state_of(call, cameras)
        assert made.bytes == expected.state.bytes
        assert call.state.bytes == expected.state.kept.bytes
        for name, image in expected.state.images.items():
            assert torch.equal(made.images[name], image), name


def test_the_name_of_a_state_is_put_into_the_reply(queue: _native.Queue, device: Device) -> None:
    call = Kind(device, ["color"], {}, 1).call(queue, cameras_at(1, 1))
    nameless, named = call.named(""), call.named("f" * 32)
    assert named[:34] == b"\x12\x20" + b"f" * 32 and named[34:] == nameless
    assert nameless.startswith(HEAD[34:])


def backward_of(
    device: Device,
    incoming: Mapping[str, Tensor],
    encodings: Mapping[str, str],
    expected: Any,
    formats: Mapping[str, str],
) -> tuple[_native.BackwardKind, _native.BackwardRequest, list[Place]]:
    payload, spec = PayloadWriter(), render_pb2.BackwardSpec(context_id="f" * 32)
    parts = []
    for name, values in incoming.items():
        encoding = encodings.get(name, "plain")
        array = np.frombuffer(encoded(values, encoding), dtype_of(encoding))
        tensor = payload.add(array, tensor_pb2.DTYPE_BFLOAT16 if encoding == "bfloat16" else None)
        spec.output_gradients.add(name=name, tensor=tensor)
        parts.append((name, encoding, values.numel(), tensor.payload.offset))
    data = b"".join(payload.buffers)
    message = render_pb2.BackwardRequest(spec=spec, payload_bytes=len(data), data=data)
    places, nbytes = places_of(expected.gradients, formats)
    kind = _native.BackwardKind(
        incoming=parts, gradients=[(place.name, place.encoding, place.values, place.offset) for place in places],
        payload_bytes=nbytes, head=HEAD, engine=device.passes.engine, kind=8, views=len(next(iter(incoming.values()))),
        bytes=0,
    )  # fmt: skip
    return kind, _native.read_backward_request(message.SerializeToString()), places


def dtype_of(encoding: str) -> Any:
    return {"float16": np.float16, "bfloat16": np.uint16}.get(encoding, np.float32)


WANTED = ("means", "quats", "scales", "opacities", "sh", "means2d", "means2d_abs")


@pytest.mark.parametrize(
    ("outputs", "encodings", "wanted", "formats"),
    [
        (["color"], {}, WANTED, {}),
        (["color", "alpha", "depth"], {"color": "float16", "alpha": "bfloat16"}, ("opacities", "means"), {}),
        (["expected_depth", "transmittance"], {}, ("sh", "scales"), {"sh": "float16", "scales": "bfloat16"}),
        (["inverse_depth", "color"], {"inverse_depth": "float16"}, ("means2d",), {}),
        (["color", "depth"], {}, ("opacities", "cameras", "background"), {"camera_pose": "float16"}),
    ],
    ids=["all", "incoming halves", "halves", "on the film", "cameras"],
)
def test_gradients_are_those_of_backward(
    queue: _native.Queue,
    device: Device,
    outputs: list[str],
    encodings: dict[str, str],
    wanted: tuple[str, ...],
    formats: dict[str, str],
) -> None:
    kind = Kind(device, outputs, {}, 2)
    for seed in (1, 2):
        cameras = cameras_at(seed, 2)
        call, state = kind.call(queue, cameras), kind.forward(cameras).state
        source = torch.Generator().manual_seed(seed)
        incoming = {name: torch.randn(place_shape(kind, name), generator=source) for name in outputs}
        given = {name: rounded(values, encodings.get(name, "plain")) for name, values in incoming.items()}
        expected = device.backward(state, given, wanted)
        native, request, places = backward_of(device, incoming, encodings, expected, formats)
        for _ in range(2):
            made = _native.BackwardCall(queue, native, (request, call.state), *context_of(native))
            assert made.run(0.0) == _native.Outcome.DONE
            for place in places:
                found = encoded(expected.gradients[place.name], place.encoding)
                begin = len(HEAD) + place.offset
                assert made.reply[begin : begin + len(found)] == found, place
            assert made.nonfinite == 0
        # The package's `backward` also takes the state.
        again = device.backward(kind.state_of(call, cameras), given, wanted)
        for name, gradient in expected.gradients.items():
            assert torch.equal(again.gradients[name], gradient), name


def place_shape(kind: Kind, name: str) -> tuple[int, ...]:
    return (kind.views, HEIGHT, WIDTH, *([3] if name == "color" else []))


def rounded(values: Tensor, encoding: str) -> Tensor:
    return values if encoding == "plain" else values.to(getattr(torch, encoding)).float()


@pytest.mark.parametrize("value", [nan, inf])
def test_values_that_are_no_numbers_are_counted(queue: _native.Queue, device: Device, value: float) -> None:
    kind = Kind(device, ["color"], {}, 1)
    cameras = cameras_at(1, 1)
    call, state = kind.call(queue, cameras), kind.forward(cameras).state
    incoming = {"color": torch.ones(place_shape(kind, "color"))}
    incoming["color"][0, HEIGHT // 2, WIDTH // 2, 1] = value
    expected = device.backward(state, incoming, ("means", "opacities"))
    formats = {"opacities": "float16"}
    native, request, _ = backward_of(device, incoming, {}, expected, formats)
    made = _native.BackwardCall(queue, native, (request, call.state), *context_of(native))
    assert made.run(0.0) == _native.Outcome.DONE
    count = sum(int((~torch.isfinite(each)).sum()) for each in expected.gradients.values())
    assert made.nonfinite == count > 0


@pytest.mark.parametrize("isa", _native.available_isas())
def test_all_instruction_sets(queue: _native.Queue, isa: str) -> None:
    with instruction_set(isa):
        test_gradients_are_those_of_backward(queue, Device(cpu_passes()), ["color"], {}, WANTED, {})


@pytest.mark.parametrize("encoding", ["float16", "bfloat16"])
def test_halves_of_a_request_have_the_values_of_torch(queue: _native.Queue, encoding: str) -> None:
    """The values are all kinds of finite numbers, including the smallest."""
    kind = Kind(Device(cpu_passes()), ["color"], {}, 1)
    cameras = cameras_at(1, 1)
    call, state = kind.call(queue, cameras), kind.forward(cameras).state
    shape = place_shape(kind, "color")
    bits = np.random.default_rng(1).integers(0, 1 << 16, shape).astype(np.uint16)
    values = torch.from_numpy(bits).view(getattr(torch, encoding)).float()
    incoming = {"color": torch.where(values.abs() < 1e6, values, torch.zeros(()))}
    expected = kind.device.backward(state, incoming, ("means",))
    native, request, _ = backward_of(kind.device, incoming, {"color": encoding}, expected, {})
    made = _native.BackwardCall(queue, native, (request, call.state), *context_of(native))
    assert made.run(0.0) == _native.Outcome.DONE
    found = expected.gradients["means"].numpy().tobytes()
    assert made.reply[len(HEAD) : len(HEAD) + len(found)] == found
