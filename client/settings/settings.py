"""The common base of settings: names, checks, and a cache of instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, TypeVar

import numpy as np

from lumigrad.client.base.arguments import number
from lumigrad.client.base.arrays import Array, to_numpy
from lumigrad.client.base.cautions import warn_of_bytes
from lumigrad.client.errors import InvalidArgument

S = TypeVar("S", bound="Settings")
K = TypeVar("K", bound="RenderSettings")


class Settings:
    """Settings of an engine: a base of frozen dataclasses whose fields define names and defaults."""

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """Returns the names of the settings, in order."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    def values(self) -> dict[str, Any]:
        """Returns the settings by name."""
        own = vars(self)
        return {name: own[name] for name in self.names()}

    def _check_numbers(self) -> None:
        """Converts fields declared as floats to float; None is kept where it is allowed."""
        for name, kind in self.__annotations__.items():
            value = getattr(self, name)
            if kind == "float" or (kind == "float | None" and value is not None):
                vars(self)[name] = number(name, value)

    @classmethod
    def of(cls: type[S], arguments: Mapping[str, Any], **instead: Any) -> S:
        """Returns the settings among a function's arguments, e.g. `locals()`; `instead` replaces some of them."""
        given = {**arguments, **instead}
        return made(cls, {name: given[name] for name in cls.names() if name in given})


class RenderSettings(Settings):
    """Settings of a rendering.

    Attributes:
        scenes: the kind of scene, in words.
        is_open: whether some defaults depend on the scene and its cameras; `filled` returns settings that have them.
        kept: cache of parts of messages that follow from the settings.
    """

    scenes: ClassVar[str]
    is_open = False

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """A cache, initially empty, that lives as long as the settings."""
        return {}

    @classmethod
    def from_fields(cls: type[K], settings: object, given: Mapping[str, Any]) -> K:
        """Returns the settings of a call, from its argument `settings` and fields passed by name.

        Args:
            settings: settings of this kind, or None for the defaults.
            given: fields that replace those of `settings`; None counts as not passed.

        Raises:
            InvalidArgument: the settings, or a field, belong to another kind of scene, or there is no such field.
        """
        if settings is not None and not isinstance(settings, cls):
            raise InvalidArgument.of(
                "settings", f"expected {cls.__name__} for {cls.scenes}, got {type(settings).__name__}"
            )
        changes = {name: value for name, value in given.items() if value is not None} if given else given
        if changes and not changes.keys() <= set(cls.names()):
            raise cls._unknown(next(name for name in changes if name not in cls.names()))
        if settings is None:
            return made(cls, changes)
        return made(cls, {**settings.values(), **changes}) if changes else settings

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those of some arguments that are fields of these settings; `from_fields` refuses the others."""
        return {name: value for name, value in given.items() if name in cls.names()}

    @classmethod
    def _unknown(cls, name: str) -> InvalidArgument:
        for other in RenderSettings.__subclasses__():
            if name in other.names():
                text = f"belongs to {other.scenes}, but this scene is {cls.scenes}; leave it out"
                return InvalidArgument.of(name, text)
        return InvalidArgument.of(name, f"expected a field of {cls.__name__}: {', '.join(cls.names())}")


def background_of(value: Any) -> float | tuple[float, ...]:
    """Converts a background to one number for all channels, or to a flat tuple."""
    channels = _background(value)
    return channels if isinstance(channels, float) else tuple(channels.ravel().tolist())


def backgrounds_of(value: Any) -> float | tuple[float, ...] | tuple[tuple[float, ...], ...]:
    """Converts a background like `background_of`, but those of several cameras to a tuple for each."""
    channels = _background(value)
    if isinstance(channels, float):
        return channels
    # Columns [C, 1] are rows of one channel, not the channels of one row.
    rows = channels.squeeze() if channels.ndim != 2 or len(channels) == 1 else channels
    if rows.ndim > 2:
        raise InvalidArgument.of("background", f"expected [D] or [C, D], got shape {list(channels.shape)}")
    return tuple(map(tuple, rows.tolist())) if rows.ndim == 2 else tuple(rows.ravel().tolist())


def of_each_camera(rows: tuple[tuple[float, ...], ...], cameras: int, channels: int | None) -> tuple[float, ...]:
    """Returns the backgrounds of several cameras one after the other; `channels` is None if unknown."""
    shape, expected = [len(rows), len(rows[0])], [cameras, channels or len(rows[0])]
    if shape != expected:
        raise InvalidArgument.of("background", f"expected shape {expected}, a row for each camera, got {shape}")
    return tuple(chain.from_iterable(rows))


def _background(value: Any) -> float | Array:
    if type(value) is float:
        return float(np.float32(value))
    channels = to_numpy("background", () if value is None else value)
    if channels.dtype.kind not in "fiub":
        text = f"expected a number, or one for each channel, got {value!r}; 0 is black, 1 is white"
        raise InvalidArgument.of("background", text)
    warn_of_bytes("background", channels)
    channels = channels.astype(np.float32)
    return float(channels) if channels.ndim == 0 else channels


def all_channels(background: float, channels: int | None) -> tuple[float, ...]:
    """Repeats a background that is one number for each of the scene's channels."""
    if channels is None:
        raise InvalidArgument.of("background", "expected one value per channel for a handle without its scene")
    return (background,) * channels


# Types of immutable values.
_CONSTANTS = frozenset((bool, int, float, str, type(None)))


def made(kind: Callable[..., S], given: Mapping[str, Any]) -> S:
    """Makes settings and checks them, or returns cached ones that were made from the same constants."""
    types = tuple(map(type, given.values()))
    if _CONSTANTS.issuperset(types) or all(map(_is_constant, given.values())):
        kept: S = _kept(kind, tuple(given.items()), types)
        return kept
    return kind(**given)


def _is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) is tuple and _CONSTANTS.issuperset(map(type, value)))


@lru_cache(maxsize=256)
def _kept(kind: Callable[..., Any], given: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> Any:
    # The types are part of the cache's key, because 1 == True but only one of them may be valid.
    return kind(**dict(given))
