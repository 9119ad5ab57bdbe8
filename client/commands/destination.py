"""Images of `render`: what they show, and the files and videos that they go to."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TypeVar

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.replacing import replaced
from lumigrad.client.commands.aim import depth_range
from lumigrad.client.datasets import View
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.pictures import check_suffix, levels_of, ramp_colors, write_image
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.image_format import ImageFormats
from lumigrad.client.shell.exits import naming
from lumigrad.client.shell.parser import written_folder, written_path
from lumigrad.client.shell.stages import bars, say_progress
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.video import VideoWriter

T = TypeVar("T")
R = TypeVar("R")

# Images in progress: one is computed, one is written, and one is in transit.
_IN_FLIGHT = 3


def in_order(job: Callable[[T], R], items: Iterable[T], stopping: Event | None = None) -> Iterator[R]:
    """Yields the results of a job for each item, in the items' order, computed a few at a time in threads.

    The first error ends the iteration; pending jobs are dropped. Those in progress are waited for: long ones may look
    at `stopping`, which is set when no more results are wanted.
    """
    pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="render")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            if len(waiting) == _IN_FLIGHT:
                yield waiting.popleft().result()
            waiting.append(pool.submit(job, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        if stopping is not None:
            stopping.set()
        pool.shutdown(wait=True, cancel_futures=True)


def with_progress(results: Iterable[R], count: int, stage: str = "rendering", unit: str = "frame") -> Iterable[R]:
    """Adds a progress bar on standard error, or lines where there are no bars; nothing for a single result."""
    if count < 2:
        return results
    bar = bars()
    if bar is None:
        return _with_lines(results, count, stage, unit)
    shown: Iterable[R] = bar(results, total=count, desc=stage, unit=unit, file=sys.stderr)
    return shown


def _with_lines(results: Iterable[R], count: int, stage: str, unit: str) -> Iterator[R]:
    for number, result in enumerate(results):
        say_progress(stage, number, number + 1, count, unit)
        yield result


NAMES = ("color", "depth", "expected_depth", "median_depth", "alpha", "normals", "surface_normals")


@dataclass(frozen=True)
class Content:
    """Output, and its conversion to an image.

    Attributes:
        name: one of `NAMES`.
        nearest: the depth shown lightest, scene units; one for all images, so that videos do not flicker.
        farthest: the depth shown darkest.
    """

    name: str
    nearest: float = 0.0
    farthest: float = 1.0

    @staticmethod
    def of(name: str, scene: Spheres | Gaussians, shots: Sequence[View]) -> Content:
        """Returns the content for the images of a scene."""
        if not name.endswith("depth"):
            return Content(name)
        gaussians = isinstance(scene, Gaussians)
        points = scene.means.reshape(-1, 3) if isinstance(scene, Gaussians) else scene.positions
        opacities = scene.opacities.reshape(-1) if gaussians and scene.opacities is not None else None
        return Content(name, *depth_range(points, opacities, [shot.camera for shot in shots]))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that an image needs."""
        return (self.name, "alpha") if self.name.endswith("depth") else (self.name,)

    @property
    def image_formats(self) -> ImageFormats:
        """The smallest formats that keep 8 bits per channel."""
        return {self.name: "uint8"} if self.name in ("color", "alpha") else {}

    def picture(self, frame: Frame) -> Array:
        """Returns [H, W] or [H, W, K], values from 0 to 1 or levels in uint8.

        Near depths are light; pixels without depth are black. Components of normals from -1 to 1 become 0 to 1.
        """
        values = frame[self.name]
        if self.name.endswith("normals"):
            return np.asarray(0.5 + 0.5 * values, np.float32).clip(0.0, 1.0)
        if not self.name.endswith("depth"):
            return values
        closeness = (self.farthest - values) / (self.farthest - self.nearest)
        # Spheres have depth -1 where nothing is hit.
        share = np.where(values < 0, 0.0, frame.alpha)
        return np.asarray(ramp_colors(closeness) * share[..., None], np.float32)


# Pictures per second of a video.
FPS = 30.0
_SUFFIXES = (".png", ".jpg", ".npy", ".npz", ".mp4")


