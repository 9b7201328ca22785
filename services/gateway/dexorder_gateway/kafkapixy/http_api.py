"""Kafka-Pixy's HTTP API: a second front of the KafkaPixy service.

`http_messages` lists the calls; each path exists below ``/clusters/NAME`` as well. ``GET /_ping`` answers ``pong``. The
answer is JSON; a failed request gets ``{"error": text}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Any

import orjson
from aiohttp import web

from dexorder_common.metrics import CallMetrics
from dexorder_common.model.errors import Code, NotAllowed
from dexorder_common.rpc.policy import Admit, Method, ServedCall
from dexorder_gateway.kafkapixy.http_messages import ROUTES, Route, parameters_of
from dexorder_gateway.kafkapixy.service import NAME, KafkaPixy, UnknownTopic

_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 409,
    Code.ABORTED: 409,  # proxies repeat many a call after 5xx, and this one may have been carried out
    Code.ALREADY_EXISTS: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
}
"""HTTP status by code; any other code is 500."""
_OWN_STATUS = {("ConsumeNAck", Code.NOT_FOUND): 408, ("ListConsumers", Code.NOT_FOUND): 400}
"""Where Kafka-Pixy has another status: the end of a long poll, and a group that does not read the topic."""


class HttpContext:
    """Facts about a request that the service and the admission use, in the form of grpcio's context.

    Attributes:
        sent: Whether the whole answer was written.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._callbacks: list[Callable[[HttpContext], None]] = []
        self.sent = False

    def peer(self) -> str:
        """Return ``unix:`` or the client's address."""
        transport = self._request.transport
        is_unix = transport is not None and isinstance(transport.get_extra_info("sockname"), str | bytes)
        return "unix:" if is_unix else f"http:{self._request.remote}"

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """Return the headers, names in lower case."""
        return [(name.lower(), value) for name, value in self._request.headers.items()]

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the names in the client's verified certificate."""
        certificate = self._request.get_extra_info("peercert") or {}
        subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
        common_name = [subject["commonName"].encode()] if "commonName" in subject else []
        others = [name.encode() for _, name in certificate.get("subjectAltName", ())]
        return {"x509_common_name": common_name, "x509_subject_alternative_name": others}

    def add_done_callback(self, callback: Callable[[HttpContext], None]) -> None:
        """Call this at the end of the request."""
        self._callbacks.append(callback)

    def done(self) -> bool:
        """Return whether the answer was sent."""
        return self.sent

    def time_remaining(self) -> float | None:
        """Return None: requests are without deadlines."""
        return None

    def finish(self) -> None:
        """Run the callbacks."""
        for callback in self._callbacks:
            callback(self)


class HttpApi:
    """Routes of the API.

    Args:
        pixy: Serves the calls.
        admit: Admission of callers, the same as for gRPC; None if the server requires no identity.
        hosts: Names of this server that have a dot.
    """

    def __init__(
        self, pixy: KafkaPixy, metrics: CallMetrics, admit: Admit | None, max_bytes: int, hosts: Iterable[str] = ()
    ) -> None:
        self._pixy = pixy
        self._hosts = frozenset(name.strip().lower() for name in hosts)
        self._metrics = metrics
        self._admit = admit
        self.app = web.Application(client_max_size=max_bytes)
        for route in ROUTES:
            for prefix in ("", "/clusters/{cluster}"):
                self.app.router.add_route(route.verb, prefix + route.path, partial(self._serve, route))
        self.app.router.add_get("/_ping", _ping)

    async def _serve(self, route: Route, request: web.Request) -> web.StreamResponse:
        context = HttpContext(request)
        tally = self._metrics.tally(("http", NAME, route.name))
        call = ServedCall(Method(NAME, route.name, tally, lambda method, error: None))
        try:
            response = await self._answer(route, request, context, call)
            await response.prepare(request)
            await response.write_eof()
            context.sent = True
            tally.sent += 1
        finally:
            context.finish()
            call.finish()
        return response

    async def _answer(self, route: Route, request: web.Request, context: HttpContext, call: ServedCall) -> web.Response:
        try:
            _refuse_web_pages(request)
            self._refuse_other_hosts(request, context)
            if self._admit is not None:
                self._admit(NAME, context)
            parameters = await parameters_of(request)
            message = await route.read(request, parameters)
            call.method.tally.received += 1
            if route.call is not None:
                answer = await route.call(self._pixy, message, parameters)
            else:
                answer = await getattr(self._pixy, route.name)(message, context)
        except web.HTTPRequestEntityTooLarge as error:
            call.code = Code.RESOURCE_EXHAUSTED
            return _json({"error": error.text}, 413)
        except BaseException as error:
            status = call.fail(error)
            if status is None:
                raise
            number = 404 if isinstance(error, UnknownTopic) else _STATUS.get(status.code, 500)
            return _json({"error": status.text}, _OWN_STATUS.get((route.name, status.code), number))
        return _json(route.show(answer, parameters))

    def _refuse_other_hosts(self, request: web.Request, context: HttpContext) -> None:
        """Refuse a Host that could be a foreign domain.

        If a web page's domain resolves to this server after the page was loaded (DNS rebinding), its GETs have neither
        ``Origin`` nor ``Sec-Fetch-Site``, because the server is its own. Its domain can't be an address, or a name
        without a dot.
        """
        host = request.headers.get("Host", "")
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
        if "." in name and name not in self._hosts and not _is_address(name) and context.peer() != "unix:":
            raise NotAllowed(
                f"Host {host[:100]!r} is not a name of this server; DEXORDER_GATEWAY_HTTP_HOSTS lists its names"
            )


@lru_cache(maxsize=64)
def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _refuse_web_pages(request: web.Request) -> None:
    """Refuse the requests of web pages: any page that a user of this machine visits could write to Kafka."""
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        raise NotAllowed("requests of web pages are not accepted")


async def _ping(request: web.Request) -> web.Response:
    return web.Response(text="pong")


def _json(body: Any, status: int = 200) -> web.Response:
    try:
        text = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    except TypeError:  # a name with a lone surrogate, which stands for a byte that is not UTF-8
        text = json.dumps(body, indent=2).encode()
    return web.Response(body=text, status=status, content_type="application/json")
