"""Memory that peers without an account can take on 5570 and 5571: messages without an end, and unread ones."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import zmtp
from tests.integration.events.frozen import gateway_without_quotas

MAX_GROWTH_BYTES = 100 << 20
"""For eight connections; each pushed several hundred MiB before there was a limit."""
CLOSED_S = 12.0


def push(peer: socket.socket, part: bytes) -> None:
    peer.settimeout(CLOSED_S)
    with suppress(OSError), peer:
        for _ in range((400 << 20) // len(part)):
            peer.sendall(part)


@pytest.mark.smoke
def test_no_connection_fills_the_memory(tmp_path: Path) -> None:
    large = b"\x03" + (200_000).to_bytes(8) + bytes(200_000)
    tiny = b"\x01\x01a" * 20_000
    unread = zmtp.message(b"USER:nobody\x00", b"\x01", b"\x20" + bytes(200_000))
    with gateway_without_quotas(tmp_path) as gateway:
        before = gateway.rss_bytes()
        pushing = [
            threading.Thread(target=push, args=(zmtp.connect(address, kind), part))
            for address, kind in ((gateway.router, b"DEALER"), (gateway.sub, b"XPUB"))
            for part in (large, large, tiny, unread)
        ]
        for each in pushing:
            each.start()
        most = before
        while any(each.is_alive() for each in pushing):
            most = max(most, gateway.rss_bytes())
            time.sleep(0.1)
        assert most - before < MAX_GROWTH_BYTES, f"{(most - before) >> 20} MiB"
        assert gateway.running.lives, gateway.tail()