class Files:
    """Writes images in order, one file for each. Use it in a `with` block.

    Attributes:
        outputs: the outputs to render.
        image_formats: the formats of the outputs.
    """

    outputs: tuple[str, ...]
    image_formats: ImageFormats

    def __init__(self, path: Path, content: Content, everything: tuple[str, ...]) -> None:
        """Writes to the file `path`, or without suffix to .png files in a folder of that name.

        Args:
            path: a .png, .jpg, .npy or .npz file, or a folder, which is created.
            content: the content of images; an .npz has all outputs.
            everything: names of all outputs, for an .npz.
        """
        self._path, self._content = path, content
        self.outputs = everything if path.suffix == ".npz" else content.outputs
        if path.suffix == ".npy":
            self.outputs = (content.name,)
        self.image_formats = {} if path.suffix in (".npy", ".npz") else content.image_formats
        if path.suffix == ".jpg" and content.name == "color":
            self.image_formats = {"color": "jpeg"}
        if not path.suffix:
            path.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def encode(self, shot: View, frame: Frame) -> Array | None:
        """Does the work that does not depend on the order, in any thread.

        Writes the file, or returns the argument of `add`.
        """
        path = self._path if self._path.suffix else self._path / f"{shot.name}.png"
        with naming(path), replaced(path) as new:
            self._write(new, frame)
        return None

    def _write(self, path: Path, frame: Frame) -> None:
        if path.suffix == ".npz":
            np.savez(path, **dict(frame))  # type: ignore[arg-type]
        elif path.suffix == ".npy":
            np.save(path, frame[self._content.name])
        elif isinstance(file := frame.encoded.get(self._content.name), bytes):
            path.write_bytes(file)
        else:
            write_image(path, self._content.picture(frame))

    def add(self, encoded: Array | None) -> None:
        """Appends the next image, if all images go to one file."""

    def close(self) -> None:
        """Completes the file."""


class Video(Files):
    """An .mp4 file."""

    def __init__(self, path: Path, content: Content, width: int, height: int, frames_per_second: float) -> None:
        """Starts the file, for images of one size."""
        self._content = content
        self.outputs, self.image_formats = content.outputs, content.image_formats
        self._writer = VideoWriter(path, width, height, frames_per_second)

    def encode(self, shot: View, frame: Frame) -> Array:
        """Converts to uint8 [H, W, 3]."""
        levels = levels_of(self._content.picture(frame))
        levels = levels[..., None] if levels.ndim == 2 else levels
        return np.broadcast_to(levels, (*levels.shape[:2], 3)) if levels.shape[2] == 1 else levels

    def add(self, encoded: Array | None) -> None:
        """Appends the image."""
        if encoded is not None:
            self._writer.add(encoded)

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)

    def close(self) -> None:
        """Completes the file."""
        self._writer.close()


def destination_of(
    path: Path, content: Content, shots: Sequence[View], channels: int, everything: tuple[str, ...], fps: float | None
) -> Files:
    """Returns the destination for `path`; raises InvalidArgument if it cannot store these images.

    Without `fps`, videos have `FPS`.
    """
    _check_photographs(path, shots)
    if fps is not None and path.suffix != ".mp4":
        raise InvalidArgument.of("fps", f"expected with an .mp4 file, not with {path}; leave it out")
    if path.suffix and path.suffix != ".mp4":
        if len(shots) > 1:
            raise InvalidArgument.of(
                "output",
                f"expected a folder or an .mp4 file for {len(shots)} pictures, got {path}; "
                "--view chooses one of a data set",
            )
        check_suffix(path, channels if content.name == "color" else 3)
        return Files(path, content, everything)
    if content.name == "color" and channels not in (1, 3):
        raise InvalidArgument.of("output", f"expected 1 or 3 channels, got {channels}; write .npy or .npz")
    if not path.suffix:
        check_suffix(path / ".png", 3)
        return Files(path, content, everything)
    width, height = shots[0].camera.width, shots[0].camera.height
    if any((shot.camera.width, shot.camera.height) != (width, height) for shot in shots):
        raise InvalidArgument.of("size", "expected WxH for a video, because the views differ in size")
    return Video(path, content, width, height, fps or FPS)


def _check_photographs(path: Path, shots: Sequence[View]) -> None:
    """Raises InvalidArgument if images would replace the photographs of the shots."""
    for shot in shots:
        written = path if path.suffix else path / f"{shot.name}.png"
        if shot.image is not None and written.exists() and written.samefile(shot.image):
            text = f"expected another place than that of the photographs, got {written}, which is one of them"
            raise InvalidArgument.of("output", text)


def output_path(text: str) -> Path:
    """Parses -o: a file of a known type, or a folder."""
    path = written_path(text)
    if path.suffix not in _SUFFIXES and (path.suffix and not text.endswith("/") and not path.is_dir()):
        raise argparse.ArgumentTypeError(
            f"expected a file that ends in {', '.join(_SUFFIXES)}, or a folder such as frames/, got {text}"
        )
    return path if path.suffix and not text.endswith("/") else written_folder(text)
