"""Docstrings of the public API say what arguments are, what is raised, and give an example, which runs."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad import client as api
from lumigrad.client import Client, Gaussians, Spheres, World, aio, datasets, formats, pictures, robots
from lumigrad.client import torch as operators
from lumigrad.kernels import gaussians as gaussian_kernels
from lumigrad.kernels import meshes as mesh_kernels
from lumigrad.kernels import spheres as sphere_kernels
from support.files.robot_files import ZOO, ZOO_SPHERES, write_urdf
from support.gaussians.clouds import post
from support.meshes.shapes import torus

PACKAGES = ("", ".torch", ".jax", ".training", ".robots", ".formats", ".datasets", ".pictures", ".aio")
KERNELS = {"gaussians": gaussian_kernels, "spheres": sphere_kernels, "meshes": mesh_kernels}
# Functions that take or make messages of the protocol or parts of a call: programs do not call them.
INNER = re.compile(r".*\.(of|names|values|filled|message|set_result|send_step|receive_step|settle|at)|Trainer\.apply")
# One line is enough for these: they raise no errors of ours, and their names say the rest.
PLAIN = {
    *("Robot.collision_meshes", "StoredScene.gaussians", "StoredScene.invalid", "StoredScene.keep"),
    *("StoredScene.of_degree", "StoredScene.reordered"),
}
QUIET = {
    *("AsyncClient.close", "AsyncRenderStream.close", "AsyncTrainer.close", "Client.close", "RenderStream.close"),
    "Distances.release",
    *("levels_of", "ramp_colors"),
}
# Values that programs make.
MADE = (
    *("AdaptiveDensity", "AsyncClient", "Camera", "Capture", "Client", "Cuboid", "FThetaLens", "FisheyeLens"),
    *("GaussianSettings", "Gaussians", "Loss", "Mcmc", "Mesh", "Obstacle", "OrthographicLens", "PinholeLens", "Rate"),
    *("Robot", "Spheres", "SpinningLidar", "TargetImage", "Transform", "UnscentedTransform", "VoxelGrid", "Windshield"),
    "World",
)
# Examples that need files or a worker of other tests, or that begin what another example ends.
NOT_RUN = {
    *("Client.drive_frame", "Client.drive_pictures", "read_drive_log", "Robot.load", "Robot.at", "Robot.spheres"),
    *("Robot.link_poses", "Capture.load", "Client.trainer", "Client.resume_trainer", "Client", "Camera.inria"),
}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions and methods by their names; those of JAX begin with "jax."."""
    seen = set()
    for package in PACKAGES:
        module = importlib.import_module(f"lumigrad.client{package}")
        for name in module.__all__:
            value = getattr(module, name)
            members = vars(value) if inspect.isclass(value) else {}
            members = {k: v for base in value.__mro__ for k, v in vars(base).items()} if members else {"": value}
            for member, raw in members.items():
                found = raw.__func__ if isinstance(raw, staticmethod) else raw
                if not inspect.isfunction(found) or member.startswith("_") or found in seen:
                    continue
                if package == ".aio" and hasattr(found, "__wrapped__"):
                    # A coroutine has the docstring of the method of `Client` that it wraps.
                    continue
                if "lumigrad" in found.__module__:
                    seen.add(found)
                    prefix = "jax." if package == ".jax" else ""
                    yield prefix + (f"{name}.{member}" if member else name), found


def public() -> dict[str, Any]:
    """All public names of the packages; those of `lumigrad.client` itself take precedence."""
    modules = [importlib.import_module(f"lumigrad.client{package}") for package in reversed(PACKAGES)]
    return {name: getattr(module, name) for module in modules for name in module.__all__}


VALUES = public()
FUNCTIONS = {name: it for name, it in functions() if name not in PLAIN and not INNER.fullmatch(name)}


def section(documented: Any, title: str) -> str:
    """The text of a section of a docstring; empty if there is none."""
    text = inspect.getdoc(documented) or ""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", text + "\n", re.M)
    return textwrap.dedent(found[1]) if found else ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_are_complete(name: str) -> None:
    function = FUNCTIONS[name]
    told = re.findall(r"^(\w+): ", section(function, "Args"), re.M)
    parameters = [it for it in inspect.signature(function).parameters if it not in ("self", "cls")]
    if name.startswith("jax."):
        # Functions of JAX refer to the arguments of torch's.
        told = re.findall(r"^(\w+): ", section(FUNCTIONS[name.removeprefix("jax.")], "Args"), re.M)
        parameters = [it for it in parameters if it in told or it not in ("outputs",)]
    assert not set(parameters) - set(told), "Args"
    assert section(function, "Raises") or name in QUIET, "Raises"
    assert section(function, "Example"), "Example"


