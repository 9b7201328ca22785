"""Whatever a user writes as a URL, only listed hosts are called."""

from __future__ import annotations

import pytest

from services.gateway.events.channels.hosts import Hosts

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
    assert Hosts(LISTED).allowed(url)


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
def test_others_are_not(url: str) -> None:
    found = Hosts(LISTED).allowed(url)
    assert found is None


def test_what_is_called_is_what_was_checked() -> None:
    """Tabs, line ends, full-width letters and empty names vanish: the host that is left was the one checked."""
    for url in (
        "https://@discord.com/",
        "https://dis\tcord.com/",
        "https://ｄiscord.com/",
        " https://discord.com/",
        "https://discord.com\n/",
    ):
        found = Hosts(LISTED).allowed(url)
        assert found is None or (found.host, found.user) == ("discord.com", None)


def test_plain_http_only_where_it_is_set() -> None:
    assert Hosts("127.0.0.1:80,127.0.0.1:8080", plain_http=True).allowed("http://127.0.0.1:8080/")
    assert not Hosts("127.0.0.1:8080").allowed("http://127.0.0.1:8080/")
    assert not Hosts("127.0.0.1:8080", plain_http=True).allowed("http://127.0.0.1:8081/")
    assert not Hosts("").allowed("https://discord.com/")
