"""gpu-peers: other libraries that do the same, on the same inputs in the same process.

Results are compared first, and the difference of a peer that does not agree is listed. Then both are timed in two ways,
like with like: calls that are waited for, and calls in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from tests.benchmarks.gaussian_scene import Scene
from tests.gpu import peer_pack
from tests.gpu.cases import SCENES, Splats
from tests.gpu.context import Context
from tests.gpu.device import VARIANTS, Call, Device, Regimes, regimes
from tests.gpu.runner import Case, NotHere, supervise

# Mean differences of values, relative to the largest, caused by blending one Gaussian more or less and by other
# rounding, and by storing Gaussians in 16 bits.
_MEAN_TOLERANCE, _HALF_TOLERANCE = 1e-4, 2e-3
Tensors = Mapping[str, torch.Tensor]


def run(context: Context) -> dict[str, Any]:
    """Links the peers in the pack, then compares and times all that can be imported."""
    packed = {} if context.emulated else peer_pack.install()
    return {**supervise(context, "peers", "tests.gpu.peers"), "packed": packed}


def cases(device: Device) -> list[Case]:
    """One case for each peer; a peer that cannot be imported is reported as not here."""
    return [
        *(Case(f"gsplat, {name}", lambda on, of=made: _gsplat(on, of(on))) for name, made in SCENES.items()),
        Case("torch's fused Adam, 1M Gaussians", _fused_adam),
        Case("PyTorch3D's Pulsar, 100k spheres", lambda on: _pulsar(on, on.size(100_000, 200))),
        Case("PyTorch3D's Pulsar, 1M spheres", lambda on: _pulsar(on, on.size(1_000_000, 200))),
        Case("Warp, 100k points and a mesh of 70k triangles", _warp),
        Case("fused_ssim, 1080p", _fused_ssim),
    ]


def beside(
    device: Device,
    ours: Mapping[str, Call],
    theirs: Mapping[str, Call],
    here: Tensors,
    there: Tensors,
    tolerance: float = _MEAN_TOLERANCE,
) -> dict[str, Any]:
    """The differences of results, the times of calls in both regimes, and the speed-ups of ours; by name."""
    compared = {name: difference(here[name], value) for name, value in there.items()}
    ops = {name: faster(regimes(device, {"ours": call, "theirs": theirs[name]})) for name, call in ours.items()}
    return {
        "agrees": all(value["mean"] <= tolerance for value in compared.values()),
        "tolerance": tolerance,
        "differences": compared,
        "ops": ops,
    }


def faster(times: Mapping[str, Regimes]) -> dict[str, Any]:
    """The times of "ours" and "theirs", and their ratios."""
    ours, theirs = times["ours"], times["theirs"]
    ratios = {
        "latency": theirs.latency_ms / max(ours.latency_ms, 1e-9),
        "throughput": theirs.throughput_ms / max(ours.throughput_ms, 1e-9),
    }
    return {
        "ours": asdict(ours),
        "theirs": asdict(theirs),
        "faster": {name: round(by, 3) for name, by in ratios.items()},
    }


def difference(here: torch.Tensor, there: torch.Tensor) -> dict[str, float]:
    """The mean and the largest difference, relative to the largest value; 1 where it is not a number."""
    here, there = here.detach().double(), there.detach().double().reshape(here.shape)
    scale = float(there.abs().max().clamp_min(1e-30))
    apart = torch.nan_to_num((here - there).abs() / scale, nan=1.0, posinf=1.0)
    return {"mean": float(f"{apart.mean():.3g}"), "largest": float(f"{apart.max():.3g}")}


def _fused_adam(device: Device) -> dict[str, Any]:
    from tests.gpu.cases import BETAS, EPSILON, RATE, Adam

    ours = Adam(device, device.size(1_000_000, 300), activated=False)
    leaves = {name: value.clone().requires_grad_() for name, value in ours.raw.items()}
    for name, leaf in leaves.items():
        leaf.grad = ours.gradients[name].clone()
    optimizer = torch.optim.Adam(leaves.values(), lr=RATE, betas=BETAS, eps=EPSILON, fused=True)
    ours.step(0)
    optimizer.step()
    here, there = ({name: value.clone() for name, value in each.items()} for each in (ours.raw, leaves))
    return beside(device, {"step": ours.step}, {"step": lambda _: optimizer.step()}, here, there)


class _Gsplat:
    """gsplat on the scene and the cameras of a `Splats`."""

    def __init__(self, device: Device, splats: Any) -> None:
        self._rasterization = peer_pack.load("gsplat").rasterization
        made = splats.made
        fx, fy, cx, cy = made.intrinsics
        self._size = made.width, made.height
        self.lens = device.tensor([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])
        self.views = []
        for rotation, translation in splats.poses:
            view = torch.eye(4)
            view[:3, :3], view[:3, 3] = torch.from_numpy(rotation), torch.from_numpy(translation)
            self.views.append(view.to(device.torch))
        self.leaves = {name: device.tensor(value).requires_grad_() for name, value in made.tensors.items()}

    def forward(self, number: int) -> torch.Tensor:
        """The picture [1, H, W, 3]."""
        view = self.views[number % len(self.views)]
        leaf = self.leaves
        picture: torch.Tensor = self._rasterization(
            leaf["means"], leaf["quats"], leaf["scales"], leaf["opacities"], leaf["sh"], view[None], self.lens[None],
            *self._size, sh_degree=3, packed=False,
        )[0]  # fmt: skip
        return picture


def _gsplat(device: Device, made: Scene) -> dict[str, Any]:
    """Compares images with gradients, and images alone, also by the inference path with its 16-bit Gaussians."""
    # gsplat's gradients follow conventions of their own, which these semantics share.
    splats = Splats(device, made, "gsplat")
    peer, ours, upstream = _Gsplat(device, splats), splats.calls(), splats.upstream["color"]
    pictures = [peer.forward(number) for number in range(VARIANTS)]

    def backward(number: int) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(pictures[number % VARIANTS], list(peer.leaves.values()), upstream, retain_graph=True)

    found: Any = ours["backward"](0)
    here = {"picture": splats.picture(0), **{name: found.gradients[name] for name in peer.leaves}}
    there = {"picture": pictures[0], **dict(zip(peer.leaves, backward(0), strict=True))}
    theirs: dict[str, Call] = {
        "forward": peer.forward, "backward": backward, "forward, not retained": torch.no_grad()(peer.forward)
    }  # fmt: skip
    both = beside(device, ours, theirs, here, there)
    try:
        inference = _inference(device, splats, peer)
    except NotHere as error:
        return {**both, "why": f"no inference path: {error}"}
    return {
        "agrees": both["agrees"] and inference["agrees"],
        "tolerance": both["tolerance"],
        "differences": both["differences"] | inference["differences"],
        "ops": both["ops"] | inference["ops"],
    }


def _inference(device: Device, splats: Splats, peer: _Gsplat) -> dict[str, Any]:
    """Compares with HiGS."""
    render = peer_pack.load("gsplat.experimental.render").rasterize_gaussian_inference_scene
    tensors = {name: value.detach() for name, value in peer.leaves.items()}
    packed = peer_pack.load("gsplat.scene").GaussianInferenceScene.from_gaussian_tensors(
        means=tensors["means"], quats=torch.nn.functional.normalize(tensors["quats"], dim=-1), scales=tensors["scales"],
        opacities=tensors["opacities"], colors=tensors["sh"], sh_degree=3, sh_compression="none", id="scene",
    )  # fmt: skip

    @torch.no_grad()
    def theirs(number: int) -> torch.Tensor:
        view = peer.views[number % len(peer.views)]
        frame: torch.Tensor = render(
            packed, viewmat=view, K=peer.lens, width=splats.made.width, height=splats.made.height
        ).frame
        return frame

    name = "picture beside HiGS"
    here, there = {name: splats.picture(0)}, {name: theirs(0)}
    return beside(device, {name: splats.picture}, {name: theirs}, here, there, _HALF_TOLERANCE)


def _fused_ssim(device: Device) -> dict[str, Any]:
    from lumigrad.kernels import training
    from tests.gpu.cases import film_of, pictures_of

    fused_ssim = peer_pack.load("fused_ssim").fused_ssim
    pictures, bytes_of_target_image = pictures_of(device, *film_of(device))
    target_image = bytes_of_target_image / 255
    # The peer's layout has channels first.
    leaves = [picture.permute(0, 3, 1, 2).contiguous().requires_grad_() for picture in pictures]
    other = target_image.permute(0, 3, 1, 2).contiguous()

    def ours(number: int) -> torch.Tensor:
        return training.image_loss(pictures[number % len(pictures)], target_image, l1=0.0, dssim=1.0).gradient

    def theirs(number: int) -> torch.Tensor:
        leaf = leaves[number % len(leaves)]
        return torch.autograd.grad(1.0 - fused_ssim(leaf, other), leaf)[0]

    gradients = {"gradient": ours(0)}, {"gradient": theirs(0).permute(0, 2, 3, 1)}
    return beside(device, {"loss and gradient": ours}, {"loss and gradient": theirs}, *gradients)


def _pulsar(device: Device, count: int) -> dict[str, Any]:
    from tests.benchmarks import scene
    from tests.gpu.cases import film_of, sphere_calls

    renderer_of = peer_pack.load("pytorch3d.renderer.points.pulsar").Renderer
    width, height = film_of(device)
    ours, made = sphere_calls(device, count, width, height, "compat"), scene.scene(count)
    renderer = renderer_of(width, height, count, n_track=scene.N_TRACK).to(device.torch)
    leaves = [device.tensor(value).requires_grad_() for value in (made.positions, made.colors, made.radii)]
    upstream = device.tensor(scene.output_gradient(width, height))
    cameras = [
        torch.tensor([*scene.CAMERA[:3], 0.0, 0.5 * view * torch.pi / 180, 0.0, *scene.CAMERA[6:]], device=device.torch)
        for view in range(VARIANTS)
    ]

    def forward(number: int) -> torch.Tensor:
        background = torch.ones(3, device=device.torch)
        camera = cameras[number % VARIANTS]
        picture: torch.Tensor = renderer(*leaves, camera, scene.GAMMA, scene.MAX_DEPTH, bg_col=background)
        return picture

    pictures = [forward(number) for number in range(VARIANTS)]

    def backward(number: int) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(pictures[number % VARIANTS], leaves, upstream, retain_graph=True)

    done: Any = ours["forward"](0), ours["backward"](0)
    here = {"picture": done[0].outputs["color"][0], **done[1].gradients}
    there = {"picture": pictures[0], **dict(zip(("positions", "colors", "radii"), backward(0), strict=True))}
    return beside(device, ours, {"forward": forward, "backward": backward}, here, there)


def _warp(device: Device) -> dict[str, Any]:
    from lumigrad.kernels import meshes
    from tests.benchmarks.meshes import scene as mesh_scene
    from tests.gpu.cases import rows_of

    if not device.on_host:
        peer_pack.load_compiler()
    peer_pack.load("warp")
    from tests.gpu.warp_queries import Queries

    made = mesh_scene.torus(device.size("70k", "1k"))
    mesh = meshes.Mesh.build(device.tensor(made.vertices), device.tensor(made.faces))
    world, settings = meshes.World([meshes.Instance(mesh)]), meshes.Settings()
    points = [mesh_scene.points(made, kind, device.size(mesh_scene.POINTS, 50)) for kind in ("near", "box")]
    rows = [rows_of(device, each) for each in points]
    peer = Queries(made, points, device.torch)

    def ours(kind: int) -> Callable[[int], Tensors]:
        # Values are not checked, as Warp does not check them.
        asked: dict[str, Any] = {"outputs": ("distance", "closest"), "checked": True}
        return lambda _: meshes.evaluate(rows[kind], world, settings, **asked).outputs

    kinds = {"near": 0, "in the box": 1}
    here = {f"distance {name}": ours(kind)(0)["distance"] for name, kind in kinds.items()}
    there = {f"distance {name}": peer.distances(kind) for name, kind in kinds.items()}
    calls = {f"points {name}": ours(kind) for name, kind in kinds.items()}
    theirs = {f"points {name}": lambda _, kind=kind: peer.distances(kind) for name, kind in kinds.items()}
    return beside(device, calls, theirs, here, there)  # type: ignore[arg-type]
