"""Writers of data sets: the same views in the formats of Inria, nerfstudio and COLMAP."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lumigrad.client.datasets import Capture

MODELS = (
    *("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE", "FULL_OPENCV", "FOV"),
    *("SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "THIN_PRISM_FISHEYE", "RAD_TAN_THIN_PRISM_FISHEYE"),
    *("SIMPLE_DIVISION", "DIVISION", "SIMPLE_FISHEYE", "FISHEYE", "EUCM", "EQUIRECTANGULAR", "number 18"),
)

SIZE, FOCAL = (640, 480), (500.0, 510.0)
TOP = {"camera_model": "PINHOLE", "w": 640, "h": 480, "fl_x": 500, "fl_y": 510, "cx": 320, "cy": 240}


@dataclass
class Shot:
    """A photograph: its file, and its camera's rotation in the world (columns: right, down, forward) and position."""

    file: str
    axes: np.ndarray
    place: np.ndarray

    @property
    def quaternion(self) -> tuple[float, float, float, float]:
        """(w, x, y, z) of the rotation from the world to the camera."""
        to_camera = self.axes.T
        w = math.sqrt(max(1 + np.trace(to_camera), 1e-12)) / 2
        x, y, z = ((to_camera[b, c] - to_camera[c, b]) / (4 * w) for b, c in ((2, 1), (0, 2), (1, 0)))
        return w, x, y, z

    @property
    def translation(self) -> np.ndarray:
        return -self.axes.T @ self.place


def shots(count: int = 5, seed: int = 0) -> list[Shot]:
    """Cameras around the origin that look at it, y down."""
    generator = np.random.default_rng(seed)
    result = []
    for k in range(count):
        angle = 0.4 * k - 1
        place = np.array([4 * math.sin(angle), generator.uniform(-1, 0), -4 * math.cos(angle)])
        forward = -place / np.linalg.norm(place)
        right = np.cross([0, 1, 0], forward)
        right /= np.linalg.norm(right)
        result.append(Shot(f"photo_{k}.jpg", np.stack([right, np.cross(forward, right), forward], axis=1), place))
    return result


def write_cameras_json(path: Path, taken: list[Shot], width: int, height: int, focal: tuple[float, float]) -> None:
    lens = {"width": width, "height": height, "fx": focal[0], "fy": focal[1]}
    poses = [{"position": shot.place.tolist(), "rotation": shot.axes.tolist()} for shot in taken]
    entries = [{"id": k, "img_name": Path(taken[k].file).stem, **pose, **lens} for k, pose in enumerate(poses)]
    path.write_text(json.dumps(entries))


def transforms(taken: list[Shot], **top: object) -> dict[str, object]:
    """The content of a transforms.json: OpenGL's axes, y up and looking along -z."""
    frames = []
    for shot in taken:
        matrix = np.eye(4)
        matrix[:3] = np.concatenate([shot.axes * (1, -1, -1), shot.place[:, None]], axis=1)
        frames.append({"file_path": f"images/{shot.file}", "transform_matrix": matrix.tolist()})
    return {**top, "frames": frames}


def write_colmap(
    folder: Path, taken: list[Shot], model: str, parameters: list[float], size: tuple[int, int], *, binary: bool
) -> None:
    """Writes cameras, images (in reverse order) and points3D, with 2D points and tracks that readers skip."""
    folder.mkdir(parents=True, exist_ok=True)
    points = [((0.5 * k, -k, 2.0), (k * 10, 128, 255)) for k in range(7)]
    if binary:
        head = struct.pack("<QiiQQ", 1, 3, MODELS.index(model), *size)
        (folder / "cameras.bin").write_bytes(head + struct.pack(f"<{len(parameters)}d", *parameters))
        images = struct.pack("<Q", len(taken))
        for k, shot in reversed(list(enumerate(taken))):
            images += struct.pack("<i7di", k + 1, *shot.quaternion, *shot.translation, 3)
            images += shot.file.encode() + b"\0" + struct.pack("<Q", k) + bytes(24 * k)
        (folder / "images.bin").write_bytes(images)
        content = struct.pack("<Q", len(points))
        for k, (place, color) in enumerate(points):
            content += struct.pack("<Q3d3BdQ", k, *place, *color, 0.5, k) + bytes(8 * k)
        (folder / "points3D.bin").write_bytes(content)
        return
    numbers = " ".join(map(repr, parameters))
    (folder / "cameras.txt").write_text(f"# Camera list\n\n3 {model} {size[0]} {size[1]} {numbers}\n")
    lines = ["# Image list with two lines of data per image:"]
    for k, shot in reversed(list(enumerate(taken))):
        pose = " ".join(repr(float(value)) for value in (*shot.quaternion, *shot.translation))
        lines += [f"{k + 1} {pose} 3 {shot.file}", " ".join(["1.5 2.5 -1"] * k)]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{k} {x} {y} {z} {r} {g} {b} 0.5 1 2" for k, ((x, y, z), (r, g, b)) in enumerate(points)]
    (folder / "points3D.txt").write_text("\n".join(["# 3D point list", *rows, ""]))


def write_json(path: Path, values: object) -> Path:
    path.write_text(json.dumps(values))
    return path


def assert_same(capture: Capture, taken: list[Shot] | None = None) -> None:
    """Assert that a capture has the cameras of `shots()`, or of those that were taken, with SIZE and FOCAL."""
    taken = shots() if taken is None else taken
    assert [view.name for view in capture.views] == [Path(shot.file).stem for shot in taken]
    for view, shot in zip(capture.views, taken, strict=True):
        model = view.camera.model
        np.testing.assert_allclose(model.rotation, shot.axes.T, atol=1e-9)
        np.testing.assert_allclose(model.eye, shot.place, atol=1e-9)
        assert (view.camera.width, view.camera.height) == SIZE
        assert (model.fx, model.fy, model.cx, model.cy) == (*FOCAL, 320, 240)
