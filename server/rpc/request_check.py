"""Bounds on every repeated field and size, checked on the encoded bytes before protobuf parses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import DRIVE_SERVICES, SERVICE_NAMES, methods
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import Limits

# Names, hashes and tokens.
_NAME = 256
# Outputs of a call, and fields with an entry per output.
_OUTPUTS = 64
# Entries of a matrix or vector, and sizes of a tensor, whose exact counts are checked where they are read. With this
# bound, no field of a message of up to 256 bytes, such as most cameras and obstacles, can exceed its bound.
_MATRIX = 64
_DIMENSIONS = 256
_VIEWS = 1 << 16
# Bytes that a disk can have.
_MOST_STORED = 1 << 47
# Tables of lidars.
_ROWS = 1 << 12
_COLUMNS = 1 << 16

# Bounds by the name of a field, or of message and field: the maximum number of entries of repeated fields and maps, of
# bytes of strings and bytes fields, and the largest integers. Strings name a limit of the worker. Integers without an
# entry are not sizes, or are checked where they are read, as part of a product or sum: the pixels of all cameras, the
# obstacles of a world. tests/faults/attacks/test_numbers.py lists both kinds.
BOUNDS: Mapping[str, int | str] = {
    "angle_to_pixel_distance": _MATRIX,
    "angle_to_pixeldist_poly": _MATRIX,
    "background": "channels",
    "camera_logical_id": _NAME,
    "camera_name": _NAME,
    "cameras": "cameras",
    "column_azimuths": _COLUMNS,
    "content_hash": _NAME,
    "context_id": _NAME,
    "data": "payload_bytes",
    "distortion": _MATRIX,
    "dynamic_objects": "obstacles",
    "formats": _OUTPUTS,
    "full_projection": _MATRIX,
    "group": _NAME,
    "horizontal": _MATRIX,
    "horizontal_inverse": _MATRIX,
    "horizontal_poly": _MATRIX,
    "horizontal_poly_inverse": _MATRIX,
    "inline": "payload_bytes",
    "items": "cameras",
    "key": _NAME,
    "lane": _NAME,
    "lease": _NAME,
    "lengths": "cameras",
    "lidar_requests": "cameras",
    "linear": _MATRIX,
    "logical_id": _NAME,
    "matrix": _MATRIX,
    "matrix_end": _MATRIX,
    "mesh_id": _NAME,
    "name": _NAME,
    "obstacles": "obstacles",
    "output_gradients": _OUTPUTS,
    "outputs": _OUTPUTS,
    "page_token": _NAME,
    "parameters": _MATRIX,
    "payload_bytes": "payload_bytes",
    # Levels, which are not kept in memory, may be longer; the spool has a limit of its own.
    "PutRequest.payload_bytes": _MOST_STORED,
    "pixel_distance_to_angle": _MATRIX,
    "pixeldist_to_angle_poly": _MATRIX,
    "position": _MATRIX,
    "radial": _MATRIX,
    "radial_coeffs": _MATRIX,
    "rates": _OUTPUTS,
    "rendezvous": _NAME,
    "rgb_requests": "cameras",
    "rig_config_id": _NAME,
    "rotation": _MATRIX,
    "row_azimuth_offsets": _ROWS,
    "row_elevations": _ROWS,
    "scene_id": _NAME,
    "shape": _DIMENSIONS,
    "size": _MATRIX,
    "start_id": _NAME,
    "tangential": _MATRIX,
    "tangential_coeffs": _MATRIX,
    "target": _NAME,
    "temporary_camera_spec": _NAME,
    "tensors": _OUTPUTS,
    "thin_prism": _MATRIX,
    "thin_prism_coeffs": _MATRIX,
    "track_id": _NAME,
    "training_id": _NAME,
    "transforms": "obstacles",
    "translation": _MATRIX,
    "update_id": _NAME,
    "values": _MATRIX,
    "vertical": _MATRIX,
    "vertical_inverse": _MATRIX,
    "vertical_poly": _MATRIX,
    "vertical_poly_inverse": _MATRIX,
    "view_matrix": _MATRIX,
    "views": "cameras",
    "TrainingStart.views": _VIEWS,
    "wanted": _OUTPUTS,
}
# The options that set bounds, as error texts name them.
_OPTIONS: dict[int | str, str] = {
    "cameras": " (the worker's --max-cameras)",
    "payload_bytes": " (the worker's --max-payload-mib)",
}
# Largest number of all other fields.
_LARGEST = (1 << 64) - 1
_TEXT = FieldDescriptor.CPPTYPE_STRING


def bound_of(kind: Descriptor, field: FieldDescriptor) -> int | str:
    """Return the bound of a message's field; raises KeyError if a repeated field or a string is not in `BOUNDS`."""
    if not field.is_repeated and field.cpp_type != _TEXT and field.name != "payload_bytes":
        return _LARGEST
    name = f"{kind.name}.{field.name}"
    return BOUNDS[name if name in BOUNDS else field.name]


