"""Answers as bytes. Pure."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus

from dexorder_gateway.http1.messages import HttpAnswer, HttpRequest


def encoded(answer: HttpAnswer, request: HttpRequest | None, date: str, *, closes: bool) -> bytes:
    """Return an answer as the client reads it.

    Args:
        request: None if it could not be read.
        date: The time in the form of RFC 9110.
        closes: Whether the connection ends with this answer.
    """
    shown = _head(answer.status, answer.content_type, answer.allow)
    connection = "Connection: close\r\n" if closes else ""
    if request is not None and request.is_old and not closes:
        connection = "Connection: keep-alive\r\n"
    lines = f"{shown}Content-Length: {len(answer.body)}\r\nDate: {date}\r\n{connection}\r\n".encode()
    return lines if request is not None and request.method == "HEAD" else lines + answer.body


@lru_cache(maxsize=64)
def _head(status: int, content_type: str, allow: str) -> str:
    allowed = f"Allow: {allow}\r\n" if allow else ""
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n{allowed}"
