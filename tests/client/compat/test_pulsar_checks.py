"""The Pulsar drop-in without a worker: checks of arguments (which of several comes first), ids, conversions."""

from __future__ import annotations

import pytest
import torch

from lumigrad.client import InvalidArgument
from lumigrad.client.compat import pulsar
from lumigrad.client.compat.pulsar import PulsarArgumentError, Renderer
from support.spheres.pulsar_camera import camera_vectors

# Nothing listens here: every check must fail before the worker is asked.
NOWHERE = "localhost:1"


def renderer(**changes) -> Renderer:
    options = {"width": 8, "height": 6, "max_num_balls": 10, "target": NOWHERE}
    return Renderer(**{**options, **changes})


def arguments(batch: int = 0, count: int = 4, **changes) -> dict:
    lead = (batch,) if batch else ()
    camera = torch.tensor([0.0, 0, 0, 0, 0, 0, 5, 2])
    options = {
        "vert_pos": torch.zeros(*lead, count, 3) + torch.tensor([0.0, 0, 20]),
        "vert_col": torch.full((*lead, count, 3), 0.5),
        "vert_rad": torch.ones(*lead, count),
        "cam_params": camera.repeat(*lead, 1) if batch else camera,
        "gamma": 0.1,
        "max_depth": 40.0,
    }
    return {**options, **changes}


def test_constants():
    assert pulsar.EPS == 1e-6
    assert pulsar.MAX_FLOAT == 3.4e38
    assert (pulsar.MAX_INT, pulsar.MAX_UINT, pulsar.MAX_USHORT) == (2**31 - 1, 2**32 - 1, 2**16 - 1)
    assert pulsar.MAX_GRAD_SPHERES == 128


@pytest.mark.parametrize(
    ("changes", "name", "number"),
    [
        ({"width": 0}, "width", 1),
        ({"max_num_balls": 0}, "max_num_balls", 3),
        ({"background_normalized_depth": 0.0}, "background_normalized_depth", 5),
        ({"n_track": 0}, "n_track", 7),
        ({"n_track": 129}, "n_track", 7),
        ({"max_num_balls": 2147483647}, "max_num_balls", 2),
        ({"width": 1}, "width", 3),
        # The first of several mistakes, in the order of the original, is named.
        ({"width": 1, "height": 0}, "height", 2),
        ({"n_channels": 0, "max_num_balls": 0}, "max_num_balls", 3),
    ],
)
def test_the_constructor_refuses(changes, name, number):
    with pytest.raises(PulsarArgumentError) as refused:
        renderer(**changes)
    assert str(refused.value).startswith(f"{name}: invalid argument {number}: expected ")
    assert isinstance(refused.value, RuntimeError)
    assert isinstance(refused.value, InvalidArgument)


LONG = torch.tensor([0.0, 0, 0, 0, 0, 0, 100, 20])

