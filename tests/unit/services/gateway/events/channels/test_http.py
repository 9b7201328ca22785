"""How long a provider asks us to wait, however it says so; and what does not go on to the next call."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from services.gateway.events.channels.http import Answer, Http
from services.gateway.events.model import Later
from tests.fakes.events.scripted import Reply, ScriptedServer

DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("said", "milliseconds"),
    [
        ("3", 3000),
        ("0.5", 500),
        ("0", None),
        ("-1", None),
        ("nan", None),
        ("inf", DAY_MS),
        ("1e999", DAY_MS),
        ("99999999", DAY_MS),
        ("", None),
        ("soon", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("Wed, 99 Oct 99999 07:28:00 GMT", None),
    ],
)
def test_retry_after(said: str, milliseconds: int | None) -> None:
    assert Answer(429, {"Retry-After": said}, b"").later() == Later("too many requests", milliseconds)


def test_retry_after_as_a_date() -> None:
    later = Answer(503, {"Retry-After": formatdate(time.time() + 60, usegmt=True)}, b"").later()
    assert later and later.retry_after_ms and 55_000 < later.retry_after_ms <= 60_000


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 410, 413])
def test_other_answers_are_no_later(status: int) -> None:
    assert Answer(status, {"Retry-After": "3"}, b"").later() is None


async def test_calls_that_hang_do_not_take_the_connections_of_others() -> None:
    async with ScriptedServer() as silent, ScriptedServer() as server, Http(60.0) as http, asyncio.TaskGroup() as group:
        silent.always = Reply(hang=True)
        hanging = [group.create_task(http.post(silent.url, json={})) for _ in range(120)]
        await silent.called(120, seconds=30.0)
        assert isinstance(await http.post(server.url, json={}), Answer)
        for call in hanging:
            call.cancel()


async def test_cookies_and_redirects_are_not_followed_and_long_answers_not_read() -> None:
    async with ScriptedServer() as server, Http(30.0) as http:
        server.script(
            Reply(200, "x" * 1_000_000, {"Set-Cookie": "of=alice; Path=/"}), Reply(307, "", {"Location": "/b"})
        )
        first = await http.post(f"{server.url}/a", json={})
        second = await http.post(f"{server.url}/a", json={})
        assert isinstance(first, Answer) and len(first.body) == 65_536
        assert isinstance(second, Answer) and second.status == 307
        assert [call.path for call in server.calls] == ["/a", "/a"]
        assert "Cookie" not in server.calls[1].headers
