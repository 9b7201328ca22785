"""Client of the HTTP API, without anything of ours."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from pathlib import Path
from typing import Any, NamedTuple

from tests.gateway_thread import WAIT_SECONDS


class Answer(NamedTuple):
    """Status and parsed body of an answer."""

    status: int
    body: Any


class HttpClient:
    """One connection per request."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls

    def connect(self) -> http.client.HTTPConnection:
        if self._address.startswith("unix:"):
            connection = http.client.HTTPConnection("localhost", timeout=WAIT_SECONDS)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(Path(self._address.removeprefix("unix:"))))
            return connection
        if self._tls:
            return http.client.HTTPSConnection(self._address, timeout=WAIT_SECONDS, context=self._tls)
        return http.client.HTTPConnection(self._address, timeout=WAIT_SECONDS)

    def call(self, verb: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send a request; ``_`` in the names of headers is a hyphen."""
        connection = self.connect()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(verb, path, body, named)
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers.get("Content-Type") == "application/json"
            return Answer(answer.status, json.loads(text) if is_json else text.decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, None, **headers)

    def post(self, path: str, body: bytes = b"", kind: str = "text/plain", **headers: str) -> Answer:
        return self.call("POST", path, body, Content_Type=kind, **headers)

    def consume(self, topic: str, more: str = "", group: str = "") -> dict[str, Any]:
        """Return the next record, after empty long polls while the group is joined."""
        for _ in range(60):
            status, body = self.get(f"/topics/{topic}/messages?group={group or topic}{more}")
            if status != 408:
                assert status == 200, body
                return dict(body)
        raise AssertionError(f"nothing came from {topic}")
