"""Inria's module on a worker: shapes, arguments, and what gets a gradient. Its numbers are tested end to end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument
from lumigrad.client.compat.diff_gaussian_rasterization import GaussianRasterizationSettings, GaussianRasterizer
from support.workers.worker import WorkerProcess, worker

WIDTH, HEIGHT, COUNT = 36, 28, 40
TANGENTS = (0.5, 0.5 * HEIGHT / WIDTH)
FIELDS = (
    "image_height image_width tanfovx tanfovy bg scale_modifier viewmatrix projmatrix sh_degree campos prefiltered "
    "debug antialiasing"
)


def settings(**changes) -> GaussianRasterizationSettings:
    view = torch.eye(4)
    view[3, :3] = torch.tensor([0.1, -0.2, 0.5])
    film = torch.zeros(4, 4)
    film[0, 0], film[1, 1], film[2, 2], film[3, 2], film[2, 3] = 1 / TANGENTS[0], 1 / TANGENTS[1], 1.0001, -0.01, 1
    values = GaussianRasterizationSettings(
        HEIGHT, WIDTH, *TANGENTS, bg=torch.tensor([0.2, 0.5, 0.1]), scale_modifier=1.0, viewmatrix=view,
        projmatrix=view @ film, sh_degree=1, campos=-view[3, :3], prefiltered=False, debug=False,
    )  # fmt: skip
    return values._replace(**changes)


def scene() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    tensors = {
        "means3D": torch.cat([2 * uniform(COUNT, 2) - 1, 5 * uniform(COUNT, 1) - 0.5], dim=-1),
        "means2D": torch.zeros(COUNT, 3),
        "shs": uniform(COUNT, 16, 3),
        "opacities": 0.2 + 0.7 * uniform(COUNT, 1),
        "scales": 0.05 + 0.1 * uniform(COUNT, 3),
        "rotations": torch.nn.functional.normalize(uniform(COUNT, 4) - 0.5),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def seen_by_the_client(raster: GaussianRasterizationSettings, tensors: dict[str, torch.Tensor]) -> tuple:
    """The same scene and camera as the client's own values."""
    camera = Camera.inria(raster.viewmatrix, raster.projmatrix, raster.campos, *TANGENTS, WIDTH, HEIGHT)
    found = {name: tensor.detach() for name, tensor in tensors.items()}
    arrays = (found["means3D"], found["rotations"], found["scales"], found["opacities"][:, 0], found["shs"])
    return Gaussians(*arrays), camera


@pytest.fixture
def rasterizer(worker_process: WorkerProcess):
    return lambda raster_settings=None, **options: GaussianRasterizer(
        settings() if raster_settings is None else raster_settings, worker_process.target, **options
    )


def test_settings_have_the_original_s_fields_in_its_order():
    assert " ".join(GaussianRasterizationSettings._fields) == FIELDS
    assert settings().antialiasing is None


def test_results_have_their_shapes_and_inputs_their_gradients(rasterizer):
    tensors = scene()
    color, radii, depth = rasterizer()(**tensors)
    assert color.shape == (3, HEIGHT, WIDTH) and color.is_contiguous()
    assert depth.shape == (2, HEIGHT, WIDTH)
    assert radii.shape == (COUNT,) and radii.dtype == torch.int32 and not radii.requires_grad
    (color.sum() + depth.sum()).backward()
    for name, tensor in tensors.items():
        assert tensor.grad.shape == tensor.shape and tensor.grad.any(), name
    assert not tensors["means2D"].grad[:, 2].any()
    hidden = radii == 0
    assert hidden.any() and not any(tensor.grad[hidden].any() for tensor in tensors.values())
    # Twelve coefficients are not in use.
    assert not tensors["shs"].grad[:, 4:].any()


def test_optional_arguments_may_be_left_out(rasterizer):
    tensors = scene()
    expected = rasterizer()(**tensors)[0]
    assert torch.equal(rasterizer()(**{**tensors, "means2D": None})[0], expected)
    del tensors["shs"]
    one = rasterizer()(colors_precomp=torch.full((COUNT, 3), 0.3), **tensors)[0]
    two = rasterizer()(colors_precomp=torch.full((COUNT, 3), 0.6), **tensors)[0]
    background = rasterizer()(colors_precomp=torch.zeros(COUNT, 3), **tensors)[0]
    torch.testing.assert_close(two - background, 2 * (one - background), atol=1e-6, rtol=0)


