"""What a link says of a gateway that does not let it in."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from dexorder.events import connection as under_test
from dexorder.events.config import PublisherSettings
from dexorder.events.connection import Connection


class Said:
    """A log that counts."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, line: str, **_: Any) -> None:
        self.lines.append(line)


def test_a_refusal_is_said_once_in_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libzmq tries one that hangs up again ten times a second."""
    monkeypatch.setattr(under_test, "log", said := Said())
    with zmq.Context() as context, socket.create_server(("127.0.0.1", 0)) as gateway:
        gateway.settimeout(20)
        settings = PublisherSettings(outbox=tmp_path / "o.db")
        link = Connection(context, zmq.DEALER, f"tcp://127.0.0.1:{gateway.getsockname()[1]}", settings)
        try:
            for _ in range(4):
                gateway.accept()[0].close()
                assert link.monitor.poll(20_000)
                assert not link.look(now_ns=1)  # no time passes for it
            assert said.lines == ["no handshake with the gateway; is CURVE set alike?"]
        finally:
            link.close()