# Maximum number of fields that are checked in one message, nested fields included, which bounds the time of a check.
# The start of a training has fewer, even if its views fill gRPC's maximum message.
_MOST_FIELDS = 1 << 18
# The weight from which a request is long and waits for its turn: one for each field, each entry of a packed field, and
# each 8 bytes of nested messages that are not looked into. Requests with several cameras are below it.
_LONG = 1 << 10
_BYTES_OF_FIELD = 8
# Maximum total bytes of nested messages that are not checked because they are too small to exceed a bound. They can
# contain at most half as many empty messages.
_MOST_UNSEEN = 3 << 19
# Maximum number of singular and of unknown fields in one message; an encoder writes each once.
_MOST_SINGLE = 1024
_MOST_VARINT_BYTES = 10
_LENGTH_DELIMITED = 2
# Wire types whose value begins with a varint: the value itself, or its length.
_MEASURED = (0, _LENGTH_DELIMITED)
# Bytes of fixed-size values by wire type.
_FIXED = {1: 8, 5: 4}
# Bytes of a number in a packed field; other types have a variable length.
_PACKED = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}


class RequestCheck:
    """Checks requests against the bounds of a worker with given limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Rules by the full names of messages.
        self._rules: dict[str, _Rules] = {}
        # Built before any call, so that no thread uses incomplete rules.
        for service in (*SERVICE_NAMES, *DRIVE_SERVICES):
            for method in methods(service):
                self._of(method.request)

    def check(self, kind: Descriptor, raw: bytes, on_long: Callable[[], None] = lambda: None) -> None:
        """Raise InvalidArgumentError if any field of an encoded message is over its bound.

        `on_long` is called as soon as the message turns out to take long to check and read.
        """
        try:
            _Scan(raw, kind.name, on_long).check(0, len(raw), self._rules[kind.full_name])
        except IndexError:
            raise _malformed(kind.name, raw) from None

    def _of(self, kind: Descriptor) -> _Rules:
        if kind.full_name not in self._rules:
            self._rules[kind.full_name] = _Rules({field.number: self._rule(kind, field) for field in kind.fields})
        return self._rules[kind.full_name]

    def _rule(self, kind: Descriptor, field: FieldDescriptor) -> _Rule:
        bound = bound_of(kind, field)
        return _Rule(
            name=field.name,
            most=getattr(self._limits, bound) if isinstance(bound, str) else bound,
            option=_OPTIONS.get(bound, ""),
            is_repeated=bool(field.is_repeated),
            is_packable=bool(field.is_repeated) and field.message_type is None and field.cpp_type != _TEXT,
            is_text=field.cpp_type == _TEXT,
            width=_PACKED.get(field.type, 0),
            inner=None if field.message_type is None else self._of(field.message_type),
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    most: int
    # The option that sets the bound, as error texts name it; empty without an option.
    option: str
    is_repeated: bool
    # Whether its numbers may be packed into one value.
    is_packable: bool
    is_text: bool
    # Bytes of each number; 0 if variable.
    width: int
    # The rules of a nested message.
    inner: _Rules | None

    @property
    def harmless_bytes(self) -> int:
        """The size in bytes up to which a message cannot exceed the bound of this field."""
        inner = _LARGEST if self.inner is None else self.inner.harmless_bytes
        if self.is_packable:
            return self.most * (self.width or 1)
        if self.is_repeated:
            return min(2 * self.most, inner)
        if self.is_text or self.most == _LARGEST:
            return min(self.most, inner)
        return 0


class _Rules:
    def __init__(self, fields: dict[int, _Rule]) -> None:
        self.fields = fields
        # A message of at most this size cannot exceed any bound.
        self.harmless_bytes = min([2 * _MOST_SINGLE, *(rule.harmless_bytes for rule in fields.values())])


class _Scan:
    """Counts and measures the fields in the bytes of one message; raises IndexError if the bytes end early."""

    def __init__(self, raw: bytes, name: str, on_long: Callable[[], None]) -> None:
        self._raw = raw
        self._name = name
        self._on_long = on_long
        self._weight = 0
        self._left = _MOST_FIELDS
        self._unseen = _MOST_UNSEEN

    def check(self, position: int, stop: int, rules: _Rules) -> None:
        """Raise an error for the first field between two positions that is over its bound."""
        counts: dict[int, int] = {}
        raw, fields = self._raw, rules.fields
        while position < stop:
            tag = raw[position]
            position += 1
            if tag >= 0x80:
                tag, position = self._varint(position - 1)
            number, kind = tag >> 3, tag & 7
            if kind in _MEASURED:
                value = raw[position]
                position += 1
                if value >= 0x80:
                    value, position = self._varint(position - 1)
                end = position + value if kind else position
            else:
                value = 0
                # An unknown wire type leads beyond the end.
                position = end = position + _FIXED.get(kind, _LARGEST)
            if end > stop:
                raise _malformed(self._name, raw)
            rule = fields.get(number)
            more, most = 1, _MOST_SINGLE
            if rule is None or not rule.is_repeated:
                # Singular fields share one count.
                number = 0
            else:
                most = rule.most
                if rule.is_packable and kind == _LENGTH_DELIMITED:
                    more = self._entries(rule, position, end)
            counts[number] = count = counts.get(number, 0) + more
            self._left -= 1
            self._weigh(more)
            if self._left < 0 or count > most:
                raise self._too_many(rule if number else None, count)
            if rule is not None:
                self._look_into(rule, kind, value, position, count - 1)
            position = end

    def _weigh(self, more: int) -> None:
        before = self._weight
        self._weight += more
        if before < _LONG <= self._weight:
            self._on_long()

    def _look_into(self, rule: _Rule, kind: int, value: int, position: int, index: int) -> None:
        if rule.inner is None:
            if value > rule.most and not rule.is_repeated:
                unit = " bytes" if kind == _LENGTH_DELIMITED or rule.name.endswith("_bytes") else ""
                limit = f"at most {rule.most}{unit}{rule.option}"
                raise InvalidArgumentError(rule.name, limit, value)
        elif kind == _LENGTH_DELIMITED:
            if value <= rule.inner.harmless_bytes and value <= self._unseen:
                self._unseen -= value
                self._weigh(value // _BYTES_OF_FIELD)
                return
            try:
                self.check(position, position + value, rule.inner)
            except InvalidArgumentError as error:
                where = f"{rule.name}[{index}]" if rule.is_repeated else rule.name
                raise InvalidArgumentError(f"{where}.{error.field}", error.limit, error.value) from None

    def _varint(self, position: int) -> tuple[int, int]:
        value = 0
        for index in range(_MOST_VARINT_BYTES):
            byte = self._raw[position + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value & _LARGEST, position + index + 1
        raise _malformed(self._name, self._raw)

    def _entries(self, rule: _Rule, start: int, stop: int) -> int:
        """Return the number of entries of a repeated field that one value holds, which may be packed numbers."""
        if rule.width or stop - start <= rule.most:
            return (stop - start) // (rule.width or 1)
        # Each varint ends with a byte below 128.
        return sum(byte < 0x80 for byte in self._raw[start:stop])

    def _too_many(self, rule: _Rule | None, count: int) -> InvalidArgumentError:
        if rule is not None and count > rule.most:
            return InvalidArgumentError(rule.name, f"at most {rule.most} {rule.name}{rule.option}", f"at least {count}")
        limit = f"each field once, and at most {_MOST_FIELDS} fields in all"
        return InvalidArgumentError("*", limit, f"at least {count} in one message")


def _malformed(name: str, raw: bytes) -> ProtocolError:
    return ProtocolError(name, "a well-formed message", f"{len(raw)} bytes that are not")