@pytest.mark.parametrize("name", MADE)
def test_values_have_examples(name: str) -> None:
    assert section(VALUES[name], "Example")


@pytest.fixture
def names(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that examples use, in a temporary folder, since some write files."""
    monkeypatch.chdir(tmp_path)
    from lumigrad.client import jax as jax_functions

    shape = torus(12, 8)
    cloud, camera = post(), api.Camera.look_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), width=64, height=48)
    spheres = Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.ones(1))
    world = World([api.Cuboid((1, 1, 1))])
    cameras = [camera, api.Camera.look_at((0.5, 0.0, -4.0), (0.0, 0.0, 0.0), width=64, height=48)]
    photographs = [np.full((48, 64, 3), 0.5, np.float32)] * 2
    Gaussians.save(cloud, tmp_path / "scene.ply")
    api.Mesh(shape.vertices, shape.faces).save(tmp_path / "part.stl")
    spheres.save(tmp_path / "points.ply")
    write_urdf(tmp_path / "robot.urdf", ZOO)
    (tmp_path / "robot.yml").write_text(json.dumps({"collision_spheres": ZOO_SPHERES}))
    views = tuple(datasets.View(str(k), it) for k, it in enumerate(cameras))
    return {
        **{
            name: getattr(module, name)
            for module in (aio, pictures, robots, datasets, formats, operators, api)
            for name in module.__all__
        },
        **{"np": np, "torch": torch, "asyncio": asyncio, "jax_functions": jax_functions, "folder": tmp_path},
        **{"client": client, "target": client.target, "scene": client.put(cloud), "gaussians": cloud},
        **{"camera": camera, "cameras": cameras, "spheres": spheres, "world": world, "photographs": photographs},
        **{"mesh": api.Mesh(shape.vertices, shape.faces), "vertices": shape.vertices, "faces": shape.faces},
        **{"capture": datasets.Capture(views), "frame": client.render(cloud, camera)},
        **{"found": client.query(world, [[0, 0, 1, 0.1]])},
        "items": [(cloud, camera)],
    }


TRAINED = {name for name in FUNCTIONS if name.startswith(("Trainer.", "Batch.", "LateResult."))}
RUN = [name for name in (*FUNCTIONS, *MADE) if name not in NOT_RUN | TRAINED]


def run(documented: Any, names: dict[str, Any]) -> None:
    exec(compile(section(documented, "Example"), documented.__qualname__, "exec"), names)


def test_examples_run(names: dict[str, Any]) -> None:
    failed = {}
    for name in RUN:
        try:
            # Some examples update or delete the scene.
            scene = names["client"].put(names["gaussians"])
            run(FUNCTIONS.get(name) or VALUES[name], {**names, "scene": scene})
        except Exception as error:
            failed[name] = repr(error)
    assert not failed, failed


def test_examples_of_trainings_run(names: dict[str, Any]) -> None:
    # A scene other than that of the other examples, one of which leaves a training on the worker.
    names["gaussians"] = dataclasses.replace(names["gaussians"], opacities=0.9 * names["gaussians"].opacities)
    names["scene"] = names["client"].put(names["gaussians"])
    run(Client.trainer, {**names, "print": lambda *_: None})
    scene = names["client"].put(names["gaussians"])  # Examples publish what they train.
    with names["client"].trainer(scene, names["cameras"], names["photographs"]) as trainer:
        for name in sorted(TRAINED - {"Trainer.close", "Trainer.snapshot", "Batch.apply", "LateResult.result"}):
            run(FUNCTIONS[name], {**names, "trainer": trainer, "print": lambda *_: None})
        batch = next(trainer.batches(1))
        run(FUNCTIONS["Batch.apply"], values := {**names, "trainer": trainer, "batch": batch})
        run(FUNCTIONS["LateResult.result"], {"late": values["result"]})


def test_examples_of_kernels_run(names: dict[str, Any]) -> None:
    tensors = {name: torch.from_numpy(np.array(it)) for name, it in names["gaussians"].tensors.items()}
    of_spheres = {name: torch.from_numpy(np.array(it)) for name, it in names["spheres"].tensors.items()}
    mesh = {"vertices": torch.from_numpy(np.array(names["vertices"], np.float32))}
    mesh |= {"faces": torch.from_numpy(np.array(names["faces"], np.int32))}
    for name, given in {"gaussians": tensors, "spheres": of_spheres, "meshes": mesh}.items():
        module = KERNELS[name]
        values = {"np": np, "torch": torch, **given, name: module}
        for function in (module.evaluate if name == "meshes" else module.forward, module.backward):
            run(function, values)
