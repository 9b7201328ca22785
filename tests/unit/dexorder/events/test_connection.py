"""Log lines of a connection that the gateway refuses."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from dexorder.events import connection as under_test
from dexorder.events.config import PublisherSettings
from dexorder.events.connection import Connection


class CountingLog:
    """Log that records its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, line: str, **_: Any) -> None:
        self.lines.append(line)


def test_a_refusal_is_logged_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq reconnects ten times a second to a peer that hangs up."""
    monkeypatch.setattr(under_test, "log", counting := CountingLog())
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as gateway:
        gateway.settimeout(20)
        settings = PublisherSettings(outbox=tmp_path / "o.db")
        connection = Connection(context, zmq.DEALER, f"tcp://127.0.0.1:{gateway.getsockname()[1]}", settings)
        try:
            for _ in range(4):
                gateway.accept()[0].close()
                assert connection.monitor.poll(20_000)
                assert not connection.poll(now_ns=1)  # its clock stands still
            assert counting.lines == ["the handshake with the gateway failed"]
        finally:
            connection.close()
