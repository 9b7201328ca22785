"""Events page in a browser tab: sign-in and selectors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.browser import Browser, Page

CARDS = "[...document.querySelectorAll('.card h3')].map(e => e.textContent)"
CONNECTION = "document.querySelector('#connection').textContent"


@asynccontextmanager
async def opened(url: str, chromium: Browser, token: str) -> AsyncIterator[Page]:
    """Open a tab with the page and sign in with this token."""
    page = await chromium.page()
    await page.screen(1440, 900)
    await page.goto(url)
    await sign_in(page, token)
    yield page


async def sign_in(page: Page, token: str) -> None:
    """Enter a token and submit it."""
    await page.fill("#token", token)
    await page.click("#sign-in-submit")
