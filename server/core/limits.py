"""Limits on the size of one call, and checks of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from lumigrad.kernels.errors import ArgumentError
from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.v1 import worker_pb2


@dataclass(frozen=True)
class Limits:
    """The largest sizes accepted, checked before anything is allocated. Limits without an option have a default."""

    payload_bytes: int
    pixels: int
    cameras: int
    rows: int
    queue: int
    batch_views: int
    # Primitives of one scene: kernels index the primitives of all views with 31 bits. Most scenes reach a byte limit
    # first.
    primitives: int = 1 << 27
    # Channels of the colours of one scene.
    channels: int = 512
    # Obstacles of one world, over all its environments; also the limit on environments.
    obstacles: int = 1 << 14
    # Voxels of one grid: an obstacle or a requested field.
    voxels: int = 1 << 26

    @staticmethod
    def of(config: Config) -> Limits:
        """Return the limits that a configuration sets."""
        return Limits(
            payload_bytes=config.max_payload_bytes,
            pixels=config.max_pixels,
            cameras=config.max_cameras,
            rows=config.max_rows,
            queue=config.queue_size,
            batch_views=config.batch_views,
        )

    def message(self) -> worker_pb2.Limits:
        """Return the limits as clients receive them."""
        fields = worker_pb2.Limits.DESCRIPTOR.fields_by_name
        return worker_pb2.Limits(**{name: getattr(self, name.removeprefix("max_")) for name in fields})


def require(condition: bool, field: str, limit: str, value: object) -> None:
    """Raise an InvalidArgumentError unless `condition` holds."""
    if not condition:
        raise InvalidArgumentError(field, limit, value)


def require_reply(size: int, limits: Limits, field: str, what: str = "", remedy: str = "") -> None:
    """Raise an InvalidArgumentError if a reply is too long; `what` describes it, `remedy` says how to shorten it."""
    limit = f"{what}at most {limits.payload_bytes} bytes of reply (the worker's --max-payload-mib{remedy})"
    require(size <= limits.payload_bytes, field, limit, size)


def names_of(kind: EnumTypeWrapper) -> dict[int, str]:
    """Return the kernels' names of an enum's values: lower case, without the prefix. Value 0 means the first name."""
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    names = {number: name.removeprefix(prefix).lower() for name, number in kind.items()}
    return {**names, 0: names[1]}


def known(names: Mapping[int, str], value: int, field: str) -> str:
    """Return the name of an enum's value; raises InvalidArgumentError if it has none."""
    require(value in names, field, "a known value", value)
    return names[value]


def check_finite(values: Iterable[float], field: str) -> None:
    """Raise an InvalidArgumentError for NaN or infinity: a single one in a background spreads to the whole image."""
    for index, value in enumerate(values):
        require(isfinite(value), f"{field}[{index}]", "a finite value", value)


@contextmanager
def arguments_of(field: str, elsewhere: Mapping[str, str] | None = None) -> Iterator[None]:
    """Convert a kernel's ArgumentError into an InvalidArgumentError that names the path in the request.

    The path is `elsewhere[argument]`, else `field.argument` for an identifier, else `field` itself.
    """
    try:
        yield
    except ArgumentError as error:
        path = (elsewhere or {}).get(error.argument)
        if path is None and not error.argument.isidentifier():
            raise InvalidArgumentError(field, f"{error.argument}: {error.expected}", error.actual) from None
        raise InvalidArgumentError(path or f"{field}.{error.argument}", error.expected, error.actual) from None


@contextmanager
def renamed(path: Callable[[str], str]) -> Iterator[None]:
    """Convert a kernel's ArgumentError into an InvalidArgumentError whose path is `path(argument)`."""
    try:
        yield
    except ArgumentError as error:
        raise InvalidArgumentError(path(error.argument), error.expected, error.actual) from None
