"""Build of the documentation site: ``python docs/site/build.py [FOLDER]`` (default ``site``), or ``--check``.

Each version of the project has its own folder in FOLDER, so a build leaves the pages of other versions alone.
``versions.json`` lists them for the menu in the heading of each page, and ``index.html`` leads to the newest.

The pages of the repository are copied as they lie, so that their links work here and there. Pages about the command,
the Python packages and the protos are generated from the code. A link that leads nowhere fails the build. Beside each
page lies its Markdown, and ``llms.txt`` lists these, for programs that read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import yaml
from notebook_page import notebook_page
from packaging.version import InvalidVersion, Version
from protos_page import protos_page
from python_page import python_page
from typer.main import get_command

from dexorder.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/decisions/*.md",
    "services/common/dexorder_*/README.md",
    "bench/README.md",
    "bench/results/*.md",
    "tests/GUARANTEES.md",
    "tests/RELIABILITY.md",
)
FILES = (
    "docs/images/*",
    "docs/notebooks/*.ipynb",
    "docs/clients/*/*.go",
    "docs/clients/*/*.ts",
    "docs/clients/rust/build.rs",
    "docs/clients/rust/src/*.rs",
    "protos/dexorder/**/*.proto",
    "protos/service_config.json",
    "deploy/**/*",
)
FOLDERS = {"docs/decisions": "decisions.md", "bench/results": "measurements.md", "protos": "reference/protos.md"}
"""Folders that pages link to, and the page that the site has instead."""
NOTEBOOKS = "docs/notebooks"
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


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
    for notebook in (target / NOTEBOOKS).glob("*.ipynb"):
        notebook.with_suffix(".md").write_text(notebook_page(notebook))


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
        elif inside.startswith(NOTEBOOKS):
            link = link.removesuffix(".ipynb") + ".md"
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


def add_markdown(pages: Path, target: Path) -> None:
    """Put each page's Markdown beside its HTML, and ``llms.txt`` at the top; see llmstxt.org."""
    for page in pages.rglob("*.md"):
        if page.name != "python.md":  # names for mkdocstrings only
            shutil.copyfile(page, target / page.relative_to(pages))
    config = yaml.load((HERE / "mkdocs.yml").read_text(), yaml.SafeLoader)
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for entry in config["nav"]:
        if isinstance(entry, dict):
            ((heading, entries),) = entry.items()
            lines += ["", f"## {heading}", ""]
            lines += [f"- [{title}]({place})" for each in entries for title, place in _titled(each)]
    (target / "llms.txt").write_text("\n".join(lines) + "\n")


def _titled(entry: dict[str, str] | str) -> list[tuple[str, str]]:
    """Return title and place of an entry of the navigation; the page of Python has no Markdown."""
    found = entry.items() if isinstance(entry, dict) else [(entry.removesuffix(".md"), entry)]
    return [(title, re.sub(r"python\.md$", "python.html", place)) for title, place in found]


def project_version() -> str:
    """Return the version of the project, which is the folder of its pages."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return found


def add_versions(folder: Path) -> None:
    """List the versions that have pages in a folder, the newest first, and lead its visitors to the newest.

    The list has the form that the theme reads (``provider: mike`` in mkdocs.yml).
    """
    versions = sorted(filter(None, map(_version_of, folder.iterdir())), reverse=True)
    listed = [{"version": str(each), "title": str(each), "aliases": []} for each in versions]
    (folder / "versions.json").write_text(json.dumps(listed) + "\n")
    (folder / "index.html").write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>dexorder</title>\n'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n</head>\n'
        f'<body>\n<main><h1>dexorder</h1><a href="{versions[0]}/index.html">dexorder {versions[0]}</a></main>\n'
        "</body>\n</html>\n"
    )


def _version_of(folder: Path) -> Version | None:
    if not (folder / "index.html").is_file():
        return None
    try:
        return Version(folder.name)
    except InvalidVersion:
        return None


def write_configuration(target: Path, version: str) -> None:
    """Write mkdocs's configuration, with the version in the footer of each page."""
    text = (HERE / "mkdocs.yml").read_text()
    target.write_text(f"{text}copyright: dexorder {version}, Apache License 2.0\n")


def main() -> int:
    """Build the site; return mkdocs's exit status."""
    chosen = sys.argv[1] if len(sys.argv) > 1 else "site"
    version = project_version()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = work / "html" if chosen == "--check" else Path(chosen).resolve()
        target = folder / version
        pages = work / "pages"
        copy_pages(pages)
        (pages / "reference").mkdir()
        (pages / "reference" / "command.md").write_text(command_page())
        (pages / "reference" / "python.md").write_text(python_page())
        (pages / "reference" / "protos.md").write_text(protos_page(ROOT))
        (pages / "decisions.md").write_text(list_of("Decisions", "docs/decisions", pages))
        (pages / "measurements.md").write_text(list_of("Measurements", "bench/results", pages))
        for name in ("site.css", "site.js"):
            shutil.copyfile(HERE / name, pages / name)
        write_configuration(work / "mkdocs.yml", version)
        config = ["-f", str(work / "mkdocs.yml"), "-d", str(target)]
        environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", *config], env=environment)
        if not built.returncode:
            add_markdown(pages, target)
            add_versions(folder)
        return built.returncode


if __name__ == "__main__":
    sys.exit(main())