FORWARD = [
    ({"vert_pos": torch.zeros(3)}, "vert_pos", 1),
    ({"vert_col": torch.zeros(1, 4, 3)}, "vert_col", 2),
    ({"opacity": torch.ones(1, 4)}, "opacity", 13),
    ({"vert_col": torch.zeros(5, 3)}, "vert_col", 2),
    ({"opacity": torch.ones(5)}, "opacity", 12),
    ({"vert_pos": torch.zeros(4, 2)}, "vert_pos", 1),
    ({"vert_col": torch.zeros(4, 2)}, "vert_col", 2),
    ({"vert_pos": torch.zeros(4, 3, device="meta")}, "vert_pos", 1),
    ({"vert_pos": torch.zeros(4, 3, dtype=torch.float64)}, "vert_pos", 1),
    ({"cam_params": torch.zeros(8, dtype=torch.float64)}, "cam_params", 4),
    ({"vert_rad": torch.tensor([1, 1, 1, 1e-6])}, "vert_rad", 3),
    ({"vert_rad": torch.tensor([1, float("nan"), 1, 1])}, "vert_rad", 3),
    ({"cam_params": torch.tensor([0.0, 0, 0, 0, 0, 0, 0, 2])}, "cam_params", 8),
    ({"gamma": 0.9e-5}, "gamma", 10),
    ({"gamma": float("nan")}, "gamma", 10),
    ({"min_depth": 5.0}, "min_depth", 12),
    # 100 + 2e-6 is 100 in float32, which is not behind the film.
    ({"cam_params": LONG, "max_depth": 200.0}, "min_depth", 12),
    ({"max_depth": 5.0}, "max_depth", 11),
    ({"percent_allowed_difference": -0.1}, "percent_allowed_difference", 14),
    ({"max_n_hits": 0}, "max_n_hits", 14),
    ({"mode": 2}, "mode", 15),
    ({"bg_col": torch.zeros(2)}, "bg_col", 13),
    ({"bg_col": torch.zeros(3, dtype=torch.float64)}, "bg_col", 13),
    ({"opacity": torch.tensor([0, 0, 0, 1.1])}, "opacity", 13),
    # Batches have to agree.
    ({"batch": 2, "vert_col": torch.zeros(3, 4, 3)}, "vert_col", 2),
    ({"batch": 2, "vert_col": torch.zeros(4, 3)}, "vert_col", 2),
    ({"batch": 2, "cam_params": torch.zeros(8)}, "cam_params", 4),
    ({"batch": 2, "cam_params": torch.zeros(3, 8)}, "cam_params", 4),
    ({"batch": 2, "opacity": torch.ones(4)}, "opacity", 13),
]


@pytest.mark.parametrize(("changes", "name", "number"), FORWARD, ids=lambda value: str(value)[:40])
def test_forward_refuses(changes, name, number):
    with pytest.raises(PulsarArgumentError) as refused:
        renderer()(**arguments(**changes))
    assert str(refused.value).startswith(f"{name}: invalid argument {number}: expected ")
    assert ", got " in str(refused.value)


def test_the_number_of_spheres_is_limited_and_none_is_an_error():
    for count in (0, 11):
        with pytest.raises(
            PulsarArgumentError, match=r"^vert_pos: invalid argument 9: expected 1 to max_num_balls = 10"
        ):
            renderer()(**arguments(count=count))


def test_orthogonal_cameras_have_no_focal_length():
    orthogonal = renderer(orthogonal_projection=True)
    with pytest.raises(
        PulsarArgumentError, match=r"^cam_params: invalid argument 8: expected a focal length of exactly 0"
    ):
        orthogonal(**arguments())


@pytest.mark.parametrize("shape", [(9,), (1, 12), (2, 2, 8), ()])
def test_another_layout_of_cam_params_is_an_assertion(shape):
    with pytest.raises(AssertionError, match="cam_params: expected 8, 10, 11 or 13 values"):
        renderer()(**arguments(cam_params=torch.zeros(shape)))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        # Shapes are checked before devices, devices before types, types before values, and values by subject.
        ({"vert_rad": torch.ones(5), "vert_pos": torch.zeros(4, 3, dtype=torch.float64)}, "vert_rad"),
        ({"vert_pos": torch.zeros(4, 3, dtype=torch.float64), "vert_rad": torch.ones(4, device="meta")}, "vert_rad"),
        ({"vert_rad": torch.zeros(4), "opacity": torch.ones(4, dtype=torch.float64)}, "opacity"),
        ({"vert_rad": torch.zeros(4), "gamma": 7.0}, "vert_rad"),
        ({"gamma": 7.0, "min_depth": 1.0}, "gamma"),
        ({"min_depth": 1.0, "max_depth": 0.5}, "min_depth"),
        ({"max_depth": 0.5, "percent_allowed_difference": 2.0}, "max_depth"),
        ({"mode": 3, "bg_col": torch.zeros(1)}, "mode"),
        ({"bg_col": torch.zeros(1), "opacity": torch.full((4,), 2.0)}, "bg_col"),
    ],
)
def test_the_first_of_several_problems_is_reported(changes, name):
    with pytest.raises(PulsarArgumentError) as refused:
        renderer()(**arguments(**changes))
    assert refused.value.violations[0].field == name


