"""Hypothesis strategies for messages of the contract: well-formed, with valid and invalid contents."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_DEEPEST = 5
_WORDS = (
    "",
    "color",
    "alpha",
    "depth",
    "cost",
    "means",
    "positions",
    "radii",
    "cameras",
    "x" * 300,
    "\u202e\x00é",
    "..",
)
_NUMBERS = (0, 1, 2, 3, 4, 12, 16, 36, 255, 1 << 20, 1 << 31, 1 << 32, 1 << 62)
_FLOATS = (0.0, -0.0, 0.1, 0.5, 1.0, 2.0, 16.0, -1.0, 1e-45, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))

_Field = FieldDescriptor
# Inclusive limits by the type of a field.
_RANGES = {
    _Field.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    _Field.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    _Field.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    _Field.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, words: tuple[str, ...] = (), depth: int = 0) -> Message:
    """A message with some of its fields set; `words` are strings that some fields accept."""
    message = GetMessageClass(descriptor)()
    fields = [field for field in descriptor.fields if depth < _DEEPEST or field.message_type is None]
    likely = draw(st.sampled_from((0.3, 0.7, 1.0)))
    for field in fields:
        if draw(st.floats(0, 1)) < likely:
            fill(draw, message, field, words, depth)
    return message


def fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, words: tuple[str, ...], depth: int = 0) -> None:
    """Set one field to a value of its type."""
    message.ClearField(field.name)
    value = _values(field, words, depth)
    if _is_map(field):
        for entry in draw(st.lists(value, max_size=2)):
            getattr(message, field.name)[entry.key].CopyFrom(entry.value)
    elif field.is_repeated:
        lists = st.lists(value, max_size=2)
        # Scalars may also have as many values as a rotation or a matrix.
        many = lists if field.message_type else lists | st.lists(value, min_size=9, max_size=16)
        getattr(message, field.name).extend(draw(many))
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(draw(value))
    else:
        setattr(message, field.name, draw(value))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _values(field: FieldDescriptor, words: tuple[str, ...], depth: int) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind == _Field.CPPTYPE_MESSAGE:
        return messages(field.message_type, words, depth + 1)
    if kind == _Field.CPPTYPE_STRING:
        if field.type == _Field.TYPE_BYTES:
            return st.binary(max_size=64)
        return st.sampled_from((*words, *_WORDS)) | st.text(max_size=8)
    if kind == _Field.CPPTYPE_BOOL:
        return st.booleans()
    if kind == _Field.CPPTYPE_ENUM:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99, -1])
    if kind in (_Field.CPPTYPE_FLOAT, _Field.CPPTYPE_DOUBLE):
        return st.sampled_from(_FLOATS) | st.floats(width=32)
    lowest, highest = _RANGES[kind]
    sensible = [number for number in (*_NUMBERS, -1, lowest, highest) if lowest <= number <= highest]
    return st.sampled_from(sensible) | st.integers(lowest, highest)


@st.composite
def changed(draw: st.DrawFn, message: Message, words: tuple[str, ...] = ()) -> Message:
    """A copy of a message with one to three fields, at any depth, set to something else."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(draw(st.integers(1, 3))):
        place = copy
        while True:
            below = [value for field, value in place.ListFields() if field.message_type and not field.is_repeated]
            below += [
                value
                for field, values in place.ListFields()
                if field.message_type and field.is_repeated
                for value in (values.values() if _is_map(field) else values)
                if isinstance(value, Message)
            ]
            below = [value for value in below if value.DESCRIPTOR.fields]
            if not below or draw(st.booleans()):
                break
            place = draw(st.sampled_from(below))
        fill(draw, place, draw(st.sampled_from(list(place.DESCRIPTOR.fields))), words, 3)
    return copy
