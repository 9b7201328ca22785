"""What the site has for programs that read, and its page of the Python packages."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dexorder
from dexorder import AsyncClient
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


async def test_each_part_of_the_client_is_on_the_page_of_python(build: ModuleType) -> None:
    page = build.python_page()
    async with AsyncClient("127.0.0.1:1") as client:
        parts = {name: value for name, value in vars(client).items() if not name.startswith("_")}
    assert len(parts) > 5
    for name, value in parts.items():
        assert f"::: {type(value).__module__}.{type(value).__qualname__}\n" in page, name


def test_the_notebook_is_a_page_with_its_outputs(build: ModuleType, tmp_path: Path) -> None:
    build.copy_pages(tmp_path)
    page = (tmp_path / "docs/notebooks/first.md").read_text()
    book = json.loads((ROOT / "docs/notebooks/first.ipynb").read_text())
    code = ["".join(cell["source"]).strip() for cell in book["cells"] if cell["cell_type"] == "code"]
    assert page.startswith("# First notebook\n\n[Download](first.ipynb)") and len(code) > 5
    assert all(f"```python\n{each}\n```" in page for each in code)
    assert "672" in page and "shape: (4, 8)" in page and "336 of 336 candles, finished" in page
    assert "(notebooks/first.md)" in (tmp_path / "docs/command.md").read_text()


def test_versions_have_folders_and_the_newest_is_shown(build: ModuleType, tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.10.0rc1", "assets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(name)
    (tmp_path / "1.0.0").mkdir()  # a build that failed
    build.add_versions(tmp_path)
    listed = [each["version"] for each in json.loads((tmp_path / "versions.json").read_text())]
    assert listed == ["0.10.0", "0.10.0rc1", "0.9.0"]
    assert 'url=0.10.0/index.html"' in (tmp_path / "index.html").read_text()
    build.write_configuration(tmp_path / "mkdocs.yml", build.project_version())
    assert f"\ncopyright: dexorder {build.project_version()}," in (tmp_path / "mkdocs.yml").read_text()
