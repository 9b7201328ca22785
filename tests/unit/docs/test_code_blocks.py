"""Code blocks of the documentation: each command, import and file that they show exists and is well-formed.

`tests/nightly/test_documentation.py` runs the blocks as `tests/documentation/pages.py` says, `tests/newcomer` the
tutorial, and `tests/nightly` the notebook and the clients in other languages.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from dexorder.cli.app import app
from tests.documentation.blocks import BLOCKS, PAGES, Block, blocks_of, indented
from tests.documentation.entries import NotRun, Read
from tests.documentation.pages import PAGES as ENTRIES
from tests.paths import ROOT

ROOT_COMMAND: Any = get_command(app)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the words of each ``dexorder`` command, up to a pipe or redirection."""
    for block in BLOCKS:
        lines = re.sub(r"\\\n\s*", " ", block.text).splitlines() if block.language in ("", "sh", "console") else []
        for number, line in enumerate(lines):
            found = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*dexorder ([a-z-].*)", line)
            if found and not re.search(r"[…│]", line):
                yield block.place, words_of(found[1], lines[number + 1 :])


def words_of(command: str, following: list[str]) -> list[str]:
    """Return the words of a shell command, whose quoted text may continue in the following lines."""
    for line in following:
        if command.count("'") % 2 == 0:
            break
        command += f" {line.strip()}"
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(takewhile(lambda word: not set(word) <= set("|&;<>()"), words))


def parse(words: list[str]) -> None:
    """Parse the words of a command as the command line does, without running it."""
    command, context, name = ROOT_COMMAND, None, "dexorder"
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, list(words), parent=context)
        words = [*context._protected_args, *context.args]
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize(("place", "words"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_commands_have_the_arguments_and_options_that_the_documentation_shows(place: str, words: list[str]) -> None:
    parse(words)


PYTHON = [block for block in BLOCKS if block.language == "python"]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in PYTHON])
def test_programs_are_valid_and_import_what_exists(block: Block) -> None:
    tree = ast.parse(block.text, block.place, feature_version=(3, 11))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dexorder":
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, each.name) for each in node.names), ast.unparse(node)


YAML = [block for block in BLOCKS if block.language == "yaml"]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in YAML])
def test_yaml_is_valid(block: Block) -> None:
    assert [each for each in yaml.safe_load_all(block.text) if each]


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {name for block in BLOCKS for name in re.findall(r"^\s*(?:\$ )?make ([a-z-]+)", block.text, re.MULTILINE)}
    assert shown and shown <= targets


def test_the_blocks_are_found() -> None:
    """Else all of the above would pass without any."""
    assert len(list(commands())) > 40 and len(PYTHON) > 15 and len(YAML) > 4
    assert set(PAGES) >= {"README.md", "docs/tutorial.md", "docs/command.md"}
    with pytest.raises(Exception, match="No such option"):
        parse(["history", "BTC/USDT.SIM", "1h", "--sinse", "-7d"])


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_run_or_has_a_reason(page: str) -> None:
    entries = ENTRIES[page].blocks if page in ENTRIES else ()
    found = [block.text for block in blocks_of(page)]
    assert [text[: len(entry.begins)] for text, entry in zip(found, entries, strict=False)] == [
        entry.begins for entry in entries
    ]
    assert len(found) == len(entries), f"tests/documentation/pages.py has no entry for {found[len(entries) :]}"
    assert indented(page) == [], "code blocks are fenced"
    assert all(entry.reason for entry in entries if isinstance(entry, NotRun))


def test_entries_are_of_pages_that_exist() -> None:
    assert set(ENTRIES) <= set(PAGES)


READ = [
    pytest.param(block, entry, id=block.place)
    for page, each in ENTRIES.items()
    for block, entry in zip(blocks_of(page), each.blocks, strict=False)
    if isinstance(entry, Read)
]


@pytest.mark.parametrize(("block", "entry"), READ)
def test_fragments_are_read_by_what_reads_them(block: Block, entry: Read, tmp_path: Path) -> None:
    entry.reader(block.text, tmp_path)
