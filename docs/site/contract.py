"""The page of the contract: services, messages and fields with the comments of the .proto files."""

from __future__ import annotations

import html
import itertools
import re
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

_ABOUT = """# The contract

Services and messages, for programs in any language, with the comments of the .proto files: package `lumigrad.v1` in
`protos/lumigrad/v1`, and `lumigrad.drive.v1`, the contract of driving simulators, in `protos/lumigrad/drive/v1`.
A worker also serves `grpc.health.v1.Health` and, with `--reflection`, reflection.
"""
_Field = FieldDescriptorProto
_CODE = r"<code>\1</code>"
# Packages of the contract by their names in descriptors, each with what its anchors begin with.
_PACKAGES = {".lumigrad.v1.": "", ".lumigrad.drive.v1.": "drive."}
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in _Field.Type.items()}


class _File:
    """A .proto file: its comments by path, as descriptor.proto numbers the places."""

    def __init__(self, proto: FileDescriptorProto) -> None:
        self.proto = proto
        self._comments = {
            tuple(place.path): (place.leading_comments or place.trailing_comments)
            for place in proto.source_code_info.location
        }

    def comment(self, *path: int) -> str:
        """The comment at a place, without the indentation that `//` leaves."""
        return "\n".join(line.removeprefix(" ").rstrip() for line in self._comments.get(path, "").splitlines())


def page(root: Path) -> str:
    """Markdown of the whole contract: services first, then each file's messages.

    Args:
        root: of the repository.

    Raises:
        RuntimeError: protoc does not take the files.
    """
    described = [_File(proto) for proto in _described(root / "protos").file]
    lines = [_ABOUT]
    for file in described:
        for number, service in enumerate(file.proto.service):
            lines += _service(file, number, service)
    for file in described:
        if file.proto.message_type or file.proto.enum_type:
            lines += [f"## {Path(file.proto.name).name}", ""]
            for number, enum in enumerate(file.proto.enum_type):
                lines += _enum(file, (5, number), enum, "")
            for number, message in enumerate(file.proto.message_type):
                lines += _message(file, (4, number), message, "")
    return "\n".join(lines) + "\n"


def _described(protos: Path) -> FileDescriptorSet:
    with tempfile.NamedTemporaryFile(suffix=".pb") as descriptors:
        folders = [package.strip(".").replace(".", "/") for package in _PACKAGES]
        names = [str(path.relative_to(protos)) for it in folders for path in sorted(protos.glob(f"{it}/*.proto"))]
        include = [f"-I{protos}", f"-I{files('grpc_tools') / '_proto'}", f"-I{files('google.rpc') / '../..'}"]
        options = ["--include_source_info", f"--descriptor_set_out={descriptors.name}"]
        if protoc.main(["protoc", *include, *options, *names]) != 0:
            raise RuntimeError(f"protoc does not take the files of {protos}; it said why on standard error")
        return FileDescriptorSet.FromString(Path(descriptors.name).read_bytes())


def _service(file: _File, number: int, service: ServiceDescriptorProto) -> Iterator[str]:
    yield from (f"## {service.name}", "", _prose(file.comment(6, number)), "")
    for place, method in enumerate(service.method):
        takes, gives = (
            f"{'stream ' * streams}{_link(name)}"
            for streams, name in (
                (method.client_streaming, method.input_type),
                (method.server_streaming, method.output_type),
            )
        )
        yield from (f"### {service.name}.{method.name}", "", f"<p>{takes} → {gives}</p>", "")
        yield from (_prose(file.comment(6, number, 2, place)), "")


def _message(file: _File, path: tuple[int, ...], message: DescriptorProto, outer: str) -> Iterator[str]:
    name = outer + message.name
    full = f".{file.proto.package}.{name}"
    yield from (f"### {name} {{ #{_anchor(full)} }}", "", _prose(file.comment(*path)), "")
    if message.field:
        yield '<dl class="fields">'
        maps = {f"{full}.{nested.name}": nested for nested in message.nested_type if nested.options.map_entry}
        for number, field in enumerate(message.field):
            choice = ""
            if field.HasField("oneof_index") and not field.proto3_optional:
                choice = f", one of <code>{message.oneof_decl[field.oneof_index].name}</code>"
            yield f"<dt><code>{field.name} = {field.number}</code> {_type(field, maps)}{choice}</dt>"
            yield f"<dd>{_prose(file.comment(*path, 2, number))}</dd>"
        yield from ("</dl>", "")
    for number, enum in enumerate(message.enum_type):
        yield from _enum(file, (*path, 4, number), enum, f"{name}.")
    for number, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(file, (*path, 3, number), nested, f"{name}.")


def _enum(file: _File, path: tuple[int, ...], enum: EnumDescriptorProto, outer: str) -> Iterator[str]:
    name = outer + enum.name
    anchor = _anchor(f".{file.proto.package}.{name}")
    yield from (f"### {name} {{ #{anchor} }}", "", _prose(file.comment(*path)), "", '<dl class="fields">')
    for number, value in enumerate(enum.value):
        yield f"<dt><code>{value.name} = {value.number}</code></dt>"
        yield f"<dd>{_prose(file.comment(*path, 2, number))}</dd>"
    yield from ("</dl>", "")


def _type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    if field.type_name in maps:
        key, value = (_type(part, {}) for part in maps[field.type_name].field)
        return f"map of {key} to {value}"
    name = _link(field.type_name) if field.type_name else _SCALARS[field.type]
    if field.label == _Field.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _anchor(type_name: str) -> str:
    """Of a type of ours on this page; empty for those of other packages."""
    found = [
        prefix + type_name[len(package) :] for package, prefix in _PACKAGES.items() if type_name.startswith(package)
    ]
    return found[0] if found else ""


def _link(type_name: str) -> str:
    """A message of ours by its anchor on this page; another package's by its name."""
    anchor = _anchor(type_name)
    return f'<a href="#{anchor}">{anchor.removeprefix("drive.")}</a>' if anchor else type_name.removeprefix(".")


def _prose(comment: str) -> str:
    """A comment as HTML: paragraphs, and lines that are indented as they stand."""
    lines = [line for line in html.escape(comment, quote=False).splitlines() if line]
    parts = []
    for indented, run in itertools.groupby(lines, key=lambda line: line.startswith("  ")):
        text = "\n".join(run)
        parts.append(f"<pre>{text}</pre>" if indented else f"<p>{re.sub('`([^`]+)`', _CODE, text)}</p>")
    return "".join(parts)
