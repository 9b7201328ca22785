"""Build of the documentation site: ``python docs/site/build.py [FOLDER]`` (default ``site``), or ``--check``.

The pages of the repository are copied as they lie, so that their links work here and there. Pages about the command
and the protos are generated from the code. A link that leads nowhere fails the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from typer.main import get_command

from dexorder.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAGES = ("*.md", "docs/*.md", "docs/decisions/*.md", "bench/README.md", "bench/results/*.md", "tests/GUARANTEES.md")
FILES = (
    "docs/images/*",
    "docs/notebooks/*.ipynb",
    "docs/clients/*/*.go",
    "docs/clients/*/*.ts",
    "docs/clients/rust/build.rs",
    "docs/clients/rust/src/*.rs",
    "protos/dexorder/**/*.proto",
    "deploy/**/*",
)
FOLDERS = {"docs/decisions": "decisions.md", "bench/results": "measurements.md", "protos": "reference/protos.md"}
"""Folders that pages link to, and the page that the site has instead."""
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_MESSAGE_FIELD = 2
_NESTED = 3
_SERVICE = 6
_METHOD = 2
_MESSAGE = 4


def copy_pages(target: Path) -> None:
    """Copy the pages and the files that they link to; README.md becomes index.md."""
    for pattern in (*PAGES, *FILES):
        for path in ROOT.glob(pattern):
            if not path.is_file():
                continue
            place = target / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                place.write_text(redirect(path.read_text(), path))
            else:
                shutil.copyfile(path, place)
    (target / "README.md").rename(target / "index.md")


def redirect(text: str, page: Path) -> str:
    """Return a page whose links to folders and to the README lead to pages of the site."""

    def changed(found: re.Match[str]) -> str:
        link = found[2]
        if re.match(r"[a-z]+:", link):
            return found[0]
        to = (page.parent / link).resolve()
        inside = to.relative_to(ROOT).as_posix()
        depth = len(page.relative_to(ROOT).parts) - 1
        if inside == "README.md":
            link = "../" * depth + "index.md"
        elif inside in FOLDERS:
            link = "../" * depth + FOLDERS[inside]
        elif inside == "deploy":
            link = "../" * depth + "deploy/compose.yaml"
        return f"{found[1]}{link}{found[3]}"

    return _LINK.sub(changed, text)


def list_of(title: str, folder: str, target: Path) -> str:
    """Return a page that lists the pages of a folder by their titles."""
    lines = [f"# {title}", ""]
    for path in sorted((target / folder).glob("*.md")):
        heading = path.read_text().split("\n", 1)[0].lstrip("# ")
        lines.append(f"- [{heading}]({folder}/{path.name})")
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """Return the options of every command, as ``--help`` has them."""
    lines = [
        "# Options of the command",
        "",
        "Generated from the code. [The command](../docs/command.md) explains them.",
    ]
    root = get_command(app)
    pending = [("dexorder", root)]
    while pending:
        name, command = pending.pop(0)
        children = getattr(command, "commands", {})
        pending = [(f"{name} {each}", children[each]) for each in children] + pending
        if children and command is not root:
            lines += ["", f"## {name}", "", (command.help or "").split("\n\n")[0]]
            continue
        if command is root:
            continue
        lines += ["", f"## {name}", "", (command.help or "").replace("\n\n", "\n").strip()]
        rows = [row for each in command.params if (row := _option_row(each))]
        if rows:
            lines += ["", "| argument or option | meaning |", "| --- | --- |", *rows]
        examples = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  ")]
        if examples:
            lines += ["", "```", *examples, "```"]
    return "\n".join(lines) + "\n"


def _option_row(parameter: object) -> str | None:
    if getattr(parameter, "hidden", False):
        return None
    names = getattr(parameter, "opts", [])
    name = ", ".join(names) if names and names[0].startswith("-") else (getattr(parameter, "metavar", None) or names[0])
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| `{name}` | {text.replace('<', '&lt;')} |"


def protos_page() -> str:
    """Return our services and messages with the comments of the protos."""
    with tempfile.TemporaryDirectory() as name:
        image = Path(name) / "image.binpb"
        subprocess.run(["buf", "build", str(ROOT), "--as-file-descriptor-set", "-o", str(image)], check=True, cwd=ROOT)
        files = FileDescriptorSet.FromString(image.read_bytes()).file
    lines = [
        "# Services and messages",
        "",
        "Generated from [the protos](../protos/dexorder/relay/v1/relay_service.proto).",
    ]
    for file in sorted(files, key=lambda each: each.name):
        if file.name.startswith("dexorder/"):
            lines += _file_lines(file)
    return "\n".join(lines) + "\n"


def _file_lines(file: FileDescriptorProto) -> list[str]:
    comments = {
        tuple(each.path): " ".join((each.leading_comments or each.trailing_comments).split())
        for each in file.source_code_info.location
    }
    lines = ["", f"## {file.name}"]
    for index, service in enumerate(file.service):
        lines += ["", f"### service {file.package}.{service.name}", "", comments.get((_SERVICE, index), "")]
        lines += ["", "| method | request | answer | |", "| --- | --- | --- | --- |"]
        for number, method in enumerate(service.method):
            text = _cell(comments.get((_SERVICE, index, _METHOD, number), ""))
            asked = ("stream " if method.client_streaming else "") + _short(method.input_type)
            given = ("stream " if method.server_streaming else "") + _short(method.output_type)
            lines.append(f"| {method.name} | {asked} | {given} | {text} |")
    for index, message in enumerate(file.message_type):
        lines += _message_lines(message, (_MESSAGE, index), comments, file.package)
    return lines


def _message_lines(
    message: DescriptorProto, path: tuple[int, ...], comments: dict[tuple[int, ...], str], package: str
) -> list[str]:
    lines = ["", f"#### {package}.{message.name}", "", comments.get(path, "")]
    if message.field:
        lines += ["", "| field | number | type | |", "| --- | --- | --- | --- |"]
    for index, field in enumerate(message.field):
        text = _cell(comments.get((*path, _MESSAGE_FIELD, index), ""))
        lines.append(f"| {field.name} | {field.number} | {_type(field)} | {text} |")
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            lines += _message_lines(nested, (*path, _NESTED, index), comments, f"{package}.{message.name}")
    return lines


def _type(field: FieldDescriptorProto) -> str:
    kind = _short(field.type_name) or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {kind}" if field.label == FieldDescriptorProto.LABEL_REPEATED else kind


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """Build the site; return mkdocs's exit status."""
    chosen = sys.argv[1] if len(sys.argv) > 1 else "site"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        target = work / "html" if chosen == "--check" else Path(chosen).resolve()
        pages = work / "pages"
        copy_pages(pages)
        (pages / "reference").mkdir()
        (pages / "reference" / "command.md").write_text(command_page())
        (pages / "reference" / "protos.md").write_text(protos_page())
        (pages / "decisions.md").write_text(list_of("Decisions", "docs/decisions", pages))
        (pages / "measurements.md").write_text(list_of("Measurements", "bench/results", pages))
        shutil.copyfile(HERE / "mkdocs.yml", work / "mkdocs.yml")
        config = ["-f", str(work / "mkdocs.yml"), "-d", str(target)]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", *config], env=environment
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
