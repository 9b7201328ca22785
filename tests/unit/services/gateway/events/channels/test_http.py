"""Allowed hosts, the wait that a provider asks for, and isolation of calls from each other."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from dexorder_gateway.events.channels.http import AllowedHosts, Http, ProviderAnswer
from dexorder_gateway.events.model import Later, Sent
from tests.fakes.events.scripted import Reply, ScriptedServer

DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("header", "milliseconds"),
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
def test_retry_after(header: str, milliseconds: int | None) -> None:
    assert ProviderAnswer(429, {"Retry-After": header}, b"").later() == Later("too many requests", milliseconds)


def test_retry_after_as_a_date() -> None:
    later = ProviderAnswer(503, {"Retry-After": formatdate(time.time() + 60, usegmt=True)}, b"").later()
    assert later and later.retry_after_ms and 55_000 < later.retry_after_ms <= 60_000


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 410, 413])
def test_other_answers_are_not_later(status: int) -> None:
    assert ProviderAnswer(status, {"Retry-After": "3"}, b"").later() is None


async def test_calls_that_hang_do_not_take_the_connections_of_others() -> None:
    async with ScriptedServer() as silent, ScriptedServer() as server, Http(60.0) as http, asyncio.TaskGroup() as group:
        silent.always = Reply(hang=True)
        hanging = [group.create_task(http.post(silent.url, json={})) for _ in range(120)]
        await silent.called(120, seconds=30.0)
        assert await http.post(server.url, json={}) == Sent()
        for call in hanging:
            call.cancel()


async def test_cookies_and_redirects_are_not_followed_and_long_answers_not_read() -> None:
    async with ScriptedServer() as server, Http(30.0) as http:
        server.script(
            Reply(400, "x" * 1_000_000, {"Set-Cookie": "of=alice; Path=/"}), Reply(307, "", {"Location": "/b"})
        )
        first = await http.post(f"{server.url}/a", json={})
        second = await http.post(f"{server.url}/a", json={})
        assert isinstance(first, ProviderAnswer) and len(first.body) == 65_536
        assert isinstance(second, ProviderAnswer) and second.status == 307
        assert [call.path for call in server.calls] == ["/a", "/a"]
        assert "Cookie" not in server.calls[1].headers


LISTED = "discord.com, *.push.apple.com,gate.test:8443,*.wide.test:444"


@pytest.mark.parametrize(
    "url",
    [
        "https://discord.com/api/webhooks/1/t?thread_id=2",
        "https://DISCORD.com:443/",
        "https://web.push.apple.com/x",
        "https://a.b.push.apple.com/x",
        "https://gate.test:8443/",
        "https://a.wide.test:444/",
    ],
)
def test_listed_hosts_are_allowed(url: str) -> None:
    assert AllowedHosts(LISTED).parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "discord.com",
        "//discord.com/",
        "https:///x",
        "https:discord.com",
        "http://discord.com/",
        "ftp://discord.com/",
        "file:///etc/passwd",
        "https://discord.com:8443/",
        "https://gate.test/",
        "https://wide.test:444/",
        "https://push.apple.com/",
        "https://xpush.apple.com/",
        "https://web.push.apple.com.evil.test/",
        "https://discord.com.evil.test/",
        "https://evildiscord.com/",
        "https://evil.test/discord.com",
        "https://evil.test\\@discord.com/",
        "https://discord.com\\.evil.test/",
        "https://user@discord.com/",
        "https://user:password@discord.com/",
        "https://discord.com@evil.test/",
        "https://evil.test#@discord.com/",
        "https://evil.test?@discord.com/",
        "https://discord.com%2eevil.test/",
        "https://discord.com./",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://2130706433/",
        "https://169.254.169.254/latest/meta-data",
        "https://*.push.apple.com/",
        "https://discord.com:99999/",
        "https://[::1/",
        "https://discord.com:x/",
        "https://\ud800.com/",
    ],
)
def test_other_hosts_are_not_allowed(url: str) -> None:
    found = AllowedHosts(LISTED).parse(url)
    assert found is None


def test_the_url_that_is_called_is_the_one_that_was_checked() -> None:
    """Tabs, line ends, full-width letters and empty names vanish; the check sees the host without them."""
    for url in (
        "https://@discord.com/",
        "https://dis\tcord.com/",
        "https://ｄiscord.com/",
        " https://discord.com/",
        "https://discord.com\n/",
    ):
        found = AllowedHosts(LISTED).parse(url)
        assert found is None or (found.host, found.user) == ("discord.com", None)


def test_plain_http_only_where_it_is_set() -> None:
    assert AllowedHosts("127.0.0.1:80,127.0.0.1:8080", plain_http=True).parse("http://127.0.0.1:8080/")
    assert not AllowedHosts("127.0.0.1:8080").parse("http://127.0.0.1:8080/")
    assert not AllowedHosts("127.0.0.1:8080", plain_http=True).parse("http://127.0.0.1:8081/")
    assert not AllowedHosts("").parse("https://discord.com/")