def test_the_projected_gradient_is_in_device_coordinates(rasterizer, client: Client):
    tensors = scene()
    rasterizer()(**tensors)[0].sum().backward()
    options = {"semantics": "inria_depth", "near": 0.2, "sh_degree": 1, "background": settings().bg}
    frame = client.render(*seen_by_the_client(settings(), tensors), **options)
    pixels = frame.backward(np.ones_like(frame.color), wanted=("means2d",)).means2d
    expected = pixels * [WIDTH / 2, HEIGHT / 2]
    np.testing.assert_allclose(tensors["means2D"].grad[:, :2], expected, rtol=1e-4, atol=1e-4)


def test_settings_that_have_antialiasing_get_the_inverse_depth(rasterizer, client: Client):
    tensors = scene()
    color, _, inverse = rasterizer(settings(antialiasing=False))(**tensors)
    assert inverse.shape == (1, HEIGHT, WIDTH)
    torch.testing.assert_close(color, rasterizer()(**tensors)[0])
    options = {"semantics": "inria_depth", "near": 0.2, "sh_degree": 1, "outputs": ("inverse_depth",)}
    frame = client.render(*seen_by_the_client(settings(), tensors), **options)
    np.testing.assert_array_equal(frame.inverse_depth, inverse[0].detach())
    inverse.sum().backward()
    assert tensors["means3D"].grad.any()


@pytest.mark.parametrize("antialiasing", [None, False, True])
def test_four_results_have_depth_and_alpha(rasterizer, antialiasing):
    tensors = scene()
    color, radii, depth, alpha = rasterizer(settings(antialiasing=antialiasing), alpha=True)(**tensors)
    assert depth.shape == alpha.shape == (1, HEIGHT, WIDTH)
    if not antialiasing:
        three = rasterizer()(**tensors)
        assert torch.equal(color, three[0]) and torch.equal(radii, three[1])
        assert torch.equal(torch.cat([depth, 1 - alpha]), torch.cat([three[2][:1], 1 - (1 - three[2][1:])]))
    (depth.sum() + alpha.sum()).backward()
    assert tensors["opacities"].grad.any() and tensors["scales"].grad.any()
    with pytest.raises(InvalidArgument, match=r"^alpha: expected False with depth=False, got True"):
        rasterizer(alpha=True, depth=False)


def test_cameras_may_have_axes_of_one(rasterizer):
    """The `setup_camera` of trackers and mappers adds these axes."""
    raster = settings()
    leading = settings(
        viewmatrix=raster.viewmatrix[None], projmatrix=raster.projmatrix[None], campos=raster.campos[None]
    )
    for semantics in ("inria_depth", "inria_exact"):
        found = rasterizer(leading, semantics=semantics)(**scene())
        expected = rasterizer(semantics=semantics)(**scene())
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    positions = torch.tensor([[0.0, 0, -1], [9, 9, 3]])
    assert rasterizer(leading).markVisible(positions).tolist() == [False, True]


def test_cameras_get_gradients_only_where_derivatives_are_true(rasterizer):
    for semantics in ("inria_depth", "inria_exact"):
        raster = settings()
        camera = [raster.viewmatrix, raster.projmatrix, raster.campos]
        camera = [tensor.clone().requires_grad_() for tensor in camera]
        names = ("viewmatrix", "projmatrix", "campos")
        raster = raster._replace(bg=raster.bg.clone().requires_grad_(), **dict(zip(names, camera, strict=True)))
        rasterizer(raster, semantics=semantics)(**scene())[0].sum().backward()
        assert raster.bg.grad.any()
        for tensor in camera:
            assert (tensor.grad is not None and bool(tensor.grad.any())) == (semantics == "inria_exact")


def test_the_camera_of_the_client_draws_the_same_picture(rasterizer, client: Client):
    tensors = {name: tensor.detach() for name, tensor in scene().items()}
    raster = settings(scale_modifier=0.8, antialiasing=True)
    color, radii, depth, alpha = rasterizer(raster, alpha=True)(**tensors)
    options = {"semantics": "inria_exact", "near": 0.2, "sh_degree": 1, "scale_modifier": 0.8, "antialiased": True}
    options |= {"background": raster.bg, "outputs": ("color", "depth", "transmittance", "radii")}
    frame = client.render(*seen_by_the_client(raster, tensors), **options)
    np.testing.assert_array_equal(frame.color.transpose(2, 0, 1), color)
    np.testing.assert_array_equal(np.stack([frame.depth, 1 - frame.transmittance]), torch.cat([depth, alpha]))
    np.testing.assert_array_equal(frame.radii[:, 0], radii)


