"""The page of `lumigrad view`: a scene that the worker renders, a robot among obstacles, or both."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np
import viser

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.counts import counted
from lumigrad.client.client import Client
from lumigrad.client.commands import aim, scene_file
from lumigrad.client.commands.aim import Extent, enclosing_ball
from lumigrad.client.commands.options import AXES, connect
from lumigrad.client.commands.shots import check_camera_file
from lumigrad.client.commands.surroundings import world_of
from lumigrad.client.datasets import Capture
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.world_files import read_obstacles
from lumigrad.client.robots import Robot
from lumigrad.client.robots.motion import joint_values
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.rotations import IDENTITY, unit
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.world import World
from lumigrad.client.viewer.collisions import Collisions
from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.obstacles import Deviation, corners, show_world
from lumigrad.client.viewer.painter import Painter
from lumigrad.client.viewer.session import Session
from lumigrad.client.viewer.viewer import Viewer

# A typical window's aspect ratio, which determines the distance at which a scene fills it.
_WIDTH, _HEIGHT = 1280, 720
# The initial margin around a robot, relative to its size.
_AROUND = 0.35
# Opacity of obstacles with which a mesh is compared.
_OPACITY = 0.25


@contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Viewer]:
    """Opens the page that the options describe, for the duration of a `with` block."""
    world = world_of(arguments) if arguments.meshes else None
    robot = _robot(arguments)
    for name in ("compare", "pose", "scale") if world is None else ():
        if getattr(arguments, name) is not None:
            raise InvalidArgument.of(name, "expected with --world of the obstacles; leave it out")
    if world is None and (arguments.scene is None or robot is not None):
        raise InvalidArgument.of("world", "expected SCENE, or --world FILE, which a robot needs, or both")
    trajectory = None if robot is None else joint_values(robot, arguments.joints).reshape(-1, robot.dof)
    file = None if arguments.scene is None else scene_file.read(arguments)
    capture = capture_of(arguments)
    outline = _outline(world, robot, trajectory) if file is None else file.outline
    first = first_view(arguments, outline, capture, None if file else AXES["z"])
    with connect(arguments) as client, ExitStack() as stack:
        stored = None if file is None else file.put(client)
        viewer = stack.enter_context(Viewer(arguments.host, arguments.port, first))
        viewer.show_headline(_title(arguments), _facts(client, file, world, robot))
        if world is not None:
            show_world(viewer.server, world, None if arguments.compare is None else _OPACITY)
            if arguments.compare is not None:
                compared = read_obstacles(arguments.compare, scale=arguments.scale or 1.0)
                Deviation(viewer.server, client, world, compared)
            if robot is not None and trajectory is not None:
                stack.enter_context(closing(Collisions(viewer.server, client, world, robot, trajectory)))
        if file is not None and stored is not None:
            settings, kind = dict(file.settings), "gaussians" if isinstance(file.outline, Gaussians) else "spheres"
            # The worker's default.
            background = settings.pop("background") or (1.0 if kind == "spheres" else 0.0,) * 3
            # Crop boxes cut the client's copy, which scenes with levels do not have.
            whole = None if isinstance(file.scene, GaussianLevels) else file.scene
            views = viewpoints(capture)

            def begin(browser: viser.ClientHandle) -> Session:
                painter = Painter(client, lambda: stored, kind, settings)
                return Session(
                    browser, painter, first, views, background,
                    title=arguments.scene.stem, scene=whole, target_s=1 / arguments.fps, is_solid=world is not None,
                )  # fmt: skip

            viewer.serve(begin)
        yield viewer


def _robot(arguments: argparse.Namespace) -> Robot | None:
    if (arguments.urdf is None) != (arguments.spheres is None):
        missing, given = ("urdf", "spheres") if arguments.urdf is None else ("spheres", "urdf")
        raise InvalidArgument.of(missing, f"expected with --{given}: a robot is a URDF and the spheres of its links")
    if arguments.urdf is None:
        for name in ("joints", "base"):
            if getattr(arguments, name) is not None:
                raise InvalidArgument.of(name, "expected with --urdf and --spheres of a robot; leave it out")
        return None
    return Robot.load(arguments.urdf, arguments.spheres, base=IDENTITY if arguments.base is None else arguments.base)


def _outline(world: World | None, robot: Robot | None, trajectory: Float64 | None) -> Spheres:
    """Returns spheres around the initially visible objects: the robot and its surroundings, or all obstacles."""
    assert world is not None
    if robot is None or trajectory is None:
        points, radii = corners(world), 0.0
    else:
        spheres = robot.spheres(trajectory)[..., :3].reshape(-1, 3)
        points, radii = spheres, _AROUND * float(np.linalg.norm(np.ptp(spheres, axis=0)))
    return Spheres(points, np.ones((len(points), 3)), np.full(len(points), max(radii, 1e-3)))


def _title(arguments: argparse.Namespace) -> str:
    paths = [*([arguments.scene] if arguments.scene else []), *(arguments.meshes or []), arguments.urdf]
    return ", ".join(path.name for path in paths if path is not None)


def _facts(
    client: Client, file: scene_file.SceneFile | None, world: World | None, robot: Robot | None
) -> dict[str, str]:
    facts = {}
    if file is not None:
        facts["Gaussians" if isinstance(file.outline, Gaussians) else "spheres"] = f"{file.count:,}"
    if world is not None:
        facts["obstacles"] = f"{len(world):,}"
    if robot is not None:
        facts["robot"] = f"{counted(robot.dof, 'joints')}, {counted(len(robot), 'spheres')}"
    return {**facts, "worker": client.target}


def capture_of(arguments: argparse.Namespace) -> Capture | None:
    """Returns the data set that --camera names; None if it names none."""
    named = arguments.camera
    capture = named.capture(arguments.scene) if isinstance(named, aim.CameraFile) else None
    if capture is None and arguments.view is not None:
        raise InvalidArgument.of("view", "expected with --camera of a data set; leave it out")
    return capture


def viewpoints(capture: Capture | None) -> dict[str, Viewpoint]:
    """Returns the viewpoints of a data set's cameras, by name; empty without a data set."""
    return {} if capture is None else {view.name: Viewpoint.of(view.camera, capture.focus) for view in capture.views}


def first_view(
    arguments: argparse.Namespace,
    scene: Spheres | Gaussians,
    capture: Capture | None,
    up: tuple[float, float, float] | None = None,
) -> Viewpoint:
    """Returns the initial viewpoint; its `up` is the orbit's axis, by default the scene's usual up direction."""
    if capture is not None:
        if arguments.fov is not None:
            raise InvalidArgument.of("fov", "is defined by the cameras of the data set; leave it out")
        first = Viewpoint.of(capture.view(arguments.view or 0).camera, capture.focus)
        return replace(first, up=capture.up if arguments.up is None else _axis(arguments.up))
    check_camera_file(arguments.camera, fov=arguments.fov)
    saved = None if arguments.scene is None else SceneView.load(arguments.scene)
    given = {"width": _WIDTH, "height": _HEIGHT, "fov_degrees": arguments.fov, "up": arguments.up or up}
    aimed, options = aim.resolved(arguments.camera, scene, saved, given)
    axis = _axis(options.up)
    if saved is not None:
        center = np.asarray(saved.target, np.float64)
    else:
        center = Extent.of(scene, axis).center if isinstance(scene, Gaussians) else enclosing_ball(scene)[0]
    return replace(Viewpoint.of(aimed.camera(scene, options), center), up=axis)


def _axis(up: tuple[float, float, float]) -> np.ndarray:
    return unit("up", np.asarray(up, np.float64))
