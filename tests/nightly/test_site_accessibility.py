"""axe on each page of the documentation's site, of the page of events and of a chart: no serious finding.

axe-core is a package of npm, of which the test uses one file, compared by its hash.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tests.browser
from dexorder.charts.html import write_html
from dexorder.rows.table import Rows
from dexorder.setup import config
from tests.browser import Page, browser
from tests.paths import ROOT
from tests.unit.dexorder.charts.test_html import table

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]
AXE = "axe-core@4.14.1"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
SERIOUS = {"serious", "critical"}
FORBIDDEN = "<main><img src='x.png'><button></button><p style='color: #ccc; background: #fff'>pale</p></main>"
"""Three serious findings: an image and a button without names, and text that is too pale."""


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the program of axe-core, downloaded once into the project's cache."""
    file = config.load().cache_dir / "peers" / f"{AXE}.js"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", AXE, "--silent"], cwd=file.parent, capture_output=True, text=True, timeout=600, check=True
        )
        pack = file.parent / done.stdout.split()[-1]
        with tarfile.open(pack) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            file.write_bytes(member.read())
        pack.unlink()
    text = file.read_bytes()
    assert hashlib.sha256(text).hexdigest() == AXE_SHA256, file
    return text.decode()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port for the block; yield its URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.fixture
async def page(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    """Open a tab as wide as a laptop's screen; axe may take its time with a long page."""
    monkeypatch.setattr(tests.browser, "WAIT_SECONDS", 600.0)
    async with browser() as running:
        found = await running.page()
        await found.screen(1280, 800)
        yield found


async def findings(page: Page, url: str, axe: str) -> list[str]:
    """Return the serious findings of a page, each with the first elements that it is about.

    Scripts of the theme name the search and make wide code reachable soon after a page has loaded; on a busy machine
    that is later, so what is found is looked at again.
    """
    await page.goto(url)
    await page.evaluate(f"(() => {{ {axe}\n }})()")
    found: list[str] = []
    for seconds in (0.0, 1.0, 5.0):
        await asyncio.sleep(seconds)
        if not (found := await _look(page)):
            break
    return found


async def _look(page: Page) -> list[str]:
    text = await page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(found))")
    found: list[dict[str, Any]] = json.loads(text)["violations"]
    return [
        f"{each['id']}: {[node['html'][:160] for node in each['nodes'][:2]]}"
        for each in found
        if each["impact"] in SERIOUS
    ]


async def test_axe_finds_what_is_wrong(page: Page, axe: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f"<!doctype html><html lang=en><title>x</title>{FORBIDDEN}")
    with served(tmp_path) as url:
        found = await findings(page, f"{url}/index.html", axe)
    assert {each.partition(":")[0] for each in found} == {"image-alt", "button-name", "color-contrast"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_no_page_of_the_site_has_a_serious_finding(
    dark: bool, page: Page, axe: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.getbasetemp() / "site"
    if not site.exists():
        command = [sys.executable, str(ROOT / "docs/site/build.py"), str(site)]
        await asyncio.to_thread(lambda: subprocess.run(command, check=True, capture_output=True))
    await page.screen(1280, 800, dark=dark)
    pages = sorted(each.relative_to(site).as_posix() for each in site.rglob("*.html") if each.name != "404.html")
    assert len(pages) > 100
    wrong = {}
    with served(site) as url:
        for each in pages:
            if found := await findings(page, f"{url}/{each}", axe):
                wrong[each] = found
    assert wrong == {}


async def test_neither_the_page_of_events_nor_a_chart_has_a_serious_finding(
    page: Page, axe: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "services/gateway/dexorder_gateway/events/page", tmp_path / "page")
    write_html(Rows(table(300)), tmp_path / "chart.html")
    with served(tmp_path) as url:
        assert await findings(page, f"{url}/page/index.html", axe) == []
        assert await findings(page, f"{url}/chart.html", axe) == []
