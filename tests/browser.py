"""Headless Chromium, controlled by the DevTools protocol, for tests of our page."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dexorder.supervisor.orphan_guard import guarded
from tests.debian import ensure_installed

WAIT_SECONDS = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--lang=en-GB",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
IN_VIEW = (
    "const e = document.querySelector(%s); e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
)


def chromium() -> Path:
    """Return the browser's path; install Debian's package if it is missing, else fail."""
    found = ensure_installed("chromium", _installed)
    if found is None:
        pytest.fail("Chromium is not installed, and only root can install it: apt-get install chromium")
    return found


def _installed() -> Path | None:
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """Browser tab with its own storage.

    Attributes:
        urls: Every URL that it asked for, WebSockets too.
        complaints: Errors and warnings of its console, uncaught exceptions, what its Content-Security-Policy refused.
        sent: Texts that it sent on WebSockets.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.urls: list[str] = []
        self.complaints: list[str] = []
        self.sent: list[str] = []

    async def call(self, method: str, **given: Any) -> Any:
        """Make a DevTools call for this tab."""
        return await self._browser.call(method, given, self._session)

    async def goto(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression as JSON; await it if it is a promise."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = WAIT_SECONDS) -> Any:
        """Wait until an expression is true and return its value."""
        deadline = time.monotonic() + seconds
        while not (value := await self.evaluate(expression)):
            if time.monotonic() > deadline:
                text = await self.evaluate("document.body.innerText")
                raise AssertionError(f"not within {seconds} s: {expression}\n{text}\n{self.complaints}")
            await asyncio.sleep(0.03)
        return value

    async def click(self, selector: str) -> None:
        """Click in the middle of an element as a user does; an element that covers it receives the click."""
        await self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        x, y = await self.evaluate(
            f"(() => {{ {IN_VIEW % json.dumps(selector)} return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def fill(self, selector: str, text: str) -> None:
        """Insert a text into a field."""
        await self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = ''; e.focus(); }})()"
        )
        await self.call("Input.insertText", text=text)

    async def text(self, selector: str) -> str:
        """Return the text of a visible element."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def screen(
        self, width: int, height: int, *, dark: bool = False, phone: bool = False, scale: float = 1
    ) -> None:
        """Set the screen size in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, file: Path) -> None:
        """Save a screenshot as PNG."""
        png = base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])
        await asyncio.to_thread(file.write_bytes, png)

    async def unnamed_controls(self) -> list[str]:
        """Return the roles of controls without an accessible name."""
        nodes = (await self.call("Accessibility.getFullAXTree"))["nodes"]
        roles = {"button", "link", "textbox", "searchbox", "radio", "checkbox", "dialog", "region", "table"}
        return [
            node["role"]["value"]
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in roles and not node.get("name", {}).get("value")
        ]

    def take(self, method: str, given: dict[str, Any]) -> None:
        """Handle an event of the tab."""
        if method == "Network.requestWillBeSent":
            self.urls.append(given["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.urls.append(given["url"])
        elif method == "Network.webSocketFrameSent":
            self.sent.append(given["response"]["payloadData"])
        elif method == "Log.entryAdded" and given["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(given["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in {"error", "warning"}:
            self.complaints.append(json.dumps(given["args"]))


class Browser:
    """Running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._pages: dict[str, Page] = {}

    async def page(self) -> Page:
        """Open an empty tab that shares nothing with the others."""
        context = await self.call("Target.createBrowserContext", {})
        target = await self.call("Target.createTarget", {"url": "about:blank", **context})
        attached = await self.call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            await page.call(f"{domain}.enable")
        return page

    async def call(self, method: str, given: dict[str, Any], session: str | None = None) -> Any:
        """Make a DevTools call."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": given}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        return await asyncio.wait_for(answer, WAIT_SECONDS)

    async def read(self) -> None:
        """Read the browser's messages until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" not in said:
                if page := self._pages.get(said.get("sessionId", "")):
                    page.take(said["method"], said["params"])
            elif "error" in said:
                self._answers.pop(said["id"]).set_exception(RuntimeError(str(said["error"])))
            else:
                self._answers.pop(said["id"]).set_result(said["result"])


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run Chromium with a new profile for the block."""
    program = chromium()
    with tempfile.TemporaryDirectory(prefix="dexorder-chromium-", ignore_cleanup_errors=True) as folder:
        process = _started(program, Path(folder))
        try:
            address = await _devtools(Path(folder))
            async with (
                aiohttp.ClientSession() as client,
                client.ws_connect(address, max_msg_size=0) as socket,
                asyncio.TaskGroup() as group,
            ):
                running = Browser(socket)
                reading = group.create_task(running.read())
                yield running
                reading.cancel()
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


def _started(program: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start the browser; it dies with this process."""
    command = [*guarded(), str(program), *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


async def _devtools(folder: Path) -> str:
    """Return the address that Chromium writes to a file once it listens."""
    deadline = time.monotonic() + WAIT_SECONDS
    file = folder / "DevToolsActivePort"
    while not file.exists() or file.read_text().count("\n") < 1:
        assert time.monotonic() < deadline, (folder / "log").read_text(errors="replace")[-3000:]
        await asyncio.sleep(0.05)
    port, path = file.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"
