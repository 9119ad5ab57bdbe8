"""Finds where a camera sits in its car, from the frames that a driving simulator logged and pictures of them.

    lumigrad serve --sensorsim scenes
    python examples/refine_extrinsics.py rollout.asl --pictures pictures

The pictures are PNG files, named as `lumigrad sensorsim replay rollout.asl --pictures DIR` names them. The log has the
camera's poses in the local frame; one rigid correction of them all is fitted by gradient descent, and a second one of
the poses at the end of a rolling shutter's frames. Needs Pillow.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from lumigrad.client import Camera, Client
from lumigrad.client.calls.driving import DriveFrame
from lumigrad.client.formats import read_drive_log

Array = npt.NDArray[np.float64]
# Steps of the first iteration: metres and radians. They fall to a hundredth.
_STEPS = np.array([0.015] * 3 + [0.003] * 3)


def main() -> None:
    """Prints the corrections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="AlpaSim's log")
    parser.add_argument("--pictures", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--camera", default="", help="logical id of the camera; all frames without it are left out")
    parser.add_argument("--iterations", type=int, default=60)
    arguments = parser.parse_args()
    with Client() as client:
        frames = _frames(client, arguments.log, arguments.pictures, arguments.camera)
        start, end = refine(client, frames, arguments.iterations)
    for name, value in (("camera", start), ("end of the frame", end)):
        moved, turned = value[:3], np.degrees(value[3:])
        print(f"{name}: moved {_shown(moved)} m, turned {_shown(turned)} degrees, in the camera's frame")


def refine(client: Client, frames: list[tuple[DriveFrame, Array]], iterations: int) -> tuple[Array, Array]:
    """Returns corrections [6] of the camera's pose and its pose at the end: x right, y down, z forward, then rotations.

    Args:
        client: a client of a worker with the scenes.
        frames: frames, and colours [H, W, 3] of what the camera saw, 0 to 1.
        iterations: steps of Adam.
    """
    values, mean, square = (np.zeros((2, 6)) for _ in range(3))
    for iteration in range(1, iterations + 1):
        gradient, loss = np.zeros((2, 6)), 0.0
        for frame, seen in frames:
            rendered = client.render(frame.scene, moved(frame.camera, *values), **frame.settings, retain=True)
            error = rendered.color - seen
            loss += float(np.square(error).mean()) / len(frames)
            poses = rendered.backward(color=2 * error / error.size, wanted=("cameras",))
            # World to camera is the inverse of what is corrected.
            gradient -= np.stack([poses.camera_pose + poses.camera_pose_end, poses.camera_pose_end])
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        step = mean / (1 - 0.9**iteration) / (np.sqrt(square / (1 - 0.99**iteration)) + 1e-12)
        values -= 0.01 ** (iteration / iterations) * _STEPS * step
        if iteration in (1, iterations):
            print(f"iteration {iteration}: mean squared error {loss:.6f}")
    return values[0], values[1]


def moved(camera: Camera, correction: Array, at_end: Array) -> Camera:
    """Returns the camera with its poses corrected, those at the end of the frame twice."""
    model = camera.model
    start = _inverse_motion(correction) @ _matrix(model.rotation, model.translation)
    poses = {"rotation": start[:3, :3], "translation": start[:3, 3]}
    if model.end_rotation is not None:
        both = _inverse_motion(at_end) @ _inverse_motion(correction)
        end = both @ _matrix(model.end_rotation, model.end_translation)
        poses |= {"end_rotation": end[:3, :3], "end_translation": end[:3, 3]}
    return replace(camera, model=replace(model, **poses))


def _frames(client: Client, log: Path, pictures: Path, camera: str) -> list[tuple[DriveFrame, Array]]:
    requests = [request for requests in read_drive_log(log) for request in requests]
    frames = []
    for number, request in enumerate(requests):
        name = request.camera_intrinsics.logical_id
        # As `lumigrad sensorsim replay` names them.
        path = pictures / f"{number:06d}-{(name or 'camera').replace('/', '-')}.png"
        if path.is_file() and camera in ("", name):
            seen = np.asarray(Image.open(path).convert("RGB"), np.float64) / 255
            frames.append((client.drive_frame(request), seen))
    if not frames:
        of_camera = f" of the camera {camera}" if camera else ""
        raise SystemExit(
            f"{pictures}: expected PNG pictures{of_camera}, named as `lumigrad sensorsim replay` names those of {log}"
        )
    return frames


def _matrix(rotation: Array, translation: Array) -> Array:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, translation
    return matrix


def _inverse_motion(twist: Array) -> Array:
    """Returns [4, 4], the inverse of a small motion [6], of translation and rotation."""
    x, y, z = -twist[3:]
    rotation = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    whole = np.zeros((4, 4))
    whole[:3, :3], whole[:3, 3] = rotation, -twist[:3]
    # The exponential: a small step of it, many times.
    return np.linalg.matrix_power(np.eye(4) + whole / 2**24, 2**24)


def _shown(values: Array) -> str:
    return " ".join(f"{value:+.4f}" for value in values)


if __name__ == "__main__":
    main()
