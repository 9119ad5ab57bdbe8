"""Shots: cameras with photographs that are read from their files on demand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from lumigrad.client.base.counts import counted
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.files import portable
from lumigrad.client.datasets.view import Split, View, resized
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.matching import Matched, say_orientations
from lumigrad.client.fitting.photograph import Photograph, halved_size
from lumigrad.client.fitting.picture_file import Size
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.target_image import TargetImage

# The background is determined from photographs reduced to at most this width and height.
_BACKGROUND_SIZE = 400
# By default, one of this many photographs is held out.
_HOLD_OUT = 8


@dataclass(frozen=True, eq=False)
class Shot:
    """A photograph and its camera.

    Attributes:
        name: the name of its view.
        camera: its camera.
        read: reads the photograph, whose pixels are not kept.
        has_mask: whether the photograph has a mask or an opacity.
    """

    name: str
    camera: Camera
    read: Callable[[], Photograph]
    has_mask: bool = False

    @staticmethod
    def of(matched: Matched, largest: int, background: Background) -> Shot:
        """Returns the shot of a view, with the photograph reduced to a width and height of at most `largest` pixels."""
        view, size = matched.view, matched.reduced_size(largest)
        has_mask = view.mask is not None or background.is_transparent
        return Shot(view.name, view.resized(*size).camera, partial(_read, matched, size, background), has_mask)

    @property
    def halved(self) -> Shot:
        """The shot at half the width and height."""
        camera = resized(self.camera, *halved_size((self.camera.width, self.camera.height)))
        return Shot(self.name, camera, lambda: self.read().halved, self.has_mask)

    def target_image(self, weighted: dict[str, float] | None = None) -> TargetImage:
        """Reads the target image of a training's view; adds the share that its mask weights to `weighted` by name."""
        photograph = self.read()
        if weighted is not None and photograph.weighted:
            weighted[self.name] = photograph.weighted
        return photograph.target_image

    @property
    def target_bytes(self) -> int:
        """The size of the target image, bytes."""
        return self.camera.width * self.camera.height * (4 if self.has_mask else 3)


def _read(matched: Matched, size: Size, background: Background) -> Photograph:
    picture = matched.picture(size)
    return Photograph(background.behind(picture), matched.mask(size), background.opacity(picture))


def shots_of(capture: Capture, largest: int, background: Background | str) -> tuple[list[Shot], Background]:
    """Returns the photographs of a data set, ordered by the names of their views; omits views without photographs.

    Args:
        capture: the data set.
        largest: maximum width and height, pixels; larger photographs are reduced.
        background: the background, or a choice for `Background.of`.

    Returns:
        The shots, and the background.
    """
    found = [Matched.of(view) for view in _with_photographs(capture)]
    say_orientations(found)
    if isinstance(background, str):
        # Pictures are read one at a time.
        small = min(largest, _BACKGROUND_SIZE)
        background = Background.of((each.picture(each.reduced_size(small)) for each in found), background)
    return [Shot.of(each, largest, background) for each in found], background


def _with_photographs(capture: Capture) -> list[View]:
    """Returns the views with photographs, ordered by name; warns about missing photographs.

    Raises:
        InvalidArgument: masks are missing, or there are fewer than two photographs.
    """
    views = sorted((view for view in capture.views if view.image), key=lambda view: view.name)
    if len(views) < 2:
        raise InvalidArgument.of("dataset", f"expected at least two photographs, found {len(views)}")
    if missing := [view.file or view.name for view in capture.views if view.image is None]:
        were, these = ("was", "this view is") if len(missing) == 1 else ("were", "these views are")
        said = f"{len(missing)} of {len(capture)} photographs {were} not found, the first is {missing[0]}"
        warnings.warn(f"{said}; {these} left out", stacklevel=3)
    masks = [view.mask for view in views if view.mask is not None]
    if missing_masks := [mask for mask in masks if not mask.is_file()]:
        were = "was" if len(missing_masks) == 1 else "were"
        said = f"{len(missing_masks)} of {len(masks)} masks {were} not found, the first is {missing_masks[0]}"
        raise InvalidArgument.of("dataset", f"{said}; remove what names them to fit without masks")
    return _named_once(views)


def _named_once(views: Sequence[View]) -> list[View]:
    """Returns the views without those that repeat the photograph and camera of another, which would count twice.

    Raises:
        InvalidArgument: two views of one photograph have different cameras, or different names of its file.
    """
    of_files: dict[Path | None, View] = {}
    for view in views:
        other = of_files.setdefault(view.image, view)
        if PurePosixPath(portable(other.file)) != PurePosixPath(portable(view.file)):
            said = f"{view.image} would be the photograph of {other.name} and {view.name}"
            raise InvalidArgument.of("dataset", f"{said}; expected a file for each, in folders like the data set's")
        if not _is_same(other.camera, view.camera):
            said = f"{view.file or view.image} is named twice, by {other.name} and {view.name}, with different cameras"
            raise InvalidArgument.of("dataset", f"{said}; expected one camera of each photograph")
    once = list(of_files.values())
    if len(once) < len(views):
        first = next(view for view in views if view not in once)
        repeated = len(views) - len(once)
        are = "is" if repeated == 1 else "are"
        said = f"{counted(repeated, 'photographs')} {are} named twice, the first is {first.file or first.image}"
        warnings.warn(f"{said}; each counts once", stacklevel=4)
    return once


def _is_same(one: Camera, other: Camera) -> bool:
    """Whether two cameras have the same size and nearly the same position and direction."""
    if one is other:
        return True
    if (one.width, one.height) != (other.width, other.height):
        return False
    nearby = 1e-6 * max(1.0, float(np.abs(one.view_matrix).max()))
    return bool(np.allclose(one.view_matrix, other.view_matrix, rtol=0, atol=nearby))


def divide(shots: Sequence[Shot], every: int | None, split: Split | None = None) -> tuple[list[Shot], list[Shot]]:
    """Splits shots into fitted and held-out ones.

    Args:
        shots: the shots.
        every: hold out every `every`-th shot, beginning with the first; 0: all shots are in both lists; None: use
            `split`, or every eighth shot without one.
        split: the shots that the data set holds out; None: it has no such list.
    """
    if every is None and split is not None:
        fitted = [shot for shot in shots if shot.name in split.fitted]
        if not fitted:
            text = "expected photographs to fit, and its lists of photographs hold out all; pass --hold-out N"
            raise InvalidArgument.of("dataset", text)
        return fitted, [shot for shot in shots if shot.name in split.held_out] or fitted
    every = _HOLD_OUT if every is None else every
    if not every:
        return list(shots), list(shots)
    return [shot for index, shot in enumerate(shots) if index % every], list(shots[::every])


def are_held_out(scored: Sequence[Shot], fitted: Sequence[Shot]) -> bool:
    """Returns whether the scored shots were held out, which `divide` may not do: then they are the fitted ones."""
    return {shot.name for shot in scored}.isdisjoint(shot.name for shot in fitted)
