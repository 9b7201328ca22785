"""Kafka-Pixy's HTTP API: a second front of the KafkaPixy service.

`http_messages` lists the calls; each path exists below ``/clusters/NAME`` as well. ``GET /_ping`` answers ``pong``. The
answer is JSON; a failed request gets ``{"error": text}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Any

import orjson

from dexorder_common.metrics import CallMetrics
from dexorder_common.model.errors import Code, InvalidRequest, NotAllowed
from dexorder_common.rpc.policy import Admit, Method, ServedCall
from dexorder_gateway.http1.connection import HttpPeer
from dexorder_gateway.http1.messages import HttpAnswer, HttpRequest
from dexorder_gateway.kafkapixy.http_messages import ROUTES, Place, Route, parameters_of, routes_of
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


_PONG = HttpAnswer(b"pong", content_type="text/plain; charset=utf-8")


class HttpContext:
    """Facts about a request that the service and the admission use, in the form of grpcio's context.

    Attributes:
        sent: Whether the whole answer was written.
    """

    def __init__(self, request: HttpRequest, client: HttpPeer) -> None:
        self._request = request
        self._client = client
        self._callbacks: list[Callable[[HttpContext], None]] = []
        self.sent = False

    def peer(self) -> str:
        """Return ``unix:`` or the client's address."""
        return "unix:" if self._client.is_unix else f"http:{self._client.remote}"

    def invocation_metadata(self) -> Iterable[tuple[str, str]]:
        """Return the headers, names in lower case."""
        return self._request.headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the names in the client's verified certificate."""
        return self._client.auth

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
    """The API for an HTTP server.

    Args:
        pixy: Serves the calls.
        admit: Admission of callers, the same as for gRPC; None if the server requires no identity.
        max_bytes: Largest body of a request.
        hosts: Names of this server that have a dot.
    """

    def __init__(
        self, pixy: KafkaPixy, metrics: CallMetrics, admit: Admit | None, max_bytes: int, hosts: Iterable[str] = ()
    ) -> None:
        self._pixy = pixy
        self._hosts = frozenset(name.strip().lower() for name in hosts)
        self._admit = admit
        self._max_bytes = max_bytes
        self._methods = {
            route.name: Method(NAME, route.name, metrics.tally(("http", NAME, route.name)), lambda method, error: None)
            for route in ROUTES
        }

    async def serve(self, request: HttpRequest, client: HttpPeer) -> HttpAnswer:
        """Answer one request."""
        path, verb = request.path, request.method
        if path == "/_ping" and verb in ("GET", "HEAD"):
            return _PONG
        try:
            routes, place = routes_of(path)
        except InvalidRequest as error:
            return _json({"error": str(error)}, 400)
        if not routes:
            return _json({"error": f"no call has the path {path[:200]!r}"}, 404)
        if (route := routes.get(verb)) is None:
            return _not_allowed(path, verb, routes)
        context, call = HttpContext(request, client), ServedCall(self._methods[route.name])
        request.on_end = partial(_end, context, call)
        return await self._answer(route, request, place, context, call)

    async def _answer(
        self, route: Route, request: HttpRequest, place: Place, context: HttpContext, call: ServedCall
    ) -> HttpAnswer:
        try:
            _refuse_web_pages(request)
            self._refuse_other_hosts(request, context)
            if self._admit is not None:
                self._admit(NAME, context)
            if request.is_too_large:
                call.code = Code.RESOURCE_EXHAUSTED
                return _json({"error": f"Maximum request body size {self._max_bytes} exceeded"}, 413)
            parameters = parameters_of(request)
            message = route.read(request, place, parameters)
            call.method.tally.received += 1
            if route.call is not None:
                answer = await route.call(self._pixy, message, parameters)
            else:
                answer = await getattr(self._pixy, route.name)(message, context)
        except BaseException as error:
            status = call.fail(error)
            if status is None:
                raise
            number = 404 if isinstance(error, UnknownTopic) else _STATUS.get(status.code, 500)
            return _json({"error": status.text}, _OWN_STATUS.get((route.name, status.code), number))
        return _json(route.show(answer, parameters))

    def _refuse_other_hosts(self, request: HttpRequest, context: HttpContext) -> None:
        """Refuse a Host that could be a foreign domain.

        If a web page's domain resolves to this server after the page was loaded (DNS rebinding), its GETs have neither
        ``Origin`` nor ``Sec-Fetch-Site``, because the server is its own. Its domain can't be an address, or a name
        without a dot.
        """
        host = request.first.get("host", "")
        if not _is_own(host, self._hosts) and context.peer() != "unix:":
            raise NotAllowed(
                f"Host {host[:100]!r} is not a name of this server; DEXORDER_GATEWAY_HTTP_HOSTS lists its names"
            )


@lru_cache(maxsize=64)
def _is_own(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host has no dot, or is an address or one of our names."""
    name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
    if "." not in name or name in names:
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _refuse_web_pages(request: HttpRequest) -> None:
    """Refuse the requests of web pages: any page that a user of this machine visits could write to Kafka."""
    if "origin" in request.first or request.first.get("sec-fetch-site", "none") != "none":
        raise NotAllowed("requests of web pages are not accepted")


def _not_allowed(path: str, verb: str, routes: Iterable[str]) -> HttpAnswer:
    allowed = ", ".join(routes)
    text = f"{path[:200]!r} has no call with {verb}; it has {allowed}"
    return replace(_json({"error": text}, 405), allow=allowed)


def _end(context: HttpContext, call: ServedCall, was_sent: bool) -> None:
    context.sent = was_sent
    call.method.tally.sent += was_sent
    context.finish()
    call.finish()


def _json(body: Any, status: int = 200) -> HttpAnswer:
    try:
        text = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    except TypeError:  # a name with a lone surrogate, which stands for a byte that is not UTF-8
        text = json.dumps(body, indent=2).encode()
    return HttpAnswer(text, status)