def test_mark_visible_tells_what_is_in_front(rasterizer):
    positions = torch.tensor([[0.0, 0, -1], [0, 0, -0.4], [0, 0, -0.2], [9, 9, 3]])
    # The camera moves everything by 0.5 along z; the near plane is at 0.2.
    assert rasterizer().markVisible(positions).tolist() == [False, False, True, True]
    for shape in ((3,), (2, 4), (1, 2, 3)):
        with pytest.raises(InvalidArgument, match=r"^positions: expected shape \[N, 3\], got \["):
            rasterizer().markVisible(torch.zeros(shape))


def test_without_gradients_nothing_is_kept(monkeypatch: pytest.MonkeyPatch):
    # A worker of its own, since other tests' contexts may be given back at any time.
    with worker("--device", "cpu") as process, Client(process.target) as client:
        monkeypatch.setattr("lumigrad.client.default._CLIENTS", {process.target: client})
        with torch.no_grad():
            assert not GaussianRasterizer(settings(), process.target)(**scene())[0].requires_grad
        assert client.info().contexts == 0


def test_nothing_to_draw_shows_the_background(rasterizer):
    tensors = {name: tensor[:0] for name, tensor in scene().items()}
    color, radii, depth = rasterizer()(**tensors)
    torch.testing.assert_close(color[:, 3, 4], settings().bg)
    assert radii.shape == (0,) and not depth[0].any() and (depth[1] == 1).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shs": None}, "shs: expected either shs or colors_precomp, got neither"),
        ({"colors_precomp": torch.zeros(COUNT, 3)}, "shs: expected either shs or colors_precomp, got both"),
        ({"scales": None}, "scales: expected scales and rotations together, got one of them"),
        (
            {"cov3D_precomp": torch.ones(COUNT, 6)},
            "cov3D_precomp: expected either scales and rotations or cov3D_precomp, got both",
        ),
        ({"means3D": torch.zeros(COUNT, 2)}, r"means3D: expected shape \[N, 3\], got \[40, 2\]"),
        ({"opacities": torch.full((COUNT, 1), 1.5)}, r"opacities: expected values in \[0, 1\]"),
    ],
)
def test_refusals_name_the_argument(rasterizer, change, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        rasterizer()(**{**scene(), **change})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tanfovx": 0.0}, "raster_settings.tanfovx: expected the tangent of half an angle, > 0, got 0.0"),
        ({"viewmatrix": torch.eye(3)}, r"raster_settings.viewmatrix: expected finite numbers of shape \[4, 4\]"),
        ({"sh_degree": 7}, "raster_settings.sh_degree: expected a whole number from 0 to 4, got 7"),
        ({"image_width": 0}, "raster_settings.image_width: expected a whole number of pixels from 1 to"),
    ],
)
def test_refusals_name_the_setting(rasterizer, change, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        rasterizer(settings(**change))(**scene())


def test_other_semantics_are_refused(rasterizer):
    with pytest.raises(InvalidArgument, match=r'^semantics: expected one of "inria_depth", "inria_exact", got .exact.'):
        rasterizer(semantics="exact")


def test_two_results_are_the_first_two_of_three(rasterizer):
    color, radii, _ = rasterizer()(**scene())
    tensors = scene()
    two = rasterizer(depth=False)(**tensors)
    assert len(two) == 2 and torch.equal(two[0], color) and torch.equal(two[1], radii)
    two[0].sum().backward()
    assert all(tensor.grad is not None for tensor in tensors.values())


def test_opacities_and_backgrounds_may_have_axes_of_one(rasterizer):
    expected = rasterizer()(**scene())[0]
    for shape in ((1, COUNT, 1), (COUNT,), (1, COUNT)):
        tensors = scene()
        tensors["opacities"] = tensors["opacities"].detach().reshape(shape).requires_grad_()
        found = rasterizer(settings(bg=settings().bg[None]))(**tensors)[0]
        assert torch.equal(found, expected)
        found.sum().backward()
        assert tensors["opacities"].grad.shape == shape and tensors["opacities"].grad.any()
    with pytest.raises(InvalidArgument, match=r"^opacities: expected shape \[40\], got \[20, 2\]"):
        rasterizer()(**{**scene(), "opacities": torch.ones(COUNT // 2, 2)})


def test_a_number_is_the_background_of_all_channels(rasterizer):
    grey = torch.full((2, 3), 0.4, requires_grad=True)
    expected = rasterizer(settings(bg=torch.full((3,), 0.4)))(**scene())[0]
    for number in (torch.tensor(0.4), grey[0, 0]):
        assert torch.equal(rasterizer(settings(bg=number))(**scene())[0], expected)
    rasterizer(settings(bg=grey[0, 0]))(**scene())[0].sum().backward()
    assert grey.grad is not None and grey.grad[0, 0] > 0
    coloured = torch.tensor([[0.1, 0.2, 0.3]])
    with pytest.raises(InvalidArgument, match=r"^raster_settings.bg: expected shape \[3\], got one number out of a"):
        rasterizer(settings(bg=coloured[0, 0]))(**scene())


def test_a_loop_that_tracks_a_camera_and_maps_its_scene_converges(rasterizer):
    """SplaTAM's loop: a camera at the origin, a pose that moves the centres, and colours that hold depth."""
    view, film = torch.eye(4), settings().projmatrix
    film = torch.linalg.inv(settings().viewmatrix) @ film
    camera = settings(
        viewmatrix=view[None], projmatrix=(view @ film)[None], campos=torch.zeros(3), sh_degree=0, bg=torch.zeros(3)
    )
    given = {name: tensor.detach() for name, tensor in scene().items()}
    center, turn = given["means3D"] + torch.tensor([0, 0, 2.0]), torch.tensor([0.99, 0.05, -0.08, 0.03])
    shift = torch.tensor([0.08, -0.05, 0.1])

    def render(pose, moved, colors, logits):
        w, *axis = torch.nn.functional.normalize(pose, dim=0)
        axis = torch.stack(axis).expand_as(center)
        turned = center + 2 * torch.linalg.cross(axis, torch.linalg.cross(axis, center) + w * center)
        means2D = torch.zeros_like(center, requires_grad=True) + 0
        means2D.retain_grad()
        body = {
            "means3D": turned + moved,
            "rotations": given["rotations"],
            "opacities": torch.sigmoid(logits),
            "scales": torch.exp(torch.full((COUNT, 1), -1.5)).tile(1, 3),
            "means2D": means2D,
        }
        image, radius, _ = rasterizer(raster_settings=camera)(**body, colors_precomp=colors)
        depth = body["means3D"][:, 2:]
        planes, _, _ = rasterizer(raster_settings=camera)(
            **body, colors_precomp=torch.cat([depth, torch.ones_like(depth), depth**2], -1)
        )
        return image, planes, radius, means2D

    def loss(*scene):
        image, planes, radius, means2D = render(*scene)
        seen = target[1][1] > 0.9
        total = (planes[0] - target[1][0])[seen].abs().mean() + (image - target[0]).abs().mean()
        return total, radius, means2D

    colors, logits = given["shs"][:, 0], torch.full((COUNT, 1), 2.0)
    identity = torch.tensor([1.0, 0, 0, 0])
    target = [each.detach() for each in render(turn, shift, colors, logits)[:2]]
    pose, moved = (torch.nn.Parameter(value) for value in (identity, torch.zeros(3)))
    tracked = []
    optimizer = torch.optim.Adam([pose, moved], lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        total, radius, means2D = loss(pose, moved, colors, logits)
        total.backward()
        assert means2D.grad[radius > 0].any()
        optimizer.step()
        tracked.append(float(total.detach()))
    assert tracked[-1] < 0.15 * tracked[0], tracked[:: len(tracked) - 1]
    painted = torch.nn.Parameter(torch.full((COUNT, 3), 0.5))
    optimizer = torch.optim.Adam([painted], lr=0.05)
    mapped = []
    for _ in range(40):
        optimizer.zero_grad()
        total, _, _ = loss(turn, shift, painted, logits)
        total.backward()
        optimizer.step()
        mapped.append(float(total.detach()))
    assert mapped[-1] < 0.15 * mapped[0], mapped[:: len(mapped) - 1]
