"""The page of our services and messages from the protos: comments, rules, stability, and what calls are repeated."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodOptions,
)

from dexorder_protos.dexorder.api.v1 import annotations_pb2

HEAD = "# Services and messages\n\nGenerated from the protos; [the API](../docs/api.md) says what holds for all.\n"
_LEVELS = {
    MethodOptions.NO_SIDE_EFFECTS: "changes nothing",
    MethodOptions.IDEMPOTENT: "may be repeated",
    MethodOptions.IDEMPOTENCY_UNKNOWN: "not repeated by itself",
}
_F = FieldDescriptorProto


@dataclass(frozen=True)
class File:
    """A proto file with the comments of its parts, by their paths in the descriptor."""

    proto: FileDescriptorProto
    comments: dict[tuple[int, ...], str]

    def comment(self, *path: int) -> str:
        """Return the comment of a part as Markdown, in one paragraph for each of the comment's."""
        parts = re.split(r"\n\s*\n", self.comments.get(path, "").strip())
        return "\n\n".join(" ".join(part.split()) for part in parts)


def read_files(root: Path) -> list[File]:
    """Return our protos in a checkout, by name."""
    protos = root / "protos"
    names = sorted(str(path.relative_to(protos)) for path in (protos / "dexorder").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        paths = [f"-I{protos}", f"-I{protos / 'vendor'}", f"--descriptor_set_out={out}", "--include_source_info"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *paths, *names], check=True, cwd=protos)
        found = FileDescriptorSet.FromString(out.read_bytes())
    return [
        File(each, {tuple(part.path): part.leading_comments for part in each.source_code_info.location})
        for each in found.file
    ]


def protos_page(root: Path) -> str:
    """Return the page of a checkout's protos."""
    return HEAD + "".join(text for file in read_files(root) for text in sections(file))


def sections(file: File) -> Iterator[str]:
    """Yield the sections of a file: its services, messages and enums."""
    yield f"\n## {file.proto.name.removeprefix('dexorder/')}\n\n{file.comment(2)}\n"
    for s, service in enumerate(file.proto.service):
        stability = annotations_pb2.Stability.Name(service.options.Extensions[annotations_pb2.stability])
        word = stability.removeprefix("STABILITY_").lower()
        yield f"\n### {file.proto.package}.{service.name}\n\n{file.comment(6, s)} Stability: {word}.\n\n"
        yield "| RPC | request | response | |\n| --- | --- | --- | --- |\n"
        for m, method in enumerate(service.method):
            sent = f"{'stream of ' * method.client_streaming}{link(method.input_type)}"
            answered = f"{'stream of ' * method.server_streaming}{link(method.output_type)}"
            text = cell(f"{file.comment(6, s, 2, m)} *{_LEVELS[method.options.idempotency_level]}*")
            yield f"| `{method.name}` | {sent} | {answered} | {text} |\n"
    for m, message in enumerate(file.proto.message_type):
        yield from message_section(file, message, (4, m))
    for e, enum in enumerate(file.proto.enum_type):
        yield from enum_section(file, enum, (5, e))


def message_section(file: File, message: DescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
    """Yield the section of a message and those inside it."""
    yield f"\n### {message.name}\n\n{file.comment(*path)}\n"
    if message.field:
        yield "\n| field | type | rules | |\n| --- | --- | --- | --- |\n"
    for f, field in enumerate(message.field):
        kind, text = type_of(field, message), cell(file.comment(*path, 2, f))
        yield f"| `{field.name}` | {kind} | {rules_of(field)} | {text} |\n"
    for e, enum in enumerate(message.enum_type):
        yield from enum_section(file, enum, (*path, 4, e))


def enum_section(file: File, enum: EnumDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
    """Yield the section of an enum."""
    yield f"\n### {enum.name}\n\n{file.comment(*path)}\n\n| value | number | |\n| --- | --- | --- |\n"
    for v, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {cell(file.comment(*path, 2, v))} |\n"


def type_of(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Return the type of a field, with what it shares a oneof with."""
    if field.type in (_F.TYPE_MESSAGE, _F.TYPE_ENUM):
        nested = {each.name: each for each in message.nested_type}.get(field.type_name.rpartition(".")[2])
        if nested is not None and nested.options.map_entry:
            return "map of texts"
        name = link(field.type_name)
    else:
        name = _F.Type.Name(field.type).removeprefix("TYPE_").lower()
    name = f"list of {name}" if field.label == _F.LABEL_REPEATED else name
    if field.proto3_optional:
        return f"{name}, optional"
    if field.HasField("oneof_index"):
        return f"{name}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return name


def rules_of(field: FieldDescriptorProto) -> str:
    """Return the rules of a field in words."""
    rules = field.options.Extensions[annotations_pb2.rules]
    words = ["required"] if rules.required else []
    words += [f"≥ {rules.min:,}"] if rules.HasField("min") else []
    words += [f"≤ {limit(rules.max)}"] if rules.HasField("max") else []
    words += [f"≤ {rules.max_length:,} characters"] if rules.HasField("max_length") else []
    words += [f"≤ {rules.max_items:,} entries"] if rules.HasField("max_items") else []
    words += ["a known value"] if rules.known else []
    return ", ".join(words)


def limit(number: int) -> str:
    """Return a limit as text."""
    return "2^63 - 1" if number == 2**63 - 1 else f"{number:,}"


def link(full_name: str) -> str:
    """Return a link to the section of a message or enum, or its name if it has none on this page."""
    package, _, name = full_name.lstrip(".").rpartition(".")
    if (
        package.startswith("dexorder.ingest")
        or not package.startswith("dexorder")
        or package.rpartition(".")[2][0].isupper()
    ):
        return f"`{full_name.lstrip('.')}`"
    return f"[{name}](#{name.lower()})"


def cell(text: str) -> str:
    """Return a comment as the text of a table's cell."""
    return text.replace("<", "&lt;").replace("\n\n", "<br>").replace("|", "\\|").replace("*.", "\\*.")
