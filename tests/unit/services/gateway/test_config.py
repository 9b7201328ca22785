"""Settings: what they say and what they refuse."""

from __future__ import annotations

import pytest

from services.common.config import load_settings
from services.gateway.config import GatewaySettings, WantedTopic, parse_topics


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("", ()),
        ("a:1", (WantedTopic("a", 1),)),
        ("dexorder.ohlc:4, a_b-C:12,", (WantedTopic("dexorder.ohlc", 4), WantedTopic("a_b-C", 12))),
    ],
)
def test_topics(text: str, topics: tuple[WantedTopic, ...]) -> None:
    assert parse_topics(text) == topics


@pytest.mark.parametrize("text", ["a", "a:", "a:0", "a:-1", "a:x", "a:²", "a b:1", ":1", "..:1", "a:1,a:2", "a:1:2"])
def test_bad_topics_name_their_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEXORDER_GATEWAY_TOPICS", text)
    with pytest.raises(SystemExit, match="DEXORDER_GATEWAY_"):
        load_settings(GatewaySettings)


def test_one_cluster_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_GATEWAY_KAFKA", "kafka:9093")
    monkeypatch.setenv("DEXORDER_GATEWAY_KAFKA_OPTIONS", '{"sasl.password": "secret"}')
    monkeypatch.setenv("DEXORDER_GATEWAY_ACK_TIMEOUT_SECONDS", "7")
    (cluster,) = load_settings(GatewaySettings).clusters()
    assert (cluster.name, cluster.kafka, cluster.consume.ack_timeout_seconds) == ("default", "kafka:9093", 7)
    assert dict(cluster.options) == {"sasl.password": "secret"}
    assert [t.name for t in cluster.topics] == ["dexorder.ohlc", "dexorder.ticks", "dexorder.tickers"]
    assert "secret" not in repr(cluster)
