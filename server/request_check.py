"""Requests are checked against their bounds as bytes, before protobuf makes objects of them.

A message of 4 MiB has room for two million.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import SERVICE_NAMES, methods
from lumigrad.server.bounds import BOUNDS, needs_bound
from lumigrad.server.errors import InvalidArgumentError
from lumigrad.server.limits import Limits

# Of all fields of a message, with those of the messages in it: more than a training's start has whose views fill what
# gRPC takes as one message.
_MOST_FIELDS = 1 << 19
# Of the fields of one message that do not repeat, and of those that are unknown: an encoder writes each once.
_MOST_SINGLE = 1024
_MOST_VARINT_BYTES = 10
_LARGEST = (1 << 64) - 1
_LENGTH_DELIMITED = 2
# Kinds of fields that begin with their value as a varint, or with its length.
_MEASURED = (0, _LENGTH_DELIMITED)
# Bytes of values by kind.
_FIXED = {1: 8, 5: 4}
# Bytes of a number in a packed field; of others it varies.
_PACKED = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}


class RequestCheck:
    """Checks requests against the bounds of a worker with some limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # By the full names of messages, and then by the numbers of their fields.
        self._rules: dict[str, dict[int, _Rule]] = {}
        # Before any call: a thread must not find the rules of a message half made.
        for service in SERVICE_NAMES:
            for method in methods(service):
                self._of(method.request)

    def check(self, kind: Descriptor, raw: bytes) -> None:
        """Refuse the bytes of a message of which any field is over its bound."""
        try:
            _Scan(raw, kind.name).check(0, len(raw), self._rules[kind.full_name])
        except IndexError:
            raise _malformed(kind.name, raw) from None

    def _of(self, kind: Descriptor) -> dict[int, _Rule]:
        found = self._rules.get(kind.full_name)
        if found is None:
            found = self._rules[kind.full_name] = {}
            found.update({field.number: self._rule(kind, field) for field in kind.fields})
        return found

    def _rule(self, kind: Descriptor, field: FieldDescriptor) -> _Rule:
        bound = BOUNDS[f"{kind.name}.{field.name}"] if needs_bound(field) else _LARGEST
        return _Rule(
            name=field.name,
            most=getattr(self._limits, bound) if isinstance(bound, str) else bound,
            is_repeated=bool(field.is_repeated),
            is_packable=bool(field.is_repeated)
            and field.message_type is None
            and field.cpp_type != FieldDescriptor.CPPTYPE_STRING,
            width=_PACKED.get(field.type, 0),
            inner=None if field.message_type is None else self._of(field.message_type),
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a field may be."""

    name: str
    most: int
    is_repeated: bool
    # Whether its numbers may stand together in one value.
    is_packable: bool
    # Bytes of each of them; 0 where that varies.
    width: int
    # For the fields of the message in it.
    inner: dict[int, _Rule] | None


class _Scan:
    """Counts and measures the fields in the bytes of one message; runs out of them with an IndexError."""

    def __init__(self, raw: bytes, name: str) -> None:
        self._raw = raw
        self._name = name
        self._left = _MOST_FIELDS

    def check(self, position: int, stop: int, rules: dict[int, _Rule]) -> None:
        """Raise an error at the first field between two places that is over its bound."""
        counts: dict[int, int] = {}
        while position < stop:
            number, kind, value, position = self._field(position)
            end = position + value if kind == _LENGTH_DELIMITED else position
            if end > stop:
                raise _malformed(self._name, self._raw)
            rule = rules.get(number)
            if rule is None or not rule.is_repeated:
                # All of these are counted together.
                number = 0
            more = 1 if rule is None or not number or kind != _LENGTH_DELIMITED else self._entries(rule, position, end)
            counts[number] = count = counts.get(number, 0) + more
            self._left -= 1
            if self._left < 0 or count > (rule.most if rule is not None and number else _MOST_SINGLE):
                raise self._too_many(rule if number else None, count)
            if rule is not None:
                self._look_into(rule, kind, value, position, count - 1)
            position = end

    def _look_into(self, rule: _Rule, kind: int, value: int, position: int, index: int) -> None:
        if rule.inner is None:
            if value > rule.most and not rule.is_repeated:
                unit = " bytes" if kind == _LENGTH_DELIMITED or rule.name.endswith("_bytes") else ""
                limit = f"at most {rule.most}{unit}"
                raise InvalidArgumentError(rule.name, limit, value)
        elif kind == _LENGTH_DELIMITED:
            try:
                self.check(position, position + value, rule.inner)
            except InvalidArgumentError as error:
                where = f"{rule.name}[{index}]" if rule.is_repeated else rule.name
                raise InvalidArgumentError(f"{where}.{error.field}", error.limit, error.value) from None

    def _field(self, position: int) -> tuple[int, int, int, int]:
        """Number and kind of a field, its value or how long that is, and where the value begins, or what is next."""
        tag, position = self._varint(position)
        kind = tag & 7
        if kind in _MEASURED:
            value, position = self._varint(position)
            return tag >> 3, kind, value, position
        if kind not in _FIXED:
            raise _malformed(self._name, self._raw)
        return tag >> 3, kind, 0, position + _FIXED[kind]

    def _varint(self, position: int) -> tuple[int, int]:
        value = self._raw[position]
        if value < 0x80:
            return value, position + 1
        value = 0
        for index in range(_MOST_VARINT_BYTES):
            byte = self._raw[position + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value & _LARGEST, position + index + 1
        raise _malformed(self._name, self._raw)

    def _entries(self, rule: _Rule, start: int, stop: int) -> int:
        """How many entries of a repeated field stand in one value of bytes: numbers may stand together."""
        if not rule.is_packable:
            return 1
        if rule.width or stop - start <= rule.most:
            return (stop - start) // (rule.width or 1)
        # Each ends with a byte below 128.
        return sum(byte < 0x80 for byte in self._raw[start:stop])

    def _too_many(self, rule: _Rule | None, count: int) -> InvalidArgumentError:
        if rule is not None and count > rule.most:
            return InvalidArgumentError(rule.name, f"at most {rule.most} {rule.name}", f"at least {count}")
        limit = f"each field once, and at most {_MOST_FIELDS} fields in all"
        return InvalidArgumentError("*", limit, f"at least {count} in one message")


def _malformed(name: str, raw: bytes) -> ProtocolError:
    return ProtocolError(name, "a well-formed message", f"{len(raw)} bytes that are not")
