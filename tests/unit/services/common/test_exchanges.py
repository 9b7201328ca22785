"""Exchanges file: valid and invalid content, replaced URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dexorder_common.exchanges import Exchange, load_exchanges, override_urls
from tests.paths import EXCHANGES


@pytest.mark.parametrize("name", ["sim", "binance"])
def test_shipped_files_are_valid(name: str) -> None:
    (venue, exchange), *_ = load_exchanges(EXCHANGES / f"{name}.yaml").items()
    assert (venue, exchange.ccxt, exchange.slots.historical) == (name.upper(), "binance", 8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exchanges: {}", "exchanges"),
        ("exchanges: {X: {ccxt: nosuch}}", r"exchanges\.X\.ccxt: .*'nosuch' is not an exchange"),
        ("exchanges: {X: {ccxt: binance, speed: 9}}", r"exchanges\.X\.speed"),
        ("exchanges: {X: {ccxt: binance, slots: {historical: -1}}}", r"exchanges\.X\.slots\.historical"),
        (
            "exchanges: {X: {ccxt: binance, archive: data.example.com}}",
            r"exchanges\.X\.archive: .* not the URL of a ser",
        ),
        ("exchanges: {X: {ccxt: binance, archive: 'ftp://data.example.com'}}", r"exchanges\.X\.archive"),
        ("exchanges: {X: {ccxt: binance, archive: 'https://data.example.com/x'}}", r"exchanges\.X\.archive"),
        ("exchanges: {X: {ccxt: binance, archive: 'https://me:secret@data.example.com'}}", r"exchanges\.X\.archive"),
        ("exchanges: {X: {ccxt: binance, archive: 'https://data.example.com:port'}}", r"exchanges\.X\.archive"),
        ("exchanges: [", "is not YAML"),
    ],
)
def test_error_names_the_place_in_the_file(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "exchanges.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        load_exchanges(path)


def test_every_host_is_replaced_and_paths_are_kept() -> None:
    exchange = Exchange(ccxt="binance", rest_url="http://127.0.0.1:9000", ws_url="ws://127.0.0.1:9001")
    urls = {
        "public": "https://api.example.com/api/v3",
        "ws": {"spot": "wss://stream.example.com:9443/ws"},
        "hosts": None,
    }
    assert override_urls(urls, exchange) == {
        "public": "http://127.0.0.1:9000/api/v3",
        "ws": {"spot": "ws://127.0.0.1:9001/ws"},
        "hosts": None,
    }
    assert override_urls(urls, Exchange(ccxt="binance")) == urls
