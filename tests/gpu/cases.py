"""The cases of gpu-bench: each engine at the sizes of its benchmarks, with inputs that change from round to round."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import gaussians, meshes, spheres, training
from tests.benchmarks import captured_scenes, gaussian_scene, scene
from tests.benchmarks.captured_scenes import NoSuchScene
from tests.benchmarks.density_kernels import Benchmark
from tests.benchmarks.meshes import scene as mesh_scene
from tests.gpu import oracles
from tests.gpu.context import PACK
from tests.gpu.device import IN_A_ROW, VARIANTS, Call, Device, in_turns
from tests.gpu.runner import Case, NotHere
from tests.gpu.server_cases import server_cases

COLUMNS = {"means": 3, "quats": 4, "scales": 3, "opacities": 1, "sh": 48}
ACTIVATIONS = {"scales": "exp", "opacities": "sigmoid"}
Tensors = Mapping[str, torch.Tensor]
BETAS, EPSILON, RATE = (0.9, 0.999), 1e-15, 1e-3


def cases(device: Device) -> list[Case]:
    """The cases, the most important first, since time may run out."""
    film, many = film_of(device), device.size(1_000_000, 300)
    found = [Case("results beside the CPU's", _oracles)]
    for name, made in SCENES.items():
        found.append(Case(f"gaussians, {name}", lambda on, of=made: Splats(on, of(on)).measured()))
    found += [
        Case("gaussians 1M, many after few", lambda on: _jump(on, gaussian_scene.scene(many, *film))),
        Case("training step 1M", lambda on: _measured(on, step_calls(on, many, *film))),
    ]
    for (name, count), semantics in itertools.product((("100k", 100_000), ("1M", 1_000_000)), ("exact", "compat")):
        arguments = device.size(count, 200), *film, semantics
        found.append(Case(f"spheres {name} {semantics}", lambda on, of=arguments: _spheres(on, sphere_calls(on, *of))))
    for name in ("70k", "1M"):
        found.append(Case(f"mesh {name}", lambda on, ring=name: _measured(on, mesh_calls(on, on.size(ring, "1k")))))
    return [
        *found,
        Case("image loss", lambda on: _measured(on, loss_calls(on, *film))),
        Case("adam 1M", lambda on: _measured(on, {"adam": Adam(on, many).step})),
        Case("density control 1M", lambda on: _density(on, many)),
        *server_cases(device),
        Case("gaussians, 5M", lambda on: Splats(on, standard(on, 5_000_000)).measured()),
    ]


def film_of(device: Device) -> tuple[int, int]:
    """Width and height of images."""
    return device.size(1920, 64), device.size(1080, 48)


def _measured(device: Device, calls: dict[str, Call], **options: Any) -> dict[str, Any]:
    return {"ops": {name: dataclasses.asdict(times) for name, times in in_turns(device, calls, **options).items()}}


def stages_of(device: Device, calls: Mapping[str, Call]) -> dict[str, Any]:
    """Medians of stages over passes that are all queued before the first is waited for.

    If the device had to wait for each kernel, a stage would take as long as the host needs to queue it.
    """
    count = device.size(IN_A_ROW, 2)
    made: list[tuple[str, Any]] = [(name, call(number)) for name, call in calls.items() for number in range(count)]
    device.synchronize()
    taken: dict[str, list[float]] = {}
    for name, one in made:
        for stage, milliseconds in one.stages().items():
            taken.setdefault(f"{name} {stage}", []).append(milliseconds)
    return {"stages_ms": {name: round(statistics.median(times), 4) for name, times in taken.items()}}


def _oracles(device: Device) -> dict[str, Any]:
    file = PACK / "oracles.npz"
    if not file.is_file():
        raise NotHere(f"no results of the CPU ({file.name}): run make gpu-pack")
    with np.load(file) as archive:
        expected = dict(archive)
    wrong = oracles.compare(oracles.results(device), expected)
    if wrong:
        raise ValueError(f"shares of values that differ from the CPU's: {wrong}")
    return {"compared": len(expected)}


def standard(device: Device, count: int) -> gaussian_scene.Scene:
    """The standard scene."""
    return gaussian_scene.scene(device.size(count, 300), *film_of(device))


def _captured(made: Callable[..., gaussian_scene.Scene], **options: Any) -> gaussian_scene.Scene:
    try:
        return made(**options)
    except NoSuchScene as error:
        raise NotHere(str(error)) from None


def _trained(device: Device) -> gaussian_scene.Scene:
    """The trained scene at twice its size, with harmonics of degree 3, most of which are 0, as peers take them."""
    try:
        (path,) = captured_scenes.paths_of(gaussian_scene.TRAINED)
    except NoSuchScene as error:
        raise NotHere(str(error)) from None
    made = gaussian_scene.trained(path)
    every, larger = device.size(1, 500), device.size(2.0, 0.1)
    some: Any = {name: value[::every] for name, value in made.tensors.items()}
    some["sh"] = np.pad(some["sh"], ((0, 0), (0, 15), (0, 0)))
    fx, fy, cx, cy = (larger * number for number in made.intrinsics)
    film = {"width": round(larger * made.width), "height": round(larger * made.height)}
    return dataclasses.replace(made, **some, intrinsics=(fx, fy, cx, cy), **film)


# Scenes by name; captures need LUMIGRAD_TEST_DATA.
SCENES: dict[str, Callable[[Device], gaussian_scene.Scene]] = {
    "1M": lambda on: standard(on, 1_000_000),
    "garden x9": lambda on: _captured(
        captured_scenes.garden, across=3, every=on.size(1, 4000), width=on.size(1920, 64)
    ),
    "fitted capture": lambda on: _captured(captured_scenes.fitted, every=on.size(1, 1000), width=on.size(1920, 64)),
    "trained person": _trained,
    "100k": lambda on: standard(on, 100_000),
}


class Splats:
    """Gaussians, and cameras that are moved sideways a little."""

    def __init__(self, device: Device, made: gaussian_scene.Scene, semantics: str = "exact") -> None:
        self.device, self.made = device, made
        self.gaussians = gaussians.Gaussians(**{name: device.tensor(value) for name, value in made.tensors.items()})
        self.settings = gaussians.Settings(semantics=semantics)
        step = 0.01 * float(np.linalg.norm(made.translation))
        self.poses = [
            (made.rotation, made.translation + np.array([index * step, 0, 0], np.float32)) for index in range(VARIANTS)
        ]
        self.cameras = [self.camera(*pose) for pose in self.poses]
        self.upstream = {"color": device.tensor(gaussian_scene.output_gradient(made.width, made.height))}

    def camera(self, rotation: Any, translation: Any) -> gaussians.Camera:
        """A camera at another pose."""
        return gaussians.Camera.opencv(*self.made.intrinsics, rotation, translation, self.made.width, self.made.height)

    def forward(self, number: int) -> gaussians.Forward:
        """The forward pass as a trainer calls it."""
        return self.of(self.cameras[number % VARIANTS])

    def of(self, camera: gaussians.Camera) -> gaussians.Forward:
        """The forward pass of one view."""
        return gaussians.forward(self.gaussians, [camera], self.settings, retain=True)

    def picture(self, number: int) -> torch.Tensor:
        """The image, without a state for backward."""
        camera = self.cameras[number % VARIANTS]
        return gaussians.forward(self.gaussians, [camera], self.settings).outputs["color"]

    def calls(self) -> dict[str, Call]:
        """Forward, backward, and forward of an image alone."""
        states = [self.forward(number).state for number in range(VARIANTS)]

        def backward(number: int) -> gaussians.Backward:
            state = states[number % VARIANTS]
            return gaussians.backward(state, self.upstream)

        return {"forward": self.forward, "backward": backward, "forward, not retained": self.picture}

    def measured(self) -> dict[str, Any]:
        """Times of the calls, and of the stages of both passes."""
        calls = self.calls()
        both = {name: calls[name] for name in ("forward", "backward")}
        return {**_measured(self.device, calls), **stages_of(self.device, both)}


def _jump(device: Device, made: gaussian_scene.Scene) -> dict[str, Any]:
    """Times a camera that sees few Gaussians, then one that sees all and suddenly needs room for all their pairs."""
    splats = Splats(device, made)
    cosine, sine = np.cos(np.deg2rad(80.0)), np.sin(np.deg2rad(80.0))
    turn = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]], np.float32)
    few = splats.camera(turn @ made.rotation, turn @ made.translation)
    alone = _measured(device, {"many alone": splats.forward})
    turns = _measured(device, {"few": lambda _: splats.of(few), "many after few": splats.forward})
    return {"ops": {**alone["ops"], **turns["ops"]}}


def sphere_calls(device: Device, count: int, width: int, height: int, semantics: str) -> dict[str, Call]:
    """Forward and backward of views that are turned by half a degree."""
    made = scene.scene(count)
    inputs = [device.tensor(value) for value in (made.positions, made.colors, made.radii)]
    turns = [(*scene.CAMERA[:3], 0.0, np.deg2rad(0.5 * view), 0.0, *scene.CAMERA[6:]) for view in range(VARIANTS)]
    cameras = [spheres.Camera.pulsar(turn, width, height) for turn in turns]
    settings = spheres.Settings(scene.GAMMA, scene.MAX_DEPTH, semantics=semantics, n_track=scene.N_TRACK)
    upstream = {"color": device.tensor(scene.output_gradient(width, height))[None]}

    def forward(number: int) -> spheres.Forward:
        return spheres.forward(*inputs, [cameras[number % VARIANTS]], settings, retain=True)

    states = [forward(number).state for number in range(VARIANTS)]

    def backward(number: int) -> spheres.Backward:
        state = states[number % VARIANTS]
        return spheres.backward(state, upstream, ("positions", "colors", "radii"))

    return {"forward": forward, "backward": backward}


def _spheres(device: Device, calls: dict[str, Call]) -> dict[str, Any]:
    return {**_measured(device, calls), **stages_of(device, calls)}


def mesh_calls(device: Device, ring: str) -> dict[str, Call]:
    """Queries of points, the cost of a robot's trajectories, and the same faces with other vertices."""
    made = mesh_scene.torus(ring)
    vertices, faces = device.tensor(made.vertices), device.tensor(made.faces)
    mesh = meshes.Mesh.build(vertices, faces)
    world = meshes.World([meshes.Instance(mesh)])
    count = device.size(mesh_scene.POINTS, 50)
    near, box = (
        [rows_of(device, points) for points in np.split(mesh_scene.points(made, kind, VARIANTS * count), VARIANTS)]
        for kind in ("near", "box")
    )
    robot = device.tensor(mesh_scene.trajectories()[: device.size(mesh_scene.BATCHES, 1), : device.size(32, 2)])
    # The motion is along the axis of the torus, so that as many spheres are near.
    aside = [robot + robot.new_tensor([0.0, 0.0, 0.01 * number, 0.0]) for number in range(VARIANTS)]
    still, outputs = meshes.Settings(), ("distance", "normal", "closest", "face")
    swept = meshes.Settings(
        semantics="curobo", activation_distance=0.025, max_distance=0.1, sweep=True, samples=4, speed_metric=True,
        time_step_s=0.02,
    )  # fmt: skip
    moved = [vertices * (1.0 + 0.01 * number) for number in range(VARIANTS)]

    def query(points: list[torch.Tensor]) -> Call:
        return lambda number: meshes.evaluate(points[number % VARIANTS], world, still, outputs=outputs, checked=True)

    return {
        f"{count} points near": query(near),
        f"{count} points in the box": query(box),
        f"cost, swept, {robot[..., 0].numel()} spheres": lambda number: meshes.evaluate(
            aside[number % VARIANTS], world, swept, outputs=("cost", "gradient"), checked=True
        ),
        "moved vertices": lambda number: mesh.moved(moved[number % VARIANTS]),
    }


