"""`render_gaussians` in PyTorch: shapes, types, the graph, and what travels. Its numbers are tested end to end."""

from __future__ import annotations

import gc
import importlib

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Frame, InvalidArgument
from lumigrad.client.torch import RenderedGaussians, render_gaussians
from support.workers.slow_render import wait_until
from support.workers.worker import worker

WIDTH, HEIGHT, COUNT, CAMERAS = 24, 20, 30, 2


def scene(*batch: int, degree: int | None = 1, **kinds) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    uniform = lambda *shape: torch.rand(*batch, *shape, generator=generator)  # noqa: E731
    views = torch.eye(4).repeat(*batch, CAMERAS, 1, 1)
    views[..., 1, 0, 3] = 0.3
    tensors = {
        "means": torch.cat([2 * uniform(COUNT, 2) - 1, 3 + 2 * uniform(COUNT, 1)], dim=-1),
        "quats": uniform(COUNT, 4) - 0.5,
        "scales": 0.05 + 0.2 * uniform(COUNT, 3),
        "opacities": 0.2 + 0.7 * uniform(COUNT),
        "colors": uniform(COUNT, 3) if degree is None else uniform(COUNT, (degree + 1) ** 2, 3) - 0.3,
        "viewmats": views,
        "Ks": torch.tensor([[20.0, 0, 12], [0, 20, 10], [0, 0, 1]]).repeat(*batch, CAMERAS, 1, 1),
        "background": uniform(CAMERAS, 3),
    }
    return {name: tensor.to(**kinds) for name, tensor in tensors.items()}


def render(client, tensors, **options) -> RenderedGaussians:
    return render_gaussians(
        **{"width": WIDTH, "height": HEIGHT, "sh_degree": 1, "client": client, **tensors, **options}
    )


