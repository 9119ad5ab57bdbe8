"""Shots: photographs that are read from their files when they are needed, and their cameras."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.view import View, resized
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.photograph import Photograph, Size, halved_size, picture_size, read_mask, read_picture
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.target_image import TargetImage

# The background is looked for in photographs of at most this width and height.
_BACKGROUND_SIZE = 400


@dataclass(frozen=True, eq=False)
class Shot:
    """A photograph and its camera.

    Attributes:
        name: name of its view.
        camera: its camera.
        read: reads the photograph; nothing else holds its pixels.
        has_mask: whether the photograph has a mask, or tells where the scene is empty.
    """

    name: str
    camera: Camera
    read: Callable[[], Photograph]
    has_mask: bool = False

    @staticmethod
    def of(view: View, largest: int, background: Background) -> Shot:
        """The shot of a view with a photograph, reduced to at most `largest` pixels wide and high."""
        assert view.image is not None
        size = picture_size(view.image, largest)
        has_mask = view.mask is not None or background.is_transparent
        return Shot(view.name, view.resized(*size).camera, partial(_read, view, size, background), has_mask)

    @property
    def halved(self) -> Shot:
        """The same at half the width and height."""
        camera = resized(self.camera, *halved_size((self.camera.width, self.camera.height)))
        return Shot(self.name, camera, lambda: self.read().halved, self.has_mask)

    def target_image(self) -> TargetImage:
        """Reads the target image of a training's view."""
        return self.read().target_image

    @property
    def target_bytes(self) -> int:
        """The size of the target image, bytes."""
        return self.camera.width * self.camera.height * (4 if self.has_mask else 3)


def _read(view: View, size: Size, background: Background) -> Photograph:
    assert view.image is not None
    picture = read_picture(view.image, size)
    mask = None if view.mask is None else read_mask(view.mask, size)
    return Photograph(background.behind(picture), mask, background.opacity(picture))


def shots_of(capture: Capture, largest: int, background: Background | str) -> tuple[list[Shot], Background]:
    """The photographs of a data set, in the order of their views' names; views without one are left out.

    Args:
        capture: the data set.
        largest: largest width and height, pixels; larger photographs are reduced.
        background: the background, or how it is chosen, see `Background.of`.

    Returns:
        The shots, and the background.
    """
    views = sorted((view for view in capture.views if view.image), key=lambda view: view.name)
    if len(views) < 2:
        raise InvalidArgument.of("dataset", f"expected at least two photographs, found {len(views)}")
    if isinstance(background, str):
        # One at a time.
        paths = (view.image for view in views if view.image is not None)
        small = min(largest, _BACKGROUND_SIZE)
        background = Background.of((read_picture(path, picture_size(path, small)) for path in paths), background)
    return [Shot.of(view, largest, background) for view in views], background


def divide(shots: Sequence[Shot], every: int) -> tuple[list[Shot], list[Shot]]:
    """Splits shots into fitted and held-out ones: every `every`-th from the first on; 0: all are in both."""
    if not every:
        return list(shots), list(shots)
    return [shot for index, shot in enumerate(shots) if index % every], list(shots[::every])
