"""HTTP server for browsers: the page, its files, health, and the WebSocket.

It uses no cookies, which a foreign page could abuse; the Origin header is checked nevertheless.
"""

from __future__ import annotations

import asyncio
import mimetypes
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import structlog
from aiohttp import web

from dexorder_common.config import BadSettings
from dexorder_common.model.errors import Exhausted, SuiteError
from dexorder_common.model.user_events import Channel
from dexorder_gateway.events.channels.registry import SPECS
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.sessions.session import CLOSE_SECONDS
from dexorder_gateway.events.sessions.websocket import MAX_MESSAGE_BYTES, SessionBackend, WebSocketConnection
from dexorder_gateway.http1.server import server_tls
from dexorder_gateway.http_server import from_proxies, http_server

log = structlog.get_logger(__name__)
PAGE = Path(__file__).parents[1] / "page"
HEARTBEAT_SECONDS = 10.0
"""Interval of pings; a browser that does not answer for one and a half intervals is disconnected."""
MAX_UNAUTHORIZED = 1_000
"""Limit of WebSockets that have not authorized yet; a further one costs the oldest of them."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_CHANNEL_WORDS = {
    channel.name: SPECS[channel].word if channel in SPECS else {Channel.ACTIVE_SESSION: "Session"}.get(channel, "Web")
    for channel in Channel
}
"""Words of all channels for the page, by name in the order of the protocol's numbers."""
_TYPES = {".js": "text/javascript", ".webmanifest": "application/manifest+json"}


@asynccontextmanager
async def web_server(
    settings: EventsSettings,
    backend: SessionBackend,
    *,
    healthy: Callable[[], bool] = lambda: True,
    page: Path = PAGE,
    admits: Callable[[str], bool] | None = None,
) -> AsyncIterator[str]:
    """Serve until the block ends, unless ``web_listen`` is empty.

    Args:
        healthy: Decides the answer to ``GET /healthz``.
        page: Folder with the page's files, which are read once.
        admits: Decides from which IP addresses requests without TLS are answered; None: from any.

    Yields:
        host:port with the actual port; empty without a server.
    Raises:
        OSError: The address can't be bound.
        BadSettings: The TLS files can't be used.
    """
    if not settings.web_listen:
        yield ""
        return
    tls = _tls(settings)
    app = Web(settings, backend, healthy, page).app
    if admits is not None and tls is None:
        app.middlewares.append(from_proxies(admits))
    async with http_server(app, [settings.web_listen], tls, stop_seconds=CLOSE_SECONDS) as (address,):
        log.info("page and WebSocket", address=address, tls=tls is not None)
        yield address


def _tls(settings: EventsSettings) -> ssl.SSLContext | None:
    if not settings.web_tls_certificate or not settings.web_tls_key:
        return None
    try:
        return server_tls(settings.web_tls_certificate, settings.web_tls_key)
    except OSError as error:  # SSLError is one
        raise BadSettings(f"DEXORDER_EVENTS_WEB_TLS_CERTIFICATE and _KEY can't be used: {error}") from None


class Web:
    """Routes of the server."""

    def __init__(
        self, settings: EventsSettings, backend: SessionBackend, healthy: Callable[[], bool], page: Path
    ) -> None:
        self._backend = backend
        self._healthy = healthy
        self._origins = {origin.strip() for origin in settings.web_origins.split(",") if origin.strip()}
        self._headers = dict(_HEADERS)
        if settings.web_tls_certificate:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"
        self._files = page_files(page)
        self._unauthorized: dict[web.WebSocketResponse, asyncio.Transport | None] = {}
        """Connections that have not shown their token, the oldest first."""
        self.app = web.Application()
        self.app.on_response_prepare.append(self._secure)
        self.app.router.add_get("/healthz", self._health)
        self.app.router.add_get("/v1/events", self._events)
        self.app.router.add_get("/{name:[^/]*}", self._file)

    async def _secure(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(self._headers)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if self._healthy() else web.Response(status=503, text="not serving\n")

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"] or "index.html")
        if found is None:
            raise web.HTTPNotFound
        body, kind = found
        return web.Response(body=body, content_type=kind, charset="utf-8" if kind.startswith("text/") else None)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if not self._allows_origin(request.headers.get("Origin"), request.host):
            raise web.HTTPForbidden(text="this origin may not open a session\n")
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_SECONDS, max_msg_size=MAX_MESSAGE_BYTES, compress=False, timeout=CLOSE_SECONDS
        )
        await socket.prepare(request)
        try:
            await self._serve(socket, request.transport)
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            # Drop the unsent data of a client that does not read.
            if (transport := request.transport) and (not socket.closed or transport.get_write_buffer_size()):
                transport.abort()
        return socket

    async def _serve(self, socket: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        connection = WebSocketConnection(socket, self._backend)
        self._make_room()
        self._unauthorized[socket] = transport
        try:
            await connection.authorize()
        except SuiteError as error:
            self._backend.metrics.refused.labels("websocket", error.code.name).inc()
            await connection.refuse(error)
            return
        finally:
            self._unauthorized.pop(socket, None)
        try:
            await connection.run()
        except SuiteError as error:
            await connection.refuse(error)
        finally:
            connection.close()

    def _make_room(self) -> None:
        """Close the connections that have waited longest. One that shows its token at once is not among them."""
        while len(self._unauthorized) >= MAX_UNAUTHORIZED:
            oldest = next(iter(self._unauthorized))
            if transport := self._unauthorized.pop(oldest):
                self._backend.metrics.refused.labels("websocket", Exhausted.code.name).inc()
                transport.abort()

    def _allows_origin(self, origin: str | None, host: str) -> bool:
        """Return whether a request may open a session. Browsers always send the page's origin, other clients do not."""
        return origin is None or origin in self._origins or urlsplit(origin).netloc == host


def page_files(page: Path) -> dict[str, tuple[bytes, str]]:
    """Read the files: name -> content and type. Other names are never used as a path."""
    found = {}
    for path in sorted(page.iterdir()) if page.is_dir() else ():
        if path.is_file() and path.suffix != ".py" and not path.name.startswith((".", "_")):
            kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            found[path.name] = path.read_bytes(), kind
    found["channels.js"] = b"export const CHANNEL_WORDS = %b;\n" % orjson.dumps(_CHANNEL_WORDS), _TYPES[".js"]
    return found
