"""An invalid setting is reported at the start by its variable, without its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from dexorder_common.config import BadSettings, read_settings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.ingress.containers import read_containers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("channel_order", "TELEGRAM,FAX"),
        ("channel_order", "EMAIL,EMAIL"),
        ("channel_order", "WEB"),
        ("normal_ttl_seconds", "inf"),
        ("normal_ttl_seconds", "1e30"),  # its end would not fit into a column
        ("retention_days", "inf"),
        ("hard_events_per_second", "inf"),
        ("sub", "udp://x"),
        ("router", "tcp://127.0.0.1:1,tcp://127.0.0.1"),
        ("web_listen", "nonsense"),
        ("telegram_url", "ftp://host"),
        ("fcm_url", "fcm.googleapis.com"),
    ],
)
def test_an_invalid_value_is_reported_by_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable := f"DEXORDER_EVENTS_{name.upper()}", value)
    with pytest.raises(BadSettings, match=f"{variable}: ") as refused:
        read_settings(EventsSettings)
    assert value not in str(refused.value)


def test_valid_values_are_accepted() -> None:
    given = {
        "channel_order": "EMAIL, SLACK",
        "sub": "ipc:///run/sub",
        "router": "tcp://127.0.0.1:1, tcp://[::1]:2",
        "web_listen": "",
        "telegram_url": "http://127.0.0.1:8081/bots",
    }
    settings = EventsSettings(db="events.db", **given)  # type: ignore[arg-type]
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.exposed_addresses() == []
    outside = EventsSettings(db="events.db", sub="tcp://127.0.0.1:1, tcp://10.0.0.1:2")  # type: ignore[arg-type]
    assert outside.exposed_addresses() == ["tcp://10.0.0.1:2"]


def test_a_container_s_rate_is_finite(tmp_path: Path) -> None:
    file = tmp_path / "containers.yaml"
    file.write_text("containers: [{container: a, users: '*', quota: {hard_events_per_second: .inf}}]")
    with pytest.raises(ValueError, match="hard_events_per_second"):
        read_containers(file)