def differentiable(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for tensor in tensors.values():
        tensor.requires_grad_()
    return tensors


IMAGES = {"color": (3,), "alpha": (), "depth": (), "expected_depth": (), "transmittance": (), "inverse_depth": ()}
PER_GAUSSIAN = {"means2d": (2,), "radii": (2,), "depths": (), "conics": (3,), "projected_opacities": ()}


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
def test_results_have_their_shapes(client, batch):
    result = render(client, scene(*batch), outputs=(*IMAGES, *PER_GAUSSIAN, "contributors", "ids"))
    assert isinstance(result, RenderedGaussians)
    for name, last in {**IMAGES, "contributors": (), "ids": ()}.items():
        assert getattr(result, name).shape == (*batch, CAMERAS, HEIGHT, WIDTH, *last), name
    for name, last in PER_GAUSSIAN.items():
        assert getattr(result, name).shape == (*batch, CAMERAS, COUNT, *last), name
    assert result.radii.dtype == result.contributors.dtype == result.ids.dtype == torch.int32
    assert not any(tensor.requires_grad for tensor in result if tensor is not None)
    torch.testing.assert_close(result.alpha, 1 - result.transmittance)
    torch.testing.assert_close(result.expected_depth, result.depth / result.alpha.clamp_min(1e-10))


def test_batches_are_their_scenes(client):
    tensors = scene(2, 3)
    together = render(client, tensors).color
    for at in ((0, 0), (1, 2)):
        alone = render(client, {name: tensor[at] for name, tensor in tensors.items()}).color
        assert torch.equal(together[at], alone)


def test_what_was_not_asked_for_is_none_and_does_not_travel(client, monkeypatch):
    asked = []
    original = Client._rendered
    monkeypatch.setattr(
        Client,
        "_rendered",
        lambda self, request, *rest: asked.append(request) or original(self, request, *rest),
    )
    result = render(client, scene(), outputs=("expected_depth",))
    assert [name for name, tensor in result._asdict().items() if tensor is not None] == ["color", "expected_depth"]
    assert asked[-1].outputs == ("color", "depth", "transmittance")
    render(client, scene(), outputs="color")
    assert asked[-1].outputs == ("color",)
    # Degree 0 uses one of four coefficients.
    render(client, scene(), sh_degree=0)
    assert asked[-1].scene.sh.shape == (COUNT, 1, 3)


def test_only_the_gradients_that_are_needed_are_asked_for(client, differentiated):
    asked = differentiated(Frame)
    tensors = scene()
    tensors["colors"].requires_grad_()
    tensors["viewmats"].requires_grad_()
    result = render(client, tensors)
    result.alpha.sum().backward(retain_graph=True)
    result.color.sum().backward()
    wanted = ("sh", "cameras")
    assert asked == [(("transmittance",), wanted), (("color",), wanted)]
    assert tensors["means"].grad is None


def test_contexts_are_kept_only_for_a_backward_and_released_with_the_graph():
    # A worker of its own, since other tests' contexts may be given back at any time.
    with worker("--device", "cpu") as process, Client(process.target) as client:
        render(client, scene())
        assert client.info().contexts == 0
        result = render(client, differentiable(scene()))
        assert client.info().contexts == 1
        result.color.sum().backward()
        assert client.info().contexts == 0
        dropped = render(client, differentiable(scene()), outputs=("alpha", "means2d"))
        assert client.info().contexts == 1
        del dropped
        gc.collect()
        wait_until(lambda: client.info().contexts == 0)


def test_inputs_changed_in_place_are_noticed(client):
    tensors = differentiable(scene())
    result = render(client, tensors)
    with torch.no_grad():
        tensors["scales"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.color.sum().backward()


def test_gradients_come_in_the_type_of_the_input(client):
    double, single = differentiable(scene(dtype=torch.float64)), differentiable(scene())
    for tensors in (double, single):
        render(client, tensors).color.sum().backward()
    for name, tensor in double.items():
        assert tensor.grad.dtype == torch.float64 and single[name].grad.dtype == torch.float32
        torch.testing.assert_close(tensor.grad.float(), single[name].grad, msg=name, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("degree", [None, 1])
def test_sparse_and_short_gradients_are_the_dense_ones(client, degree):
    # Half of the Gaussians are behind the cameras.
    def gradients(**options) -> dict[str, torch.Tensor]:
        tensors = scene(2, degree=degree)
        tensors["means"][:, ::2, 2] *= -1
        differentiable(tensors)
        result = render(client, tensors, sh_degree=degree, outputs=("alpha", "means2d"), **options)
        (result.color.square().sum() + result.means2d.sum()).backward()
        return {name: tensor.grad for name, tensor in tensors.items()}

    dense = gradients()
    assert dense["means"][:, 1::2].any() and not dense["means"][:, ::2].any()
    for name, gradient in gradients(sparse=True).items():
        torch.testing.assert_close(gradient, dense[name], msg=name)
    for dtype, precision in (("float16", 2**-10), ("bfloat16", 2**-8)):
        for name, gradient in gradients(sparse=True, gradient_format=dtype).items():
            largest = float(dense[name].abs().max())
            torch.testing.assert_close(gradient, dense[name], msg=name, rtol=3 * precision, atol=1e-3 * largest)


def test_projected_centres_are_a_part_of_the_graph(client):
    """Hooks change what flows through them, `retain_grad` shows it, and a loss may use them directly."""

    def gradient(
        through: float, *, loss=lambda result: result.color.square().sum()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = scene()
        tensors["means"].requires_grad_()
        result = render(client, tensors, outputs=("means2d",), sh_degree=0)
        result.means2d.retain_grad()
        result.means2d.register_hook(lambda found: through * found)
        loss(result).backward()
        return tensors["means"].grad, result.means2d.grad

    (whole, on_centres), (half, halved), (none, zero) = gradient(1.0), gradient(0.5), gradient(0.0)
    assert on_centres.abs().max() > 0 and not zero.any()
    torch.testing.assert_close(halved, 0.5 * on_centres)
    torch.testing.assert_close(half, 0.5 * (whole + none), rtol=1e-4, atol=1e-4 * float(whole.abs().max()))
    assert (whole - none).abs().max() > 0.1 * whole.abs().max()
    alone, ones = gradient(1.0, loss=lambda result: result.means2d.sum())
    assert torch.equal(ones, torch.ones_like(ones))
    both, _ = gradient(1.0, loss=lambda result: result.color.square().sum() + result.means2d.sum())
    torch.testing.assert_close(both, whole + alone, rtol=1e-4, atol=1e-4 * float(both.abs().max()))


def test_a_gradient_of_the_centres_alone_can_be_asked_for(client):
    tensors = scene()
    tensors["means"].requires_grad_()
    result = render(client, tensors, outputs=("means2d",))
    (found,) = torch.autograd.grad(result.color.sum(), [result.means2d], retain_graph=True)
    assert found.abs().max() > 0
    # This pass leaves nothing behind that enters the next one.
    (from_centres,) = torch.autograd.grad(result.means2d.sum(), [tensors["means"]])
    fresh = render(client, tensors, outputs=("means2d",))
    (expected,) = torch.autograd.grad(fresh.means2d.sum(), [tensors["means"]])
    torch.testing.assert_close(from_centres, expected)


def test_without_gradients_there_is_no_graph(client):
    with torch.no_grad():
        result = render(client, differentiable(scene()), outputs=("means2d",))
    assert not result.color.requires_grad and not result.means2d.requires_grad


def test_no_gaussians_show_the_background(client):
    empty = {name: tensor[:0] for name, tensor in scene().items() if name in ("means", "quats", "scales", "opacities")}
    tensors = differentiable({**scene(), **empty, "colors": torch.zeros(0, 4, 3)})
    result = render(client, tensors, outputs=("means2d",))
    torch.testing.assert_close(result.color[1, 3, 4], tensors["background"][1])
    result.color.sum().backward()
    torch.testing.assert_close(tensors["background"].grad, torch.full((CAMERAS, 3), float(WIDTH * HEIGHT)))
    assert tensors["means"].grad.shape == (0, 3)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"quats": None}, r"quats: expected a tensor of shape \[30, 4\], got None"),
        ({"scales": "small"}, r"scales: expected a tensor, got str"),
        ({"scales": torch.full((COUNT, 3), -1.0)}, r"scales: expected values >= 0, the smallest is -1.0; apply exp"),
        ({"opacities": torch.full((COUNT,), 2.0)}, r"opacities: expected values in \[0, 1\]"),
        ({"colors": torch.zeros(COUNT, 3)}, r"colors: expected shape \[30, K, D\], got \[30, 3\]"),
        ({"sh_degree": 2}, r"sh_degree: expected a degree from 0 to 4 whose .* got 2 and 4 coefficients"),
        ({"sh_degree": None}, r"colors: expected shape \[30, D\] or \[2, 30, D\], got \[30, 4, 3\]; pass sh_degree if"),
        ({"viewmats": torch.ones(2, 4, 4)}, r"viewmats: expected 0 0 0 1 as the last row of each; transpose"),
        ({"viewmats": torch.full((2, 4, 4), torch.nan)}, r"viewmats: expected finite values, got some that are nan"),
        ({"means": torch.zeros(COUNT, 3, dtype=torch.complex64)}, r"means: expected real numbers, got torch.complex64"),
        ({"opacities": torch.ones(COUNT).to_sparse()}, r"opacities: expected a dense tensor, got torch.sparse_coo"),
        ({"Ks": torch.ones(2, 3, 3)}, r"Ks: expected fx 0 cx, 0 fy cy, 0 0 1 in each, got skew"),
        ({"Ks": torch.eye(3).repeat(2, 1, 1) * 2}, r"Ks: .* the last row \[0.0, 0.0, 2.0\]; divide each"),
        ({"Ks": torch.eye(3).repeat(2, 1, 1) * 2, "response": "ray"}, r"Ks: .* divide each by its last entry"),
        ({"transforms": [(0, 3, torch.eye(3))]}, r"transforms\[0\]: expected shape \[4, 4\], got \[3, 3\]"),
        ({"distortion": [[0.1] * 4] * 3}, r"distortion: expected \[k\] or one row for each of 2 cameras, got \[3, 4\]"),
        ({"projection": "panorama"}, "projection: expected one of"),
        ({"semantics": "compat"}, r"semantics: expected one of \"exact\""),
        ({"outputs": ("hits",)}, r"outputs: expected some of color, alpha, .* got hits"),
        ({"gradient_format": "int8"}, r"gradient_format: expected one of float32, float16, bfloat16, got 'int8'"),
        ({"near": 5.0, "far": 2.0}, r"^far: "),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(client, change, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        result = render(client, {**differentiable(scene()), **change})
        result.color.sum().backward()


def test_views_that_wait_for_their_negation_are_negated(client):
    plain, other = differentiable(scene()), differentiable(scene())
    # The imaginary part of a conjugate is a view that PyTorch negates when it is read.
    means = torch.view_as_complex(torch.stack([other["means"], -other["means"]], dim=-1)).conj().imag
    assert means.is_neg()
    for tensors in (plain, {**other, "means": means}):
        render(client, tensors).color.square().sum().backward()
    torch.testing.assert_close(other["means"].grad, plain["means"].grad)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_a_gpu_come_back_there(client):
    tensors = differentiable(scene(device="cuda"))
    result = render(client, tensors, outputs=(*IMAGES, *PER_GAUSSIAN))
    assert all(tensor.device.type == "cuda" for tensor in result if tensor is not None)
    result.color.sum().backward()
    assert all(tensor.grad.device.type == "cuda" for tensor in tensors.values())
    np.testing.assert_array_equal(result.radii.cpu(), render(client, scene(), outputs=("radii",)).radii)


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_results_print_as_a_line(package: str):
    pytest.importorskip(package)
    functions = importlib.import_module(f"lumigrad.client.{package}")
    kinds = [kind for name in functions.__all__ if isinstance(kind := getattr(functions, name), type)]
    assert {"MeshDistances", "RenderedGaussians", "RenderedSpheres"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        arrays = np.zeros((4, 500), np.float32)
        values = [torch.from_numpy(arrays) if package == "torch" else arrays] * len(kind._fields)
        fields = ", ".join(f"{field} float32 [4, 500]" for field in kind._fields)
        assert repr(kind(*values)) == str(kind(*values)) == f"{kind.__name__}({fields})"
