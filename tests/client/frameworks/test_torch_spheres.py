"""`render_spheres` in PyTorch: shapes, gradients against finite differences over the wire, and what travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Frame, InvalidArgument
from lumigrad.client.torch import RenderedSpheres, render_spheres

WIDTH, HEIGHT, COUNT, CHANNELS = 24, 20, 8, 2
CAMERA = torch.tensor([0.1, -0.05, -4.0, 0.05, -0.1, 0.02, 1.0, 0.8, 0.6, -0.7])


def scene(**kinds) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    tensors = {
        "positions": 1.6 * uniform(COUNT, 3) - 0.8,
        "colors": uniform(COUNT, CHANNELS),
        "radii": 0.35 + 0.3 * uniform(COUNT),
        "opacities": 0.4 + 0.5 * uniform(COUNT),
        "cam_params": CAMERA.clone(),
        "background": uniform(CHANNELS),
        "gamma": torch.tensor(0.5),
    }
    return {name: tensor.to(**kinds) for name, tensor in tensors.items()}


def render(client, tensors, **options) -> RenderedSpheres:
    return render_spheres(
        **tensors, **{"width": WIDTH, "height": HEIGHT, "max_depth": 7.0, "min_depth": 2.0, "client": client, **options}
    )


def loss_of(result: RenderedSpheres, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss in float64, so that finite differences see more than rounding."""
    return sum((getattr(result, name).double() * weight).sum() for name, weight in weights.items())


def weights_for(names) -> dict[str, torch.Tensor]:
    """Weights that vary smoothly over the picture."""
    y, x = torch.meshgrid(torch.linspace(0, 3, HEIGHT), torch.linspace(0, 3, WIDTH), indexing="ij")
    smooth = torch.sin(2 * x + 1) * torch.cos(3 * y)
    channels = torch.stack([smooth, 0.5 - smooth], dim=-1)
    return {name: channels if name == "color" else smooth for name in names}


def test_results_have_their_shapes(client):
    result = render(client, scene())
    assert isinstance(result, RenderedSpheres)
    assert result.color.shape == (HEIGHT, WIDTH, CHANNELS)
    assert result.alpha.shape == result.depth.shape == (HEIGHT, WIDTH)
    assert result.info.shape == (HEIGHT, WIDTH, 13)
    assert not any(tensor.requires_grad for tensor in result)
    color, alpha, depth, info = result
    assert torch.equal(info[..., 4], depth)
    assert alpha.max() <= 1
    assert color.is_contiguous()


@pytest.mark.parametrize("name", ["positions", "colors", "radii", "opacities", "cam_params", "background", "gamma"])
@pytest.mark.parametrize("outputs", [("color",), ("color", "alpha")], ids="+".join)
def test_gradients_are_those_of_finite_differences(client, name, outputs):
    tensors, weights = scene(), weights_for(outputs)
    tensors[name].requires_grad_()
    loss_of(render(client, tensors), weights).backward()
    gradient = tensors[name].grad.double().flatten()
    generator = torch.Generator().manual_seed(9)
    # Small, because silhouettes make the loss kink.
    step = 3e-4
    for _ in range(3):
        direction = torch.randn(gradient.numel(), generator=generator).double()
        direction /= direction.norm()
        if name == "cam_params":
            # Angles move more than lengths, pixels less.
            direction *= torch.tensor([1, 1, 1, 0.3, 0.3, 0.3, 0.3, 0.3, 5, 5])
        ends = []
        for sign in (-1, 1):
            moved = {**scene()}
            moved[name] = (moved[name].double().flatten() + sign * step * direction).reshape(moved[name].shape).float()
            ends.append(loss_of(render(client, moved), weights).item())
        measured = (ends[1] - ends[0]) / (2 * step)
        expected = (gradient @ direction).item()
        scale = (gradient.abs() * direction.abs()).sum().item()
        assert measured == pytest.approx(expected, abs=0.03 * scale), (name, outputs)


def test_gamma_may_have_axes_but_only_one_number(client):
    single, tensors = scene(), scene()
    tensors["gamma"] = single["gamma"].reshape(1).requires_grad_()
    for given in (single, tensors):
        given["gamma"].requires_grad_()
        render(client, given).color.sum().backward()
    assert torch.equal(tensors["gamma"].grad, single["gamma"].grad.reshape(1))
    with pytest.raises(InvalidArgument, match=r"^gamma: expected one number, got shape \[2\]"):
        render(client, {**scene(), "gamma": torch.tensor([0.5, 0.25])})


def test_gamma_that_has_become_zero_is_refused(client):
    with pytest.raises(InvalidArgument, match=r"^gamma: expected a value in \[1e-5, 1\], got 0.0"):
        render(client, {**scene(), "gamma": torch.tensor(0.0)})


def test_depth_has_a_gradient(client):
    """Scaling a scene about the eye scales its depths by the same factor."""
    tensors = scene()
    tensors["positions"].requires_grad_()
    tensors["radii"].requires_grad_()
    result = render(client, tensors)
    seen = result.depth[result.depth > 0]
    seen.sum().backward()
    from_eye = tensors["positions"].detach() - CAMERA[:3]
    growth = (tensors["positions"].grad * from_eye).sum() + (tensors["radii"].grad * tensors["radii"].detach()).sum()
    assert growth.item() == pytest.approx(seen.sum().item(), rel=1e-4)