def rows_of(device: Device, points: Any) -> torch.Tensor:
    """Points as spheres of radius 0, [1, 1, N, 4]."""
    rows = torch.zeros(1, 1, len(points), 4)
    rows[0, 0, :, :3] = torch.from_numpy(points)
    return rows.to(device.torch)


def loss_calls(device: Device, width: int, height: int) -> dict[str, Call]:
    """0.8 L1 + 0.2 (1 - SSIM) and its gradient."""
    pictures, target_image = pictures_of(device, width, height)
    return {"loss and gradient": lambda number: training.image_loss(pictures[number % VARIANTS], target_image)}


def pictures_of(device: Device, width: int, height: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Some images [1, H, W, 3], and a target image in bytes."""
    random = torch.Generator().manual_seed(0)
    pictures = [torch.rand(1, height, width, 3, generator=random).to(device.torch) for _ in range(VARIANTS)]
    target_image = torch.randint(0, 256, (1, height, width, 3), generator=random, dtype=torch.uint8)
    return pictures, target_image.to(device.torch)


class Adam:
    """Gaussians of degree 3 in training, whose gradients change from step to step; `gradients` are the first."""

    def __init__(self, device: Device, count: int, *, activated: bool = True) -> None:
        random = torch.Generator().manual_seed(0)
        self.raw = {n: torch.randn(count, width, generator=random).to(device.torch) for n, width in COLUMNS.items()}
        self.gradients = {name: 1e-3 * value for name, value in self.raw.items()}
        moments = {name: (torch.zeros_like(raw), torch.zeros_like(raw)) for name, raw in self.raw.items()}
        values = {name: torch.empty_like(self.raw[name]) for name in (ACTIVATIONS if activated else ())}
        self._parameters = [
            adam_parameters(
                self.raw, {name: each.roll(number, 0) for name, each in self.gradients.items()}, moments, values
            )
            for number in range(VARIANTS)
        ]

    def step(self, number: int) -> object:
        """Makes one step."""
        parameters = self._parameters[number % VARIANTS]
        return training.adam_step(parameters, step=number + 1, betas=BETAS, epsilon=EPSILON)


def adam_parameters(
    raw: Tensors, gradients: Mapping[str, training.Gradient], moments: Mapping[str, tuple[Any, Any]], values: Tensors
) -> dict[str, training.Parameter]:
    """Parameters for Adam; those in `values` have an activation, which is written there."""
    return {
        name: training.Parameter(
            raw=raw[name], gradient=gradients[name], first=first, second=second, learning_rate=RATE,
            activation=ACTIVATIONS[name] if name in values else "identity", value=values.get(name),
        )
        for name, (first, second) in moments.items()
    }  # fmt: skip


def step_calls(device: Device, count: int, width: int, height: int) -> dict[str, Call]:
    """A whole step of training: forward, loss, backward and Adam, on values that stay on the device.

    As in a worker, the gradient of harmonics is that of colours where the engine provides that.
    """
    splats = Splats(device, gaussian_scene.scene(count, width, height))
    values = {name: getattr(splats.gaussians, name) for name in COLUMNS}
    raw = {**values, "scales": values["scales"].log(), "opacities": values["opacities"].clamp(1e-4, 1 - 1e-4).logit()}
    degree = round(values["sh"].shape[1] ** 0.5) - 1
    _, target_image = pictures_of(device, width, height)
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in raw.items()}

    def step(number: int) -> object:
        done = splats.forward(number)
        loss = training.image_loss(done.outputs["color"], target_image)
        by_factors = gaussians.gives_sh_factors(done.state)
        wanted = ["sh_factors" if name == "sh" and by_factors else name for name in COLUMNS]
        gradients: dict[str, training.Gradient] = dict(
            gaussians.backward(done.state, {"color": loss.gradient}, wanted).gradients
        )
        if by_factors:
            gradients["sh"] = training.HarmonicsGradient(gradients.pop("sh_factors"), degree)  # type: ignore[arg-type]
        activated = {name: values[name] for name in ACTIVATIONS}
        parameters = adam_parameters(raw, gradients, moments, activated)
        return training.adam_step(parameters, step=number + 1, betas=BETAS, epsilon=EPSILON)

    return {"step": step}


def _density(device: Device, count: int) -> dict[str, Any]:
    """Measures density control beside equivalent sequences of torch operations."""
    calls: dict[str, Call] = {}
    prepare: dict[str, Call] = {}
    for name, (before, ours, theirs) in Benchmark(count, device.torch).operations().items():
        for who, operation in ((name, ours), (f"{name}, by torch", theirs)):
            calls[who], prepare[who] = operation, lambda _, before=before: before()  # type: ignore[assignment]
    return _measured(device, calls, prepare=prepare, seconds=15.0)
