"""tests/RELIABILITY.md: each test that it names exists and runs in its tiers, and each row without one says so."""

from __future__ import annotations

import ast
import re

from tests.nightly.__main__ import SHORT, SHORT_CAMPAIGNS
from tests.paths import ROOT

TESTS = ROOT / "tests"
ROWS = [
    [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
    for line in (TESTS / "RELIABILITY.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| # |", "| --- |"))
]


def test_each_test_of_a_row_exists() -> None:
    assert len(ROWS) >= 34
    for row in ROWS:
        for path, name in re.findall(r"`((?:unit|integration|nightly|smoke)/[\w/]+\.py)(?:::(\w+))?`", row[3]):
            tree = ast.parse((TESTS / path).read_text())
            functions = {
                each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert not name or name in functions, f"{path} has no {name}"


def test_each_tier_of_a_row_runs_one_of_its_tests() -> None:
    short = {each.partition("::")[0] for each in SHORT_CAMPAIGNS}
    for row in ROWS:
        files = re.findall(r"`((?:unit|integration|nightly|smoke)/[\w/]+\.py)(?:::\w+)?`", row[3])
        texts = {path: (TESTS / path).read_text() for path in files}
        runs = {
            "gate": any(not path.startswith("nightly/") for path in files),
            "soak": any("mark.soak" in text for text in texts.values()),
            "nightly": any(
                "mark.nightly" in text or path.removeprefix("nightly/") in short for path, text in texts.items()
            ),
        }
        for tier in filter(None, row[4].split(", ")):
            assert runs[tier], f"no test of the row '{row[1]}' runs in {tier}"


def test_the_short_form_of_a_campaign_has_its_size() -> None:
    files = {each.partition("::")[0] for each in SHORT_CAMPAIGNS}
    text = "".join((TESTS / "nightly" / each).read_text() for each in files)
    read = set(re.findall(r'"DEXORDER_SOAK_(\w+)"', text))
    assert SHORT.keys() - read == set(), "a size that no campaign reads"


def test_a_row_without_a_test_says_that_it_was_never_run() -> None:
    assert [row[1] for row in ROWS if len(row) != 6] == []
    assert [row[1] for row in ROWS if not row[3] and not row[5].startswith("never run")] == []