def test_the_module_has_one_buffer_that_says_where_it_is():
    module = renderer()
    assert dict(module.named_buffers()).keys() == {"device_tracker"}
    assert module.device_tracker.shape == (1,)
    assert not list(module.parameters())
    assert "width=8, height=6, max_num_balls=10" in repr(module)


def test_ids_are_read_from_the_bits_of_the_info():
    ids = torch.tensor([[[[3, -1], [2**31 - 1, 0]]]], dtype=torch.int32)
    info = torch.zeros(1, 1, 2, 7)
    info.view(torch.int32)[..., 3::2] = ids
    info[..., 4] = torch.tensor([[[1.5, -1.0]]])
    found = Renderer.sphere_ids_from_result_info_nograd(info)
    assert found.dtype == torch.int32
    assert torch.equal(found, ids)
    assert torch.equal(Renderer.sphere_ids_from_result_info_nograd(info[0]), ids)
    assert torch.equal(Renderer.depth_map_from_result_info_nograd(info), torch.tensor([[[1.5, -1.0]]]))


def test_the_native_renderer_has_the_originals_attributes() -> None:
    native = Renderer(30, 20, 7, True, True, n_track=9)._renderer
    assert (native.width, native.height, native.max_num_balls) == (30, 20, 7)
    assert native.orthogonal is True and native.right_handed is True and native.n_track == 9


AXIS_ANGLE = [0.3, -0.2, -5.0, 0.4, -0.3, 0.2, 1.5, 2.0]
SIX_D = [0.3, -0.2, -5.0, 0.9, 0.1, -0.2, 0.1, 1.1, 0.3, 1.5, 2.0]


@pytest.mark.parametrize("parameters", [AXIS_ANGLE, [*AXIS_ANGLE, 3.0, -2.0], SIX_D, [*SIX_D, 3.0, -2.0]])
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("right_handed", [False, True])
@pytest.mark.parametrize("first_r_then_t", [False, True])
def test_camera_parameters_become_vectors(
    parameters: list[float], orthogonal: bool, right_handed: bool, first_r_then_t: bool
) -> None:
    def loss(vectors: list[torch.Tensor]) -> torch.Tensor:
        return sum((vector * (1.0 + index)).sum() for index, vector in enumerate(vectors[:4]))  # type: ignore[return-value]

    own = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    found = Renderer._transform_cam_params(own, 40, 30, orthogonal, right_handed, first_r_then_t)
    reference = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    options = {"orthogonal": orthogonal, "right_handed": right_handed, "first_r_then_t": first_r_then_t}
    expected = list(vars(camera_vectors(reference, 40, 30, **options)).values())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double().reshape(other.shape), other)
    assert found[4].shape == (1,) and found[5].dtype == torch.int32 and found[5].shape == (2,)
    loss(list(found)).backward()
    loss(expected).backward()
    torch.testing.assert_close(own.grad, reference.grad)
    batch = Renderer._transform_cam_params(torch.stack([own, own]), 40, 30, orthogonal, right_handed, first_r_then_t)
    assert [tuple(vector.shape) for vector in batch] == [(2, 3)] * 4 + [(2, 1), (2, 2)]
    torch.testing.assert_close(batch[1][1], found[1])


def test_a_camera_that_is_not_turned_has_gradients() -> None:
    parameters = torch.tensor([0.0, 0.0, -5.0, 0.0, 0.0, 0.0, 1.0, 1.0], requires_grad=True)
    Renderer._transform_cam_params(parameters, 40, 30, False, False)[1].sum().backward()
    assert parameters.grad is not None and parameters.grad.isfinite().all()
