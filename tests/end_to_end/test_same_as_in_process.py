"""Pictures and gradients from a worker have the bits that the kernels gave."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Frame, Spheres
from lumigrad.client.torch import render_spheres
from lumigrad.kernels import spheres
from support.backends.engines import ENGINES
from support.gaussians.rotation import turned
from support.spheres.case import Floats, SphereCase
from support.spheres.cases import ORTHOGONAL_POSE, POSE, SIX_D_RAW, Cloud, build
from support.spheres.runs import Run, Semantics, camera_of, run, wanted_of

ALL_OUTPUTS = ("color", "alpha", "depth", "info", "sphere_ids", "weights", "hits")
# Settings travel as float32, which holds these numbers exactly.
SOFT, HARD = 0.125, 0.03125
SCENES = [
    build("plain", Cloud(count=300), camera=POSE, gamma=HARD),
    build("seven", Cloud(count=50, channels=7), camera=POSE, gamma=SOFT, background=np.linspace(0, 1, 7)),
    build("see-through", Cloud(count=80), camera=SIX_D_RAW, gamma=SOFT, opacities=np.random.default_rng(3).random(80)),
    build("parallel", Cloud(count=80), camera=ORTHOGONAL_POSE, gamma=SOFT, orthogonal=True),
    build("mirrored", Cloud(count=80), camera=POSE, gamma=SOFT, right_handed=True),
]


def assert_same_bits(actual: Floats, expected: Floats, name: str) -> None:
    actual, expected = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, name
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32), err_msg=name)


def locally(
    case: SphereCase, semantics: Semantics, outputs: Sequence[str], wanted: Sequence[str], **more: object
) -> Run:
    return run(ENGINES["cpu"](), case, semantics, outputs=outputs, wanted=wanted, **more)  # type: ignore[arg-type]


def remote_camera(case: SphereCase) -> Camera:
    return Camera.pulsar(
        case.camera, case.width, case.height, orthogonal=case.orthogonal, right_handed=case.right_handed
    )


def remotely(client: Client, cameras: Sequence[Camera], case: SphereCase, semantics: Semantics) -> Frame:
    return client.render(
        client.put(Spheres(case.positions, case.colors, case.radii, case.opacities)),
        cameras,
        gamma=case.gamma,
        max_depth=case.max_depth,
        min_depth=case.min_depth,
        background=case.background,
        semantics=semantics,
        allowed_difference=case.allowed_difference if semantics == "compat" else 0.0,
        outputs=ALL_OUTPUTS,
        retain=True,
    )


@pytest.mark.parametrize("semantics", ["exact", "compat"])
@pytest.mark.parametrize("case", SCENES, ids=lambda case: case.name)
def test_operator_gives_the_bits_of_the_kernels(case: SphereCase, semantics: Semantics, client: Client) -> None:
    leaves = {
        name: torch.from_numpy(getattr(case, name)).clone().requires_grad_()
        for name in ("positions", "colors", "radii", "camera")
    }
    optional = {"background": torch.from_numpy(case.background).clone()}
    gamma = torch.tensor(case.gamma)
    if case.opacities is not None:
        optional["opacities"] = torch.from_numpy(case.opacities).clone()
    if semantics == "exact":
        gamma.requires_grad_()
        optional["background"].requires_grad_()
    if "opacities" in optional:
        optional["opacities"].requires_grad_()
    result = render_spheres(
        *leaves.values(),
        width=case.width,
        height=case.height,
        gamma=gamma,
        max_depth=case.max_depth,
        orthogonal=case.orthogonal,
        right_handed=case.right_handed,
        allowed_difference=case.allowed_difference if semantics == "compat" else 0.0,
        semantics=semantics,
        client=client,
        **optional,
    )
    loss = (result.color * torch.from_numpy(case.output_gradient)).sum()
    upstream = {"color": case.output_gradient[None]}
    if semantics == "exact":
        pixels = np.random.default_rng(1).standard_normal((2, 1, case.height, case.width)).astype(np.float32)
        upstream |= {"alpha": pixels[0], "depth": pixels[1]}
        loss = loss + (result.alpha * torch.from_numpy(pixels[0, 0])).sum()
        loss = loss + (result.depth * torch.from_numpy(pixels[1, 0])).sum()
    loss.backward()
    wanted = wanted_of(case) if semantics == "compat" else (*wanted_of(case), "background", "gamma")
    expected = locally(case, semantics, ("color", "alpha", "depth", "info"), wanted, output_gradients=upstream)
    for name in ("color", "alpha", "depth", "info"):
        assert_same_bits(getattr(result, name).detach().numpy(), expected.outputs[name][0], name)
    given = {**leaves, **optional, "gamma": gamma}
    for name in wanted:
        tensor = given["camera" if name == "cameras" else name]
        assert tensor.grad is not None, name
        reference = expected.gradients[name]
        assert_same_bits(tensor.grad.numpy(), reference[0] if name == "cameras" else reference, name)


@pytest.mark.parametrize("semantics", ["exact", "compat"])
def test_many_views_give_the_bits_of_the_kernels(semantics: Semantics, client: Client) -> None:
    cases = [
        build("views", Cloud(count=400), camera=(0.05 * i, 0, 0, 0, 0, 0.2 * i, 3 + 0.1 * i, 2), gamma=HARD)
        for i in range(9)
    ]
    frame = remotely(client, [remote_camera(case) for case in cases], cases[0], semantics)
    upstream = np.random.default_rng(2).standard_normal((9, 44, 44, 3)).astype(np.float32)
    wanted = wanted_of(cases[0]) if semantics == "compat" else (*wanted_of(cases[0]), "background", "gamma")
    gradients = frame.backward(upstream, wanted=wanted)
    expected = locally(
        cases[0],
        semantics,
        ALL_OUTPUTS,
        wanted,
        cameras=[camera_of(case) for case in cases],
        output_gradients={"color": upstream},
    )
    for name in ALL_OUTPUTS:
        assert_same_bits(frame[name], expected.outputs[name], name)
    for name in wanted:
        assert_same_bits(gradients[name], expected.gradients[name], name)


def test_opencv_cameras_give_the_bits_of_the_kernels(client: Client) -> None:
    case = build("pinholes", Cloud(count=200), gamma=HARD)
    poses = [(80.0 + i, 70.0 - i, 21.0, 23.5, turned(0.1, -0.05 * i, 0.2), [0.1, 0.0, 0.2 * i]) for i in range(3)]
    frame = remotely(client, [Camera.opencv(*pose, 44, 44) for pose in poses], case, "exact")
    upstream = np.random.default_rng(4).standard_normal((3, 44, 44, 3)).astype(np.float32)
    gradients = frame.backward(upstream, wanted=("positions", "cameras"))
    cameras = [spheres.Camera.opencv(*pose, 44, 44) for pose in poses]
    expected = locally(
        case, "exact", ALL_OUTPUTS, ("positions", "cameras"), cameras=cameras, output_gradients={"color": upstream}
    )
    for name in ALL_OUTPUTS:
        assert_same_bits(frame[name], expected.outputs[name], name)
    for name, gradient in expected.gradients.items():
        assert_same_bits(gradients[name], gradient, name)


@pytest.mark.parametrize("semantics", ["exact", "compat"])
def test_backward_without_a_context_gives_the_same_bits(semantics: Semantics, client: Client) -> None:
    case = SCENES[0]
    frame = remotely(client, [remote_camera(case)], case, semantics)
    upstream = case.output_gradient[None]
    with_context = frame.backward(upstream)
    frame.release()
    without = frame.backward(upstream)
    for name in ("positions", "colors", "radii"):
        assert_same_bits(with_context[name], without[name], name)


def test_sparse_gradients_hold_the_touched_rows(client: Client) -> None:
    case = build("sparse", Cloud(count=500, half_width=6.0), gamma=HARD)
    frame = remotely(client, [remote_camera(case)], case, "exact")
    dense = frame.backward(case.output_gradient[None])
    sparse = frame.backward(case.output_gradient[None], sparse=True)
    index = sparse["index"]
    assert 0 < len(index) < 500 and (np.diff(index) > 0).all()
    for name in ("positions", "colors", "radii"):
        assert_same_bits(sparse[name], dense[name][index], name)
        rest = np.delete(dense[name], index, axis=0)
        assert (rest == 0).all()


def test_no_spheres_are_the_background(client: Client) -> None:
    empty = Spheres(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0))
    frame = client.render(
        empty, Camera.pulsar(POSE, 8, 6), max_depth=20.0, background=(0.1, 0.2, 0.3), outputs=ALL_OUTPUTS
    )
    assert_same_bits(frame.color, np.broadcast_to(np.float32([0.1, 0.2, 0.3]), (6, 8, 3)), "color")
    assert (frame.alpha == 0).all() and (frame.depth == -1).all() and (frame.sphere_ids == -1).all()
    gradients = frame.backward(np.ones((6, 8, 3), np.float32), wanted=("positions", "background"))
    assert gradients["positions"].shape == (0, 3)
    np.testing.assert_allclose(gradients["background"], 48)


def test_timings_name_the_kernel_stages(client: Client) -> None:
    case = SCENES[0]
    frame = remotely(client, [remote_camera(case)], case, "exact")
    kernel = {name for name in frame.timings.stages if name.startswith("kernel.")}
    assert {"kernel.setup", "kernel.sort", "kernel.bin", "kernel.blend"} <= kernel
    assert 0 < frame.timings.kernel_ms <= frame.timings.worker_ms <= frame.timings.round_trip_ms + 0.5
