"""Repeated retained Renders and their Backwards are answered as first ones: bit for bit, errors included.

A worker may keep what such calls of one kind have in common, and compute later ones in another way. Each way can
differentiate the states of the other.

Each test runs for LUMIGRAD_FUZZ_SECONDS, by default a fifth of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import hypothesis.strategies as st
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import image_pb2, render_pb2, tensor_pb2
from support.backends import emulation
from support.calls.answers import ENCODINGS, UNKNOWN, Answer, Asker
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.calls.render_kinds import Kind, StoredCloud, kinds, moved, store_clouds
from support.calls.repeats import BATCH, assert_same, damaged, repeat
from support.workers.tenant import tenant_client
from support.workers.unharmed import unharmed_after
from support.workers.worker import WorkerProcess, worker

METHOD = "RenderService/Backward"
SEEDS = st.integers(0, 1 << 32)
WANTED = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors", "means2d", "means2d_abs")
SPHERES_WANTED = ("positions", "colors", "radii", "opacities", "gamma")
ODD = (float("nan"), float("inf"), -float("inf"), 3e38, 1e-42)
TYPES = {1: np.float32, 2: np.float16, 3: np.uint16}
MOST_CONTEXTS = 40


@pytest.fixture(scope="module", params=["cpu", "emulation"])
def process(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
    is_emulated = request.param == "emulation"
    if is_emulated:
        emulation.load("_emulation")
    with worker("--device", "cpu", "--max-contexts", str(MOST_CONTEXTS), emulated=is_emulated) as started:
        yield started


@pytest.fixture(scope="module")
def clouds(client: RawClient) -> list[StoredCloud]:
    return store_clouds(client)


@pytest.fixture
def asker(process: WorkerProcess, client: RawClient) -> Iterator[Asker]:
    with unharmed_after(process, client):
        made = Asker(client, keeps=True)
        yield made
        made.close()


@dataclass(frozen=True)
class Incoming:
    """Backwards of one kind, which differ in the gradients of the outputs."""

    shapes: Mapping[str, list[int]]
    wanted: tuple[str, ...]
    form: render_pb2.GradientFormat
    dtype: int

    def of(self, context_id: str, seed: int, odd: float | None = None, *, release: bool = False) -> bytes:
        """Returns the bytes of a Backward of a state."""
        random, payload = np.random.default_rng(seed), PayloadWriter()
        spec = render_pb2.BackwardSpec(context_id=context_id, wanted=self.wanted, release=release, format=self.form)
        for name, shape in self.shapes.items():
            values = random.normal(size=shape).astype(np.float32)
            if odd is not None and values.size:
                # Some must lie where something is seen.
                values.reshape(-1)[random.integers(values.size, size=1 + values.size // 500)] = odd
            spec.output_gradients.add(name=name, tensor=added(payload, values, self.dtype))
        data = b"".join(payload.buffers)
        return render_pb2.BackwardRequest(spec=spec, payload_bytes=len(data), data=data).SerializeToString()


def added(payload: PayloadWriter, values: np.ndarray, dtype: int) -> tensor_pb2.Tensor:
    """Adds the values in another type; truncates them to bfloat16."""
    if dtype == tensor_pb2.DTYPE_BFLOAT16:
        return payload.add((values.view(np.uint32) >> 16).astype(np.uint16), tensor_pb2.DTYPE_BFLOAT16)
    with np.errstate(over="ignore"):
        return payload.add(values.astype(TYPES[dtype]))


@st.composite
def incoming(draw: st.DrawFn, request: render_pb2.RenderRequest, channels: int) -> Incoming:
    image = [len(request.spec.cameras), request.spec.cameras[0].height, request.spec.cameras[0].width]
    names = draw(
        st.lists(
            st.sampled_from(("color", "color", "alpha", "depth", "expected_depth", "nonsense")),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    known = SPHERES_WANTED if request.spec.HasField("spheres") else WANTED
    wanted = draw(st.lists(st.sampled_from((*known, *known, "cameras", "background", "nonsense")), max_size=4))
    form = render_pb2.GradientFormat(
        dtype=draw(st.sampled_from((0, 1, 2, 3))),  # type: ignore[arg-type]
        sparse=draw(st.sampled_from((False, False, False, True))),
    )
    shapes = {name: [*image, channels] if name == "color" else image for name in names}
    return Incoming(shapes, tuple(wanted), form, draw(st.sampled_from((1, 1, 2, 3))))


def render(asker: Asker, request: render_pb2.RenderRequest, encode: Callable[..., bytes] | None = None) -> str:
    """Renders; returns the id of the state."""
    raw = request.SerializeToString() if encode is None else encode(request)
    assert asker.ask(raw).is_ok
    return asker.kept


def release(client: RawClient, *names: str) -> None:
    for name in names:
        client.render_stub.Release(render_pb2.ReleaseRequest(context_id=name), timeout=60)


def test_any_retained_render_and_its_backwards_answer_as_others(
    client: RawClient, asker: Asker, clouds: list[StoredCloud]
) -> None:
    codes: Counter[str] = Counter()

    @BATCH
    @given(kinds(clouds), SEEDS, st.data())
    def run(kind: Kind, seed: int, data: st.DataObject) -> None:
        first = kind.with_cameras(seed)
        first.retain = True
        # The emulated device would add in any order otherwise.
        getattr(first.spec, first.spec.WhichOneof("settings")).deterministic = True
        channels = next(cloud.channels for cloud in clouds if cloud.scene_id == first.spec.scene_ref.scene_id)
        names = []
        for number in range(3):
            request = moved(first, seed + number)
            raw = request.SerializeToString()
            other = ENCODINGS[data.draw(st.sampled_from(sorted(ENCODINGS)))](request)
            found = asker.ask(raw)
            names.append(asker.kept)
            assert_same(found, asker.ask(other), raw)
            codes[found.code] += 1
            if not found.is_ok:
                return
            names.append(asker.kept)
        for _ in range(2):
            backwards(data, first, channels, names)
        release(client, *names)

    def backwards(data: st.DataObject, first: render_pb2.RenderRequest, channels: int, names: list[str]) -> None:
        asked = data.draw(incoming(first, channels))
        way = data.draw(st.sampled_from(("single", "single", "stream", "lane")))
        for number in range(3):
            seed, odd = data.draw(SEEDS), data.draw(st.sampled_from((None, None, None, *ODD)))
            # Pairs of states of the same images, one pair of each way; the request also comes in other bytes.
            for one, other in ((names[4], names[5]), (names[2], names[3])):
                raw = asked.of(one, seed, odd)
                found = asker.ask(raw, way if number else "single", METHOD)
                assert_same(found, asker.ask(asked.of(other, seed, odd), method=METHOD), raw)
                assert_same(found, asker.ask(UNKNOWN + raw, method=METHOD), raw)
                codes[found.code] += 1

    repeat(run)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT"}
    assert codes["OK"]


# The second images are just large enough for a lane.
SIZES = {"single": (24, 18), "lane": (148, 148)}
BLENDED = ("setup", "sort", "bin", "blend")


@dataclass(frozen=True)
class Small:
    """Retained Renders of a stored scene and their Backwards; `stages` are the kernels of both together."""

    scene_id: str
    kind: str
    stages: tuple[str, ...]
    backward: Incoming
    way: str

    def __call__(self, x: float = 0.0) -> render_pb2.RenderRequest:
        spec_for = gaussian_spec if self.kind == "gaussians" else spec_of
        spec = spec_for(opencv_camera(*SIZES[self.way], x=x), scene_id=self.scene_id, outputs=self.backward.shapes)
        getattr(spec, self.kind).deterministic = True
        is_large = self.way == "lane"
        kind = image_pb2.IMAGE_FORMAT_FLOAT32 if is_large else image_pb2.IMAGE_FORMAT_UINT8
        form = image_pb2.OutputFormat(name="color", format=kind)
        return render_pb2.RenderRequest(spec=spec, retain=True, formats=[form])

    def of(self, context_id: str, seed: int, odd: float | None = None, *, release: bool = False) -> bytes:
        """Returns the bytes of a Backward of one of the states."""
        return self.backward.of(context_id, seed, odd, release=release)


def stored_small(client: RawClient, kind: str, seed: int = 31, way: str = "single") -> Small:
    form, is_spheres = render_pb2.GradientFormat(), kind == "spheres"
    width, height = SIZES[way]
    image = [1, height, width]
    shapes = {"color": [*image, 3]} if way == "lane" else {"color": [*image, 3], "depth": image}
    cloud = sphere_cloud(50, seed=seed, radius=1.5) if is_spheres else gaussian_cloud(50, seed=seed)
    scene_id = client.put(cloud).scene.scene_id
    if is_spheres:
        return Small(scene_id, kind, (*BLENDED, "finish"), Incoming(shapes, ("positions", "opacities"), form, 1), way)
    stages = ("project", "sort", "bin", "blend", "blend_backward", "project_backward")
    return Small(scene_id, kind, stages, Incoming(shapes, ("means", "opacities"), form, 1), way)


@pytest.fixture(params=[(kind, way) for way in SIZES for kind in ("gaussians", "spheres")], ids=" by ".join)
def small(request: pytest.FixtureRequest, client: RawClient, asker: Asker) -> Small:
    """A scene whose retained Renders and Backwards are prepared."""
    kind, asker.way = request.param
    made = stored_small(client, kind, way=asker.way)
    names = [render(asker, made()) for _ in range(2)]
    assert asker.ask(made.of(names[1], 0), method=METHOD).is_ok
    assert asker.ask(made.of(names[1], 0, release=True), method=METHOD).is_ok
    release(client, *names)
    return made


def releases(raw: bytes) -> bool:
    try:
        return render_pb2.BackwardRequest.FromString(raw).spec.release
    except DecodeError:
        return False


def test_damaged_bytes_are_refused_as_in_a_first_call(client: RawClient, asker: Asker, small: Small) -> None:
    codes: Counter[str] = Counter()
    context = render(asker, small())
    good = asker.ask(small.of(context, 1), method=METHOD)

    @BATCH
    @given(SEEDS, st.lists(st.integers(0, 3), min_size=1, max_size=4), st.sampled_from(("Render", "Backward")))
    def run(seed: int, ways: list[int], name: str) -> None:
        raw = small.of(context, seed) if name == "Backward" else small().SerializeToString()
        method = f"RenderService/{name}"
        for number, way in enumerate(ways):
            bad = damaged(raw, np.random.default_rng(seed + number), way)
            if name == "Backward" and releases(bad):
                continue
            asker.kept = ""
            found = asker.ask(bad, method=method)
            release(client, *filter(None, (asker.kept,)))
            asker.kept = ""
            assert_same(found, asker.ask(UNKNOWN + bad, method=method), bad)
            release(client, *filter(None, (asker.kept,)))
            codes[found.code] += 1

    repeat(run)
    expected = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
    assert set(codes) <= expected
    assert codes["INVALID_ARGUMENT"]
    assert asker.ask(small.of(context, 1), method=METHOD) == good
    release(client, context)


def test_a_state_is_used_until_it_is_released(client: RawClient, asker: Asker, small: Small) -> None:
    context = render(asker, small(0.1))
    found = [asker.ask(small.of(context, 4), method=METHOD) for _ in range(3)]
    assert found[0].is_ok and found[0] == found[1] == found[2]
    assert asker.ask(small.of(context, 4, release=True), method=METHOD) == found[0]
    for raw in (small.of(context, 4), small.of(context, 4, release=True)):
        lost = asker.ask(raw, method=METHOD)
        assert lost.code == "FAILED_PRECONDITION"
        assert_same(lost, asker.ask(UNKNOWN + raw, method=METHOD), raw)


def test_states_are_evicted_as_others(process: WorkerProcess, client: RawClient, asker: Asker, small: Small) -> None:
    before = process.metric("lumigrad_evictions_total", store="contexts", reason="room")
    names = [render(asker, small(0.01 * number)) for number in range(MOST_CONTEXTS + 3)]
    assert process.metric("lumigrad_contexts") == MOST_CONTEXTS
    assert process.metric("lumigrad_evictions_total", store="contexts", reason="room") == before + 3
    assert asker.ask(small.of(names[2], 0), method=METHOD).code == "FAILED_PRECONDITION"
    # Using a state makes it the newest one.
    assert asker.ask(small.of(names[3], 0), method=METHOD).is_ok
    names.append(render(asker, small()))
    assert asker.ask(small.of(names[4], 0), method=METHOD).code == "FAILED_PRECONDITION"
    assert asker.ask(small.of(names[3], 0), method=METHOD).is_ok
    release(client, *names)
    assert process.metric("lumigrad_contexts") == 0 == process.metric("lumigrad_context_bytes")


def test_a_state_outlives_its_scene(client: RawClient, asker: Asker, small: Small) -> None:
    names = [render(asker, small()) for _ in range(2)]
    answers = [asker.ask(small.of(name, 5), method=METHOD) for name in names * 2]
    changed = "opacities" if small.kind == "gaussians" else "radii"
    client.update(small.scene_id, 1, {changed: np.full(50, 0.3, np.float32)})
    answers += [asker.ask(small.of(name, 5), method=METHOD) for name in names]
    assert answers[0].is_ok and all(answer == answers[0] for answer in answers)
    other = render(asker, small())
    assert asker.ask(small.of(other, 5), method=METHOD).values != answers[0].values
    release(client, other, *names)


def test_calls_at_the_same_time_answer_as_one_after_the_other(client: RawClient, asker: Asker, small: Small) -> None:
    names = [render(asker, small(0.02 * number)) for number in range(4)]
    expected = [asker.ask(UNKNOWN + small.of(name, 6), method=METHOD) for name in names]
    images = [asker.ask(UNKNOWN + small(0.02 * number).SerializeToString()) for number in range(4)]

    def run(number: int) -> tuple[int, Answer, Answer]:
        own = Asker(client)
        own.way = small.way
        try:
            backward = own.ask(small.of(names[number], 6), method=METHOD)
            return number, backward, own.ask(small(0.02 * number).SerializeToString())
        finally:
            own.close()

    with ThreadPoolExecutor(6) as threads:
        for number, backward, image in threads.map(run, [*range(4)] * 6):
            assert_same(backward, expected[number], b"")
            assert_same(image, images[number], b"")
    release(client, *names)


def test_a_backward_that_is_late_leaves_the_state_as_it_is(client: RawClient, asker: Asker, small: Small) -> None:
    context = render(asker, small())
    raw = small.of(context, 7)
    good = asker.ask(raw, method=METHOD)
    call = client.channel.unary_unary("/lumigrad.v1.RenderService/Backward")
    codes = set()
    for milliseconds in (0.01, 0.3, 1, 2, 60_000):
        try:
            call(raw, timeout=milliseconds / 1e3, metadata=(("lumigrad-message-bytes", "3000000"),))
            codes.add("OK")
        except grpc.RpcError as error:
            codes.add(error.code().name)
    assert codes <= {"OK", "DEADLINE_EXCEEDED"} and "OK" in codes
    assert asker.ask(raw, method=METHOD) == good
    release(client, context)


def test_repeated_passes_are_counted_as_others(
    process: WorkerProcess, client: RawClient, asker: Asker, small: Small
) -> None:
    request = small()
    for name in ("Render", "Backward"):
        changes = []
        for is_first in (True, False, False):
            context = render(asker, request)
            raw = request.SerializeToString() if name == "Render" else small.of(context, 8, float("nan"))
            before = figures(process, name, small)
            assert asker.ask(UNKNOWN + raw if is_first else raw, method=f"RenderService/{name}").is_ok
            changes.append({key: value - before[key] for key, value in figures(process, name, small).items()})
            release(client, context, asker.kept)
        assert changes[1] == changes[0] and changes[2] == changes[0]
        assert changes[0]["calls"] == 1
        assert (changes[0]["nonfinite"] > 0) == (name == "Backward")


def figures(process: WorkerProcess, name: str, small: Small) -> dict[str, float]:
    method, op = f"RenderService.{name}", "forward" if name == "Render" else "backward"
    kernels = {"engine": small.kind, "op": op}
    return {
        "calls": process.metric("lumigrad_calls_total", method=method, code="OK"),
        "received": process.metric("lumigrad_payload_bytes_total", method=method, direction="received"),
        "sent": process.metric("lumigrad_payload_bytes_total", method=method, direction="sent"),
        "found": process.metric("lumigrad_context_lookups_total", result="found"),
        "nonfinite": process.metric("lumigrad_nonfinite_gradients_total", engine=small.kind),
        "views": process.metric("lumigrad_batch_views_count"),
        "contexts": process.metric("lumigrad_contexts"),
        "context bytes": process.metric("lumigrad_context_bytes"),
        **{stage: process.metric("lumigrad_kernel_seconds_count", stage=stage, **kernels) for stage in small.stages},
    }


@pytest.mark.parametrize("kind", ["gaussians", "spheres"])
def test_states_of_another_tenant_are_lost(tmp_path: Path, kind: str) -> None:
    tokens = [f"{name}-0123456789abcdef" for name in ("alice", "bob")]
    (tmp_path / "tokens").write_text("".join(f"{token[:3]}: {token}\n" for token in tokens))
    with worker("--device", "cpu", "--tokens-file", str(tmp_path / "tokens")) as process, process.channel() as channel:
        askers, names = [], []
        for token in tokens:
            client = tenant_client(channel, token)
            asker = Asker(client, keeps=True)
            small = stored_small(client, kind, 33)
            names.append([render(asker, small()) for _ in range(2)])
            for _ in range(2):
                assert asker.ask(small.of(names[-1][1], 9), method=METHOD).is_ok
            askers.append(asker)
        for asker, others in zip(askers, reversed(names), strict=True):
            for other in others:
                raw = small.of(other, 9, release=True)
                lost = asker.ask(raw, method=METHOD)
                assert lost.code == "FAILED_PRECONDITION"
                assert_same(lost, asker.ask(UNKNOWN + raw, method=METHOD), raw)
        for asker, own in zip(askers, names, strict=True):
            assert asker.ask(small.of(own[1], 9, release=True), method=METHOD).is_ok
            asker.close()
