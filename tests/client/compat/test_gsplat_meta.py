"""gsplat's `meta` on a worker: read late, after changes or never; gradients through it; and the bytes that travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from lumigrad.client import Client
from lumigrad.client.compat.gsplat import GsplatArgumentError, rasterization, rasterization_2dgs
from lumigrad.client.torch import render_gaussians
from support.fault_proxy import FaultProxy
from support.gaussians.splats import HEIGHT, WIDTH, splats
from support.workers.worker import WorkerProcess

PER_GAUSSIAN = ("radii", "means2d", "depths", "conics", "opacities")
Rasterize = Callable[..., tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]


@pytest.fixture
def rasterize(worker_process: WorkerProcess) -> Rasterize:
    def call(tensors: dict[str, torch.Tensor], **options: Any) -> Any:
        return rasterization(**tensors, width=WIDTH, height=HEIGHT, target=worker_process.target, **options)

    return call


@pytest.mark.parametrize("name", ["means2d", "depths", "conics", "opacities"])
@pytest.mark.parametrize("packed", [False, True])
def test_losses_on_meta_have_the_gradients_of_what_the_worker_projects(
    name: str, packed: bool, rasterize: Rasterize, worker_process: WorkerProcess
) -> None:
    tensors = splats()
    _, _, meta = rasterize(tensors, packed=packed, rasterize_mode="antialiased")
    weights = torch.rand(meta[name].shape, generator=torch.Generator().manual_seed(3))
    value = (weights * meta[name]).sum()
    value.backward()
    seen = rasterize(tensors, packed=False, rasterize_mode="antialiased")[2]["radii"].bool().all(-1)
    dense = torch.zeros(2, 50, *weights.shape[seen.ndim if not packed else 1 :])
    dense[seen] = weights if packed else weights[seen]
    output = {"opacities": "projected_opacities"}.get(name, name)

    def loss(changed: str, change: torch.Tensor) -> float:
        given = {key: value.detach() for key, value in tensors.items()}
        given[changed] = given[changed] + change
        result = render_gaussians(
            **given, width=WIDTH, height=HEIGHT, antialiased=True, outputs=(output,), client=worker_process.target
        )
        return float((dense.double() * getattr(result, output).double())[seen].sum())

    assert value.item() == pytest.approx(loss("means", 0.0), rel=1e-5)
    generator = torch.Generator().manual_seed(4)
    for changed in ("means", "quats", "scales", "opacities", "viewmats"):
        gradient = tensors[changed].grad
        direction = torch.rand(tensors[changed].shape, generator=generator) - 0.5
        if changed == "viewmats":
            direction[..., 3, :] = 0
            direction[..., :3, :3] = 0
        step = 2e-3
        slope = (loss(changed, step * direction) - loss(changed, -step * direction)) / (2 * step)
        if gradient is None:
            assert slope == 0
            continue
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("options", [{"packed": False}, {"packed": True}, {"packed": False, "with_ut": True}], ids=str)
def test_meta_has_the_values_of_the_call_after_an_optimizer_has_stepped(
    options: dict[str, Any], rasterize: Rasterize
) -> None:
    tensors = splats()
    expected = {name: rasterize(tensors, **options)[2][name].detach().clone() for name in PER_GAUSSIAN}
    colors, _, meta = rasterize(tensors, **options)
    colors.sum().backward()
    with torch.no_grad():
        for name in ("means", "quats", "scales", "opacities"):
            tensors[name].mul_(0.7)
    for name in PER_GAUSSIAN:
        assert torch.equal(meta[name], expected[name]), name
    with torch.no_grad():
        assert not torch.equal(rasterize(tensors, packed=False)[2]["means2d"], expected["means2d"])


def test_other_tensors_that_were_changed_before_meta_was_read_are_named(rasterize: Rasterize) -> None:
    tensors = {name: tensor.detach() for name, tensor in splats().items()}
    _, _, meta = rasterize(tensors)
    tensors["means"] += 1
    with pytest.raises(GsplatArgumentError, match=r"^means: expected the values of the call, but they were changed in"):
        meta["radii"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("function", [rasterization, rasterization_2dgs])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_values_have_the_gradients_of_the_call_in_whatever_mode_they_are_read(
    mode: Callable[[], AbstractContextManager[None]], function: Any, packed: bool, worker_process: WorkerProcess
) -> None:
    options = {"width": WIDTH, "height": HEIGHT, "packed": packed, "target": worker_process.target}
    names = ("depths", "conics" if function is rasterization else "ray_transforms")
    meta = function(**splats(), **options)[-1]
    with mode():
        assert all(torch.is_tensor(meta[name]) for name in ("tiles_per_gauss", "depths"))
    assert all(meta[name].requires_grad and not meta[name].is_inference() for name in names)
    with mode():
        meta = function(**splats(), **options)[-1]
    assert not any(meta[name].requires_grad for name in (*names, "means2d"))


def test_centres_that_are_read_late_are_the_same_and_part_of_the_graph(rasterize: Rasterize) -> None:
    gradients = []
    for early in (True, False):
        tensors = splats()
        colors, _, meta = rasterize(tensors, packed=False)
        if early:
            meta["means2d"].retain_grad()
        colors.square().sum().backward(retain_graph=True)
        if not early:
            assert meta["means2d"].grad_fn is not None
            meta["means2d"].retain_grad()
            colors.square().sum().backward()
            for tensor in tensors.values():
                tensor.grad = tensor.grad / 2
        gradients.append({"means2d": meta["means2d"].grad, **{name: tensor.grad for name, tensor in tensors.items()}})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


def test_hooks_change_the_gradient_of_the_centres(rasterize: Rasterize) -> None:
    found = []
    for factor in (1.0, 0.0):
        tensors = splats()
        colors, _, meta = rasterize(tensors)
        meta["means2d"].register_hook(lambda gradient, factor=factor: factor * gradient)
        colors.square().sum().backward()
        found.append(tensors["means"].grad)
    assert not torch.allclose(found[0], found[1], rtol=1e-2)


class Counted:
    """A client behind a proxy that counts bytes."""

    def __init__(self, proxy: FaultProxy, client: Client) -> None:
        self.proxy, self.client = proxy, client

    def spent(self, run: Callable[[], Any]) -> tuple[int, int]:
        """The bytes of requests and of replies."""
        before = self.proxy.up.passed, self.proxy.down.passed
        run()
        return self.proxy.up.passed - before[0], self.proxy.down.passed - before[1]


@pytest.fixture
def counted(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    with FaultProxy(worker_process.target) as proxy, Client(proxy.target, lane="stream") as client:
        monkeypatch.setattr("lumigrad.client.default._CLIENTS", {proxy.target: client})
        yield Counted(proxy, client)


COUNT = 20_000
SLACK = 40_000


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_not_read_does_not_travel(packed: bool, counted: Counted) -> None:
    tensors = splats(count=COUNT, cameras=1)

    def step(read: tuple[str, ...] = (), centres: bool = False) -> None:
        colors, _, meta = rasterization(
            **tensors, width=WIDTH, height=HEIGHT, packed=packed, target=counted.proxy.target
        )
        if centres:
            meta["means2d"].retain_grad()
        colors.sum().backward()
        for name in read:
            assert len(meta[name])

    step()
    ways = {"nothing": {}, "the radii": {"read": ("radii",)}, "all": {"read": PER_GAUSSIAN}}
    ways |= {"gradients": {"centres": True}}
    replies = {key: counted.spent(lambda given=given: step(**given))[1] for key, given in ways.items()}
    # Gradients of means, quaternions, scales, opacities, and colours.
    least = 4 * (3 + 4 + 3 + 1 + 3) * COUNT
    radii = 8 * COUNT
    assert least + radii <= replies["nothing"] < least + radii + SLACK
    assert abs(replies["the radii"] - replies["nothing"]) < SLACK
    assert abs(replies["all"] - replies["nothing"]) < SLACK
    assert abs(replies["gradients"] - replies["nothing"] - 8 * COUNT) < SLACK


def test_a_picture_without_gradients_comes_alone(counted: Counted) -> None:
    tensors = {name: tensor.detach() for name, tensor in splats(count=COUNT, cameras=1).items()}
    call = lambda: rasterization(**tensors, width=WIDTH, height=HEIGHT, target=counted.proxy.target)  # noqa: E731
    call()
    assert counted.spent(call)[1] < SLACK


def test_sensors_are_asked_again_when_meta_is_read(counted: Counted, worker_process: WorkerProcess) -> None:
    tensors = {name: tensor.detach() for name, tensor in splats(count=COUNT, cameras=1).items()}
    options = {"width": WIDTH, "height": HEIGHT, "with_ut": True, "with_eval3d": True, "packed": False}
    *_, meta = rasterization(**tensors, **options, target=counted.proxy.target)
    _, received = counted.spent(lambda: meta["radii"])
    assert received > (8 + 8 + 4 + 12 + 4) * COUNT
    renders = worker_process.metric("lumigrad_calls_total", method="RenderService.Render")
    # Frames of the connection itself may follow a reply.
    assert sum(counted.spent(lambda: [meta[name] for name in PER_GAUSSIAN])) < COUNT
    assert worker_process.metric("lumigrad_calls_total", method="RenderService.Render") == renders
    assert (meta["radii"] > 0).any()


@pytest.mark.parametrize("packed", [False, True])
def test_the_upper_triangles_of_covariances_are_read_and_get_the_gradient(
    packed: bool, rasterize: Rasterize, worker_process: WorkerProcess
) -> None:
    tensors = splats()
    factor = 0.2 * torch.randn(50, 3, 3, generator=torch.Generator().manual_seed(4))
    whole = (factor @ factor.mT + 0.01 * torch.eye(3)).requires_grad_()
    given = {**tensors, "quats": None, "scales": None}
    rasterize({**given, "covars": whole}, packed=packed)[0].square().sum().backward()
    assert whole.grad.triu().any() and not whole.grad.tril(-1).any()
    # The two entries of a pair in a symmetric gradient add up to the gradient of the one number that is read.
    both = whole.detach().clone().requires_grad_()
    size = {"width": WIDTH, "height": HEIGHT}
    render_gaussians(
        **{**given, "covariances": both}, **size, semantics="gsplat", client=worker_process.target
    ).color.square().sum().backward()
    torch.testing.assert_close(whole.grad, both.grad.triu() + both.grad.triu(1), rtol=1e-4, atol=1e-5)
    changed = whole.detach() + 9.0 * torch.ones(3, 3).tril(-1)
    images = [rasterize({**given, "covars": covars}, packed=packed)[0] for covars in (whole, changed)]
    assert torch.equal(*images)
