"""What the settings of all engines share: functions that take settings as arguments make them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from lumigrad.client.base.arguments import number

S = TypeVar("S", bound="Settings")


class Settings:
    """Settings of an engine: a dataclass whose fields have the names, the defaults and the checks."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of the settings, in order."""
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    def _check_numbers(self) -> None:
        """Turns what is declared as a float into one; None stays where it may be."""
        for name, kind in self.__annotations__.items():
            value = getattr(self, name)
            if kind == "float" or (kind == "float | None" and value is not None):
                vars(self)[name] = number(name, value)

    @classmethod
    def of(cls: type[S], arguments: Mapping[str, Any], **instead: Any) -> S:
        """The settings among a function's arguments.

        Args:
            arguments: by name, for instance `locals()`; those that are no settings are ignored.
            instead: values that replace those of the arguments.
        """
        given = {**arguments, **instead}
        return cls(**{name: given[name] for name in cls.names() if name in given})