def test_only_what_is_needed_is_asked_for(client, differentiated):
    asked = differentiated(Frame)
    tensors = scene()
    tensors["colors"].requires_grad_()
    tensors["radii"].requires_grad_()
    result = render(client, tensors)
    result.alpha.sum().backward(retain_graph=True)
    result.color.sum().backward()
    assert asked == [(("alpha",), ("colors", "radii")), (("color",), ("colors", "radii"))]
    # Backward through nothing differentiable does not call the worker.
    asked.clear()
    with torch.no_grad():
        assert not render(client, tensors).color.requires_grad
    assert asked == []


def test_gradients_come_in_the_type_of_the_input(client):
    tensors = scene(dtype=torch.float64)
    for tensor in tensors.values():
        tensor.requires_grad_()
    result = render(client, tensors)
    assert result.color.dtype == torch.float32
    result.color.sum().backward()
    assert all(tensor.grad.dtype == torch.float64 for tensor in tensors.values())
    single = scene()
    for tensor in single.values():
        tensor.requires_grad_()
    render(client, single).color.sum().backward()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor.grad.float(), single[name].grad, msg=name)


def test_a_camera_may_take_the_place_of_its_parameters(client):
    tensors = scene()
    expected = render(client, tensors).color
    camera = Camera.pulsar(tensors.pop("cam_params"), WIDTH, HEIGHT)
    tensors["positions"].requires_grad_()
    result = render_spheres(**tensors, cam_params=camera, max_depth=7.0, min_depth=2.0, client=client)
    assert torch.equal(result.color, expected)
    result.color.sum().backward()
    assert tensors["positions"].grad.abs().max() > 0
    opencv = Camera.look_at((0, 0, -4), (0, 0, 0), width=WIDTH, height=HEIGHT)
    assert render_spheres(**tensors, cam_params=opencv, max_depth=7.0, client=client).color.std() > 0


def test_outputs_that_are_left_out_do_not_travel(client):
    result = render(client, scene(), outputs=("alpha",))
    assert result.depth is None and result.info is None
    assert result.alpha is not None
    with pytest.raises(InvalidArgument, match=r"^outputs: "):
        render(client, scene(), outputs=("hits",))


def test_compat_has_gradients_of_the_color_only(client):
    tensors = scene()
    del tensors["background"], tensors["gamma"]
    tensors["positions"].requires_grad_()
    result = render(client, tensors, semantics="compat", gamma=0.5)
    assert result.color.requires_grad
    assert not result.alpha.requires_grad and not result.depth.requires_grad and not result.info.requires_grad
    result.color.sum().backward()
    assert torch.isfinite(tensors["positions"].grad).all()


@pytest.mark.parametrize("name", ["background", "gamma"])
def test_compat_refuses_at_once_what_has_no_gradient_there(client, name):
    tensors = scene()
    tensors[name].requires_grad_()
    with pytest.raises(InvalidArgument, match=rf'^{name}: .*pass semantics="exact" or {name}\.detach\(\)$'):
        render(client, tensors, semantics="compat")
    with torch.no_grad():
        expected = render(client, tensors, semantics="compat").color
    tensors[name] = tensors[name].detach()
    assert torch.equal(render(client, tensors, semantics="compat").color, expected)


def test_camera_parameters_may_be_a_list_and_an_output_a_single_name(client):
    expected = render(client, scene())
    result = render(client, {**scene(), "cam_params": CAMERA.tolist()}, outputs="alpha")
    assert torch.equal(result.color, expected.color) and torch.equal(result.alpha, expected.alpha)
    assert result.depth is None


def test_scene_options_reach_the_worker(client):
    tensors = {**scene(), "cam_params": torch.tensor([0, 0, -4.0, 0, 0, 0, 0, 2.0])}
    assert render(client, tensors, orthogonal=True).color.std() > 0
    behind = {**scene(), "cam_params": torch.tensor([0, 0, -4.0, 0, 0, 0, 1, 0.8])}
    empty = render(client, behind, right_handed=True)
    assert (empty.depth == -1).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cam_params": torch.zeros(9)}, r"^cam_params: expected shape \[8\], \[10\], \[11\] or \[13\], got \[9\]"),
        ({"width": None}, r"^width, height: expected numbers of pixels"),
        ({"opacities": torch.full((COUNT,), 2.0)}, r"^opacities: expected values in \[0, 1\]"),
    ],
)
def test_refusals_name_the_argument(client, change, text):
    with pytest.raises(InvalidArgument, match=text):
        render(client, {**scene(), **{name: value for name, value in change.items() if name in scene()}},
               **{name: value for name, value in change.items() if name not in scene()})  # fmt: skip


def test_a_camera_of_another_size_is_refused(client):
    camera = Camera.look_at((0, 0, -4), (0, 0, 0), width=8, height=8)
    with pytest.raises(InvalidArgument, match=r"^width: expected the camera's own width 8 or none, got 24"):
        render(client, {**scene(), "cam_params": camera})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_a_gpu_come_back_there(client):
    tensors = {name: tensor.requires_grad_() for name, tensor in scene(device="cuda").items()}
    result = render(client, tensors)
    assert all(tensor.device.type == "cuda" for tensor in result)
    result.color.sum().backward()
    np.testing.assert_array_equal(
        result.info.cpu().numpy().view(np.int32), render(client, scene()).info.numpy().view(np.int32)
    )
    assert all(tensor.grad.device.type == "cuda" for tensor in tensors.values())


def test_results_are_printed_as_a_line() -> None:
    image = torch.zeros(2, 3, 3, requires_grad=True)
    found = RenderedSpheres(image, torch.zeros(2, 3), None, torch.zeros(2, 3, 5, dtype=torch.int32))
    assert repr(found) == "RenderedSpheres(color float32 [2, 3, 3], alpha float32 [2, 3], info int32 [2, 3, 5])"
    assert repr(found._replace(color=7)).startswith("RenderedSpheres(color 7, alpha")
