"""The contract only grows: every field, enum value and method of `contract.txt` must stay as it is.

After an addition to the .proto files run `python tests/protos/test_contract.py`, check the difference, and commit it.
It has a paragraph for each message, enum and service, in which types of the same package have short names. Entries may
be added; one that changes or disappears breaks callers that were built before.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, MethodDescriptor

FIXTURE = Path(__file__).with_name("contract.txt")
_SOURCES = Path(__file__).parents[2] / "protos"
# The generated module of each .proto file.
FILES = [
    import_module(".".join((*path.relative_to(_SOURCES).parent.parts, f"{path.stem}_pb2")))
    for path in sorted(_SOURCES.rglob("*.proto"))
]
TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def shortened(entry: str, file: FileDescriptor) -> str:
    return re.sub(rf"\b{re.escape(file.package)}\.", "", entry)


def describe_field(field: FieldDescriptor) -> str:
    target = field.message_type or field.enum_type
    kind = TYPES[field.type] if target is None else target.full_name
    if field.is_repeated:
        kind = f"repeated {kind}"
    oneof = field.containing_oneof
    if oneof is not None:
        kind += " optional" if oneof.name == f"_{field.name}" else f" oneof {oneof.name}"
    return shortened(f"{field.name}={field.number} {kind}", field.file)


def describe_message(message: Descriptor) -> Iterator[tuple[str, list[str]]]:
    yield f"message {message.full_name}", list(map(describe_field, message.fields))
    for nested in message.nested_types:
        yield from describe_message(nested)
    yield from map(describe_enum, message.enum_types)


def describe_enum(enum: EnumDescriptor) -> tuple[str, list[str]]:
    return f"enum {enum.full_name}", [f"{value.name}={value.number}" for value in enum.values]


def describe_method(method: MethodDescriptor) -> str:
    request = ("stream " if method.client_streaming else "") + method.input_type.full_name
    reply = ("stream " if method.server_streaming else "") + method.output_type.full_name
    return shortened(f"{method.name}({request}) returns ({reply})", method.containing_service.file)


def describe() -> dict[str, list[str]]:
    """Returns the entries of each message, enum and service."""
    found: dict[str, list[str]] = {}
    for file in (module.DESCRIPTOR for module in FILES):
        for message in file.message_types_by_name.values():
            found.update(describe_message(message))
        found.update(map(describe_enum, file.enum_types_by_name.values()))
        for service in file.services_by_name.values():
            found[f"service {service.full_name}"] = list(map(describe_method, service.methods))
    return found


def written() -> set[tuple[str, str]]:
    """Returns the pairs of a name and an entry of the fixture; each name alone is one, too."""
    paragraphs = [line.partition(":") for line in re.sub(r"\n +", " ", FIXTURE.read_text()).splitlines()]
    return {(name, entry.strip()) for name, _, entries in paragraphs for entry in ("", *entries.split(";"))}


def present() -> set[tuple[str, str]]:
    return {(name, entry) for name, entries in describe().items() for entry in ("", *entries)}


def test_nothing_that_callers_rely_on_has_changed() -> None:
    lost = written() - present()
    assert not lost, f"the contract lost or changed: {sorted(lost)}"


def test_additions_are_written_down() -> None:
    added = present() - written()
    assert not added, f"run `python {Path(__file__).name}` and commit contract.txt: {sorted(added)}"


if __name__ == "__main__":
    lines = [f"{name}: {'; '.join(entries)}" for name, entries in sorted(describe().items())]
    FIXTURE.write_text("\n".join(textwrap.fill(line, 120, subsequent_indent="  ") for line in lines) + "\n")
    sys.stdout.write(f"wrote {FIXTURE}\n")
