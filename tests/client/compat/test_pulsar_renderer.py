"""The Pulsar drop-in against the client's own calls: batches, modes, options, gradients, warnings."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Spheres
from lumigrad.client.compat.pulsar import MAX_UINT, PulsarArgumentError, Renderer
from lumigrad.client.compat.pulsar import checks as notices
from support.workers.worker import WorkerProcess, worker

WIDTH, HEIGHT, COUNT, BATCH = 26, 18, 30, 3
FOCAL = (1.0, 0.5, 2.0)


@pytest.fixture
def renderer(worker_process: WorkerProcess) -> Renderer:
    return Renderer(WIDTH, HEIGHT, 100, target=worker_process.target)


def batch(opacity: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    cameras = [[0.2 * i, 0, -6, 0, 0.1 * i, 0, FOCAL[i], FOCAL[i]] for i in range(BATCH)]
    tensors = {
        "vert_pos": 3 * uniform(BATCH, COUNT, 3) - 1.5,
        "vert_col": uniform(BATCH, COUNT, 3),
        "vert_rad": 0.2 + 0.3 * uniform(BATCH, COUNT),
        "cam_params": torch.tensor(cameras),
    }
    return {**tensors, "opacity": uniform(BATCH, COUNT)} if opacity else tensors


def element(tensors: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    return {name: tensor[index].detach().clone() for name, tensor in tensors.items()}


def native(client: Client, own: dict[str, torch.Tensor], **options):
    scene = Spheres(own["vert_pos"], own["vert_col"], own["vert_rad"], own.get("opacity"))
    camera = Camera.pulsar(own["cam_params"], WIDTH, HEIGHT, **options.pop("camera", {}))
    defaults = {"gamma": 0.1, "max_depth": 12.0, "semantics": "compat", "outputs": ("color", "info")}
    return client.render(scene, camera, **{**defaults, **options})


def test_a_single_picture_has_no_batch_axis(renderer):
    tensors = batch()
    own = element(tensors, 1)
    image, info = renderer(**own, gamma=0.1, max_depth=12.0, return_forward_info=True)
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert info.shape == (HEIGHT, WIDTH, 13)
    assert isinstance(renderer(**own, gamma=0.1, max_depth=12.0), torch.Tensor)
    with_axis = {**own, "cam_params": own["cam_params"][None]}
    assert torch.equal(renderer(**with_axis, gamma=0.1, max_depth=12.0), image)


OPTIONS = [
    ({"bg_col": torch.tensor([0.1, 0.2, 0.3])}, {"background": (0.1, 0.2, 0.3)}),
    ({"min_depth": torch.tensor([4.5])}, {"min_depth": 4.5}),
    ({"percent_allowed_difference": 0.0}, {"allowed_difference": 0.0}),
    ({"percent_allowed_difference": 0.999999999}, {"allowed_difference": 1 - 1e-6}),
    ({"max_n_hits": 1}, {"max_hits": 1}),
    ({"max_n_hits": MAX_UINT}, {"max_hits": 0}),
    ({"gamma": torch.tensor(0.3), "max_depth": torch.tensor([9.0])}, {"gamma": np.float32(0.3), "max_depth": 9.0}),
    ({"first_R_then_T": True}, {"camera": {"first_r_then_t": True}}),
]


@pytest.mark.parametrize(("options", "meaning"), OPTIONS, ids=lambda value: "+".join(value))
def test_options_mean_what_the_original_means(renderer, client, options, meaning):
    own = element(batch(), 1)
    image = renderer(**own, **{"gamma": 0.1, "max_depth": 12.0, **options})
    np.testing.assert_array_equal(image.numpy(), native(client, own, **meaning).color)


def test_only_inputs_that_require_a_gradient_get_one(renderer):
    tensors = element(batch(), 0)
    tensors["vert_col"].requires_grad_()
    image, info = renderer(**tensors, gamma=0.1, max_depth=12.0, return_forward_info=True)
    assert not info.requires_grad
    image.sum().backward()
    assert tensors["vert_col"].grad.abs().max() > 0
    assert all(tensor.grad is None for name, tensor in tensors.items() if name != "vert_col")
    with torch.no_grad():
        assert not renderer(**tensors, gamma=0.1, max_depth=12.0).requires_grad


@pytest.mark.parametrize("batched", [False, True])
def test_mode_1_counts_hits_and_refuses_backward(renderer, client, batched):
    tensors = batch()
    own = tensors if batched else element(tensors, 0)
    own["vert_pos"].requires_grad_()
    options = {"gamma": 0.1, "max_depth": 12.0, "min_depth": 3.0, "percent_allowed_difference": 0.0}
    image, info = renderer(**own, **options, mode=1, return_forward_info=True)
    assert info is None
    assert image.shape == ((BATCH,) if batched else ()) + (HEIGHT, WIDTH, 1)
    assert image.dtype == torch.float32
    first = image[0] if batched else image
    frame = native(client, element(tensors, 0), outputs=("hits",), min_depth=3.0, allowed_difference=0.0)
    np.testing.assert_array_equal(first[..., 0].detach().numpy(), frame.hits)
    assert frame.hits.max() > 1
    with pytest.raises(ValueError, match="mode=0"):
        image.sum().backward()


def test_mode_1_keeps_nothing(monkeypatch):
    # A worker of its own, since other tests' contexts may be given back at any time.
    with worker("--device", "cpu") as process, Client(process.target) as client:
        monkeypatch.setattr("lumigrad.client.default._CLIENTS", {process.target: client})
        own = batch()
        own["vert_pos"].requires_grad_()
        Renderer(WIDTH, HEIGHT, 100, target=process.target)(**own, gamma=0.1, max_depth=12.0, mode=1)
        assert client.info().contexts == 0


@pytest.fixture
def fresh_notices(monkeypatch):
    monkeypatch.setattr(notices, "_given", set())


def warned(call) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(entry.filename == __file__ for entry in caught if "gamma is" not in str(entry.message))
    return [str(entry.message) for entry in caught]


def test_axis_angle_cameras_that_train_are_warned_about_once(renderer, fresh_notices):
    own = element(batch(), 0)
    assert warned(lambda: renderer(**own, gamma=0.1, max_depth=12.0)) == []
    own["cam_params"].requires_grad_()
    said = warned(lambda: renderer(**own, gamma=0.1, max_depth=12.0))
    assert len(said) == 1 and "axis-angle is discontinuous" in said[0]
    assert warned(lambda: renderer(**own, gamma=0.1, max_depth=12.0)) == []


def test_a_huge_depth_range_is_warned_about_every_time(renderer, fresh_notices):
    own = element(batch(), 0)
    for _ in range(2):
        said = warned(lambda: renderer(**own, gamma=0.1, max_depth=10_001.0))
        assert len(said) == 1 and "more than 10000 times the smallest focal length" in said[0]
    assert warned(lambda: renderer(**own, gamma=0.1, max_depth=10_000.0)) == []


def test_a_small_gamma_is_warned_about_once_and_only_for_the_geometry(renderer, fresh_notices):
    own = element(batch(), 0)
    own["vert_col"].requires_grad_()
    assert warned(lambda: renderer(**own, gamma=9e-4, max_depth=12.0).sum().backward()) == []
    own["vert_rad"].requires_grad_()
    said = warned(lambda: renderer(**own, gamma=9e-4, max_depth=12.0).sum().backward())
    assert len(said) == 1 and "below 1e-3" in said[0]
    assert warned(lambda: renderer(**own, gamma=9e-4, max_depth=12.0).sum().backward()) == []


def test_the_module_can_be_copied_pickled_and_saved(renderer):
    own = element(batch(), 0)
    image = renderer(**own, gamma=0.1, max_depth=12.0)
    for twin in (copy.deepcopy(renderer), pickle.loads(pickle.dumps(renderer))):
        assert torch.equal(twin(**own, gamma=0.1, max_depth=12.0), image)
    assert list(renderer.state_dict()) == ["device_tracker"]


def test_positional_calls_of_the_original_work(renderer):
    own = element(batch(), 0)
    keywords = renderer(**own, gamma=0.1, max_depth=12.0, min_depth=2.0, bg_col=torch.zeros(3))
    leading = [own[name] for name in ("vert_pos", "vert_col", "vert_rad", "cam_params")]
    positional = renderer(*leading, 0.1, 12.0, 2.0, torch.zeros(3), own["opacity"])
    assert torch.equal(keywords, positional)


def test_the_background_gets_no_gradient(renderer):
    background = torch.zeros(3, requires_grad=True)
    assert not renderer(**element(batch(), 0), gamma=0.1, max_depth=12.0, bg_col=background).requires_grad


@pytest.mark.parametrize(("name", "number"), [("vert_pos", 1), ("vert_col", 2), ("cam_params", 4)])
def test_what_only_the_worker_refuses_is_an_error_of_the_drop_in(renderer, name, number):
    own = element(batch(), 0)
    own[name].view(-1)[0] = float("nan")
    with pytest.raises(PulsarArgumentError, match=rf"^{name}: invalid argument {number}: expected ") as refused:
        renderer(**own, gamma=0.1, max_depth=12.0)
    assert isinstance(refused.value, RuntimeError)
    assert refused.value.violations[0].field == name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_moved_module_takes_and_gives_tensors_there(renderer):
    own = {name: tensor.cuda().requires_grad_() for name, tensor in element(batch(), 0).items()}
    image = renderer.cuda()(**own, gamma=0.1, max_depth=12.0)
    assert image.device.type == "cuda"
    image.sum().backward()
    assert all(tensor.grad.device.type == "cuda" for tensor in own.values())
