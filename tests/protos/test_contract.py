"""The contract only grows: every field, enum value and method of `contract.txt` must stay as it is.

After an addition to the .proto files run `python tests/protos/test_contract.py`, check the difference, and commit it.
Lines may be added; a line that changes or disappears breaks callers that were built before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

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


def describe_field(field: FieldDescriptor) -> str:
    kind = TYPES[field.type]
    target = field.message_type or field.enum_type
    if target is not None:
        kind = f"{kind} {target.full_name}"
    if field.is_repeated:
        kind = f"repeated {kind}"
    oneof = field.containing_oneof
    if oneof is not None:
        kind += " optional" if oneof.name == f"_{field.name}" else f" oneof {oneof.name}"
    return f"{field.containing_type.full_name}.{field.name} = {field.number}: {kind}"


def describe_message(message: Descriptor) -> Iterator[str]:
    yield f"message {message.full_name}"
    yield from map(describe_field, message.fields)
    for nested in message.nested_types:
        yield from describe_message(nested)


def describe_file(file: FileDescriptor) -> Iterator[str]:
    for message in file.message_types_by_name.values():
        yield from describe_message(message)
    for enum in file.enum_types_by_name.values():
        yield from (f"{enum.full_name}.{value.name} = {value.number}" for value in enum.values)
    for service in file.services_by_name.values():
        for method in service.methods:
            request = ("stream " if method.client_streaming else "") + method.input_type.full_name
            reply = ("stream " if method.server_streaming else "") + method.output_type.full_name
            yield f"rpc {service.full_name}.{method.name}({request}) returns ({reply})"


def describe() -> list[str]:
    return sorted(line for file in FILES for line in describe_file(file.DESCRIPTOR))


def test_nothing_that_callers_rely_on_has_changed() -> None:
    lost = set(FIXTURE.read_text().splitlines()) - set(describe())
    assert not lost, f"the contract lost or changed: {sorted(lost)}"


def test_additions_are_written_down() -> None:
    added = set(describe()) - set(FIXTURE.read_text().splitlines())
    assert not added, f"run `python {Path(__file__).name}` and commit contract.txt: {sorted(added)}"


if __name__ == "__main__":
    FIXTURE.write_text("\n".join(describe()) + "\n")
    sys.stdout.write(f"wrote {FIXTURE}\n")
