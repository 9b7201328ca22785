"""Files that hosts of repositories and editors read: what they name must exist."""

from __future__ import annotations

import json
import re

import click
import typer
import yaml

from dexorder.cli.app import app
from tests.paths import ROOT


def test_hooks_run_programs_and_scripts_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = " ".join(hook["entry"] for hook in hooks)
    scripts = re.findall(r"[a-z]+/\w+\.py", entries)
    assert len(scripts) >= 3
    assert [each for each in scripts if not (ROOT / each).is_file()] == []
    check = (ROOT / "Makefile").read_text()
    assert all(program in check and program in entries for program in ("ruff format", "ruff check", "buf lint"))


def test_forms_for_issues_ask_for_commands_that_exist() -> None:
    known = typer.main.get_command(app).list_commands(click.Context(click.Command("x")))  # type: ignore[attr-defined]
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        text = path.read_text()
        assert yaml.safe_load(text)
        assert set(re.findall(r"`dexorder ([a-z]+)", text)) <= set(known), path
        assert [each for each in re.findall(r"docs/[a-z-]+\.md", text) if not (ROOT / each).is_file()] == []


def test_links_and_the_container_of_the_project() -> None:
    for name in ("SECURITY.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / name).read_text())
        assert links
        assert [each for each in links if not (ROOT / each).exists()] == [], name
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    target = container["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_first_page_and_the_changelog_stay_short() -> None:
    for name, most in (("README.md", 120), ("CHANGELOG.md", 200)):
        assert len((ROOT / name).read_text().splitlines()) <= most, name


def test_each_decision_has_a_number_of_its_own() -> None:
    paths = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(path.name.partition("-")[0]) for path in paths]
    assert len(numbers) > 70 and len(set(numbers)) == len(numbers)
    titles = [path.read_text().partition(".")[0] for path in paths]
    assert [each for each, number in zip(titles, numbers, strict=True) if each != f"# {number}"] == []
