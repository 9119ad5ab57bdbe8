"""`torch.compile` around every operator: the graph ends before it, and results and gradients do not change.

Other recorders of programs would keep its results, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lumigrad.client import InvalidArgument, Mesh
from lumigrad.client.compat import curobo, diff_gaussian_rasterization, gsplat, pulsar
from lumigrad.client.torch import mesh_distance, render_gaussians, render_spheres
from support.meshes import shapes as mesh_shapes
from support.workers.worker import WorkerProcess

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
CAMERA = torch.tensor([0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 1.0, 1.0])
CPU = curobo.TensorDeviceType(torch.device("cpu"))
Program = Callable[[], Callable[[torch.Tensor], torch.Tensor]]
SIZE = {"width": 16, "height": 12}


@pytest.fixture(autouse=True)
def compiled_anew(target: str) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Each of these functions makes its tensors, and returns the function to compile.


def spheres() -> Callable[[torch.Tensor], torch.Tensor]:
    fixed = torch.ones(4, 3), torch.full((4,), 0.4), CAMERA
    return lambda points: render_spheres(points, *fixed, gamma=0.1, max_depth=9.0, **SIZE).color.sum()


def gaussian_arguments() -> dict[str, torch.Tensor]:
    view = torch.eye(4)
    view[2, 3] = 4.0
    return {
        "quats": torch.ones(4, 4),
        "scales": torch.full((4, 3), 0.3),
        "opacities": torch.full((4,), 0.7),
        "colors": torch.ones(4, 3),
        "viewmats": view[None],
        "Ks": torch.tensor([[[16.0, 0.0, 8.0], [0.0, 16.0, 6.0], [0.0, 0.0, 1.0]]]),
    }


def gaussians() -> Callable[[torch.Tensor], torch.Tensor]:
    fixed = gaussian_arguments()
    return lambda points: render_gaussians(points, **fixed, **SIZE).color.sum()


def of_gsplat() -> Callable[[torch.Tensor], torch.Tensor]:
    fixed = gaussian_arguments()

    def asked(points: torch.Tensor) -> torch.Tensor:
        image, alpha, meta = gsplat.rasterization(points, **fixed, **SIZE)
        return image.sum() + alpha.sum() + meta["means2d"].sum()

    return asked


def of_inria() -> Callable[[torch.Tensor], torch.Tensor]:
    view = torch.eye(4)
    view[3, 2] = 4.0
    film = torch.tensor([[2.0, 0, 0, 0], [0, 3.0, 0, 0], [0, 0, 1.0, 1], [0, 0, -0.01, 0]])
    settings = diff_gaussian_rasterization.GaussianRasterizationSettings(
        12, 16, 0.5, 0.375, torch.zeros(3), 1.0, view, view @ film, 0, torch.tensor([0.0, 0.0, -4.0])
    )
    rasterizer = diff_gaussian_rasterization.GaussianRasterizer(settings)
    fixed = {
        "colors_precomp": torch.ones(4, 3),
        "scales": torch.full((4, 3), 0.3),
        "rotations": torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(4, 1),
    }
    centres, opacities = torch.zeros(4, 3), torch.full((4, 1), 0.7)
    return lambda points: rasterizer(points, centres, opacities, **fixed)[0].sum()


def of_pulsar() -> Callable[[torch.Tensor], torch.Tensor]:
    module = pulsar.Renderer(16, 12, 4)
    fixed = torch.ones(4, 3), torch.full((4,), 0.4), CAMERA
    return lambda points: module(points, *fixed, gamma=0.1, max_depth=9.0).sum()


def rows(points: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(points, (0, 1), value=0.6).reshape(1, 2, 2, 4)


def distances() -> Callable[[torch.Tensor], torch.Tensor]:
    mesh = Mesh(BOX.vertices, BOX.faces)
    return lambda points: mesh_distance(rows(points), mesh, activation_distance=0.1, outputs=("cost",)).cost.sum()


def checker() -> Callable[[torch.Tensor], torch.Tensor]:
    model = curobo.WorldConfig(cuboid=[curobo.Cuboid("table", dims=(1.0, 1.0, 1.0))])
    world = curobo.WorldMeshCollision(curobo.WorldCollisionConfig(CPU, world_model=model, max_distance=0.5))
    shape = torch.Size((1, 2, 2, 4))
    buffers = [curobo.CollisionQueryBuffer.initialize_from_shape(shape, CPU, world.collision_types) for _ in range(2)]
    weight, activation = torch.ones(1), torch.full((1,), 0.1)

    def asked(points: torch.Tensor) -> torch.Tensor:
        static = world.get_sphere_distance(rows(points), buffers[0], weight, activation)
        swept = world.get_swept_sphere_distance(rows(points), buffers[1], weight, activation, weight, 3)
        return static.sum() + swept.sum()

    return asked


def warp_functions() -> Callable[[torch.Tensor], torch.Tensor]:
    handle = curobo.register_mesh(BOX.vertices, BOX.faces)
    one, pose = torch.ones(1), torch.tensor([[[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]]])
    enabled, count = torch.ones(1, 1, dtype=torch.uint8), torch.ones(1, dtype=torch.int32)
    world = torch.tensor([[handle]]), pose, enabled, count, one
    buffers = torch.zeros(1, 2, 2), torch.zeros(1, 2, 2, 4), torch.zeros(1, 2, 2, dtype=torch.uint8)

    def asked(points: torch.Tensor) -> torch.Tensor:
        static = curobo.SdfMeshWarpPy.apply(rows(points), *buffers, one, one, *world).clone()
        return static.sum() + curobo.SweptSdfMeshWarpPy.apply(rows(points), *buffers, one, one, one, *world).sum()

    return asked


PROGRAMS = [spheres, gaussians, of_gsplat, of_inria, of_pulsar, distances, checker, warp_functions]


def points() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (torch.rand(4, 3, generator=generator) - 0.5).requires_grad_()


def losses(program: Program) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """A loss with an operator inside, and a step that also runs its backward pass."""
    asked = program()

    def around(leaf: torch.Tensor) -> torch.Tensor:
        return 2.0 * asked(1.5 * leaf) + leaf.square().sum()

    def step(leaf: torch.Tensor) -> torch.Tensor:
        loss = around(leaf)
        loss.backward()
        return loss.detach()

    return around, step


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiled_steps_have_the_results_and_gradients_of_others(program: Program) -> None:
    graphs = []

    def counted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    _, step = losses(program)
    expected, leaf = points(), points()
    value = step(expected)
    assert expected.grad is not None and expected.grad.any()
    torch.testing.assert_close(torch.compile(step, backend=counted)(leaf), value)
    torch.testing.assert_close(leaf.grad, expected.grad)
    assert graphs, "nothing was compiled: the test is about what is"


# A function, and an autograd function that is applied directly.
@pytest.mark.parametrize("program", [of_gsplat, warp_functions], ids=lambda program: program.__name__)
def test_graphs_around_have_backward_passes(program: Program) -> None:
    around, step = losses(program)
    expected, leaf = points(), points()
    value = step(expected)
    loss = torch.compile(around, backend="aot_eager")(leaf)
    loss.backward()
    torch.testing.assert_close((loss.detach(), leaf.grad), (value, expected.grad))


def test_a_compiled_module_renders(worker_process: WorkerProcess) -> None:
    module = torch.compile(pulsar.Renderer(16, 12, 4), backend="eager")
    arguments = points(), torch.ones(4, 3), torch.full((4,), 0.4), CAMERA, 0.1, 9.0
    assert torch.equal(module(*arguments), pulsar.Renderer(16, 12, 4)(*arguments))


def exported(function: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> None:
    module = torch.nn.Module()
    module.forward = function
    torch.export.export(module, (value,), strict=False)


RECORDERS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], Any]] = {
    "jit": lambda function, value: torch.jit.trace(function, (value,), check_trace=False),
    "fx": lambda function, value: make_fx(function)(value),
    "export": exported,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_that_would_keep_these_results_are_refused(program: Program, recorder: str) -> None:
    with pytest.raises(InvalidArgument, match=r"expected a call outside of torch.jit.trace, torch.export and make_fx"):
        RECORDERS[recorder](program(), points().detach())
