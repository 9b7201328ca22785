"""Answers as literal bytes."""

from __future__ import annotations

import pytest

from dexorder_gateway.http1.answer import encoded
from dexorder_gateway.http1.messages import HttpAnswer, HttpRequest

DATE = "Sun, 29 Nov 2026 10:00:00 GMT"


def request(method: str = "GET", *, is_old: bool = False) -> HttpRequest:
    return HttpRequest(method, b"/", [], {}, keeps_alive=True, is_old=is_old)


@pytest.mark.parametrize(
    ("answer", "asked", "closes", "shown"),
    [
        (
            HttpAnswer(b"{}"),
            request(),
            False,
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nDate: %s\r\n\r\n{}",
        ),
        (
            HttpAnswer(b"pong", content_type="text/plain"),
            request("HEAD"),
            True,
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
            b"Date: %s\r\nConnection: close\r\n\r\n",
        ),
        (
            HttpAnswer(b"", 405, allow="GET, POST"),
            request(is_old=True),
            False,
            b"HTTP/1.1 405 Method Not Allowed\r\nContent-Type: application/json\r\nAllow: GET, POST\r\n"
            b"Content-Length: 0\r\nDate: %s\r\nConnection: keep-alive\r\n\r\n",
        ),
        (
            HttpAnswer(b"x", 431),
            None,
            True,
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\nContent-Length: 1\r\n"
            b"Date: %s\r\nConnection: close\r\n\r\nx",
        ),
    ],
)
def test_an_answer_on_the_wire(answer: HttpAnswer, asked: HttpRequest | None, closes: bool, shown: bytes) -> None:
    assert encoded(answer, asked, DATE, closes=closes) == shown % DATE.encode()
