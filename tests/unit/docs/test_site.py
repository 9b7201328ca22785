"""What the site has for programs that read, and its page of the Python packages."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dexorder
from tests.paths import ROOT

SITE = ROOT / "docs" / "site"
GENERATED = {"command.md", "protos.md", "decisions.md", "measurements.md", "index.md"}


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program that builds the site, which is no package."""
    monkeypatch.syspath_prepend(str(SITE))
    spec = importlib.util.spec_from_file_location("site_build", SITE / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "site_build", module)
    spec.loader.exec_module(module)
    return module


def test_each_page_that_llms_txt_lists_lies_beside_it(build: ModuleType, tmp_path: Path) -> None:
    pages, target = tmp_path / "pages", tmp_path / "html"
    build.copy_pages(pages)
    for path in pages.rglob("*"):
        if path.is_dir():
            (target / path.relative_to(pages)).mkdir(parents=True, exist_ok=True)
    build.add_markdown(pages, target)
    places = re.findall(r"\]\((\S+)\)", (target / "llms.txt").read_text())
    assert len(places) == len(set(places)) > 40
    missing = {each for each in places if not (target / each).is_file()}
    assert {Path(each).name for each in missing} <= {*GENERATED, "python.html"}


def test_the_page_of_python_has_every_public_name(build: ModuleType) -> None:
    page = build.python_page()
    for name in dexorder.__all__:
        value = getattr(dexorder, name)
        assert f"::: {value.__module__}.{value.__qualname__}\n" in page, name
