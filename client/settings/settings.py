"""Common part of settings: names, checks, and copies that are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np

from lumigrad.client.base.arguments import number
from lumigrad.client.base.arrays import to_numpy
from lumigrad.client.errors import InvalidArgument

S = TypeVar("S", bound="Settings")
K = TypeVar("K", bound="RenderSettings")


class Settings:
    """Settings of an engine: a base of frozen dataclasses whose fields define names and defaults."""

    @classmethod
    @cache
    def names(cls) -> tuple[str, ...]:
        """The names of the settings, in order."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    def values(self) -> dict[str, Any]:
        """The settings by their names."""
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
        scenes: what they draw, in words.
        is_open: whether some values follow from the scene and its cameras; `filled` returns settings with them.
        kept: parts of messages that follow from the settings, kept by whoever makes them.
    """

    scenes: ClassVar[str]
    is_open = False

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """An empty dictionary, which lives as long as the settings."""
        return {}

    @classmethod
    def from_fields(cls: type[K], settings: object, given: Mapping[str, Any]) -> K:
        """The settings of a call, from its argument `settings` and the fields that it was given by name.

        Args:
            settings: settings of this kind, or None for the defaults.
            given: fields in their place; those that are None count as not given.

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
    def _unknown(cls, name: str) -> InvalidArgument:
        for other in RenderSettings.__subclasses__():
            if name in other.names():
                text = f"belongs to {other.scenes}, but this scene is {cls.scenes}; leave it out"
                return InvalidArgument.of(name, text)
        return InvalidArgument.of(name, f"expected a field of {cls.__name__}: {', '.join(cls.names())}")


def background_of(value: Any) -> float | tuple[float, ...]:
    """A background as one number for all channels, or as a tuple: of the channels, or of those of each camera."""
    if type(value) in (int, float):
        return float(np.float32(value))
    channels = to_numpy("background", () if value is None else value)
    if channels.dtype.kind not in "fiub":
        text = f"expected a number, or one for each channel, got {value!r}; 0 is black, 1 is white"
        raise InvalidArgument.of("background", text)
    channels = channels.astype(np.float32)
    return float(channels) if channels.ndim == 0 else tuple(channels.ravel().tolist())


def all_channels(background: float, channels: int | None) -> tuple[float, ...]:
    """A background that is one number, for each of the scene's channels."""
    if channels is None:
        raise InvalidArgument.of("background", "expected one value per channel for a handle without its scene")
    return (background,) * channels


# Types of values that do not change.
_CONSTANTS = frozenset((bool, int, float, str, type(None)))


def made(kind: Callable[..., S], given: Mapping[str, Any]) -> S:
    """Checks and makes settings, or returns those that were made of the same constants before."""
    types = tuple(map(type, given.values()))
    if _CONSTANTS.issuperset(types) or all(map(_is_constant, given.values())):
        kept: S = _kept(kind, tuple(given.items()), types)
        return kept
    return kind(**given)


def _is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) is tuple and _CONSTANTS.issuperset(map(type, value)))


@lru_cache(maxsize=256)
def _kept(kind: Callable[..., Any], given: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> Any:
    # Equal values of other types may be wrong: 1 is no True.
    return kind(**dict(given))
