"""What the relay reads of all triggers at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dexorder_common.model.triggers import EventKind, Trigger
from dexorder_relay.state import triggers as rules
from dexorder_relay.state.triggers import DataRead
from dexorder_relay.store import triggers
from dexorder_relay.store.database import Store

BTC, ETH = "BTC/USDT.SIM", "ETH/USDT.SIM"


async def _filled(path: Path) -> Store:
    """Return a store with triggers in every state, several of which read the same data."""
    store = Store(path, now_ns=0)
    given = [
        (Trigger("a", "SELECT 1", (BTC,), client_id="me"), 60),
        (Trigger("b", "SELECT 2", (BTC,), parameters={"level": "5"}, client_id="me"), 60),
        (Trigger("on tick", "SELECT 1", (BTC,), parameters={"on": "tick", "level": "6"}, client_id="you"), 60),
        (Trigger("two markets", "SELECT 1", (BTC, ETH), client_id="you"), 300),
        (Trigger("paused", "SELECT 1", (ETH,), client_id="me"), 900),
        (Trigger("suspended", "SELECT 1", (ETH,), client_id="me"), 1_800),
        (Trigger("ended", "SELECT 1", (ETH,), client_id="me"), 3_600),
        (Trigger("deleted", "SELECT 1", (ETH,), client_id="gone"), 7_200),
    ]
    stored = await store.write(triggers.register, given, now_ns=1, limit=None)
    assert all(is_new for _, is_new in stored)
    names = {found.trigger.trigger_id: found.registration for found in await store.read(triggers.page, "", "", 0, -1)}
    await store.write(triggers.pause, "paused", paused=True, now_ns=2)
    await store.write(triggers.delete, "deleted", now_ns=2)
    ends = [
        triggers.ReportedEvent(name, names[name], kind, ETH, 3, b"", "why")
        for name, kind in (("suspended", EventKind.SUSPENDED), ("ended", EventKind.ENDED))
    ]
    await store.write(triggers.report, ends, None, now_ns=3)
    return store


async def test_data_read_has_each_combination_once_of_the_triggers_that_read(tmp_path: Path) -> None:
    store = await _filled(tmp_path / "relay.db")
    found = await store.read(triggers.data_read)
    assert Counter(found) == Counter(
        [DataRead((BTC,), 60), DataRead((BTC,), 60, "tick"), DataRead((BTC, ETH), 300), DataRead((ETH,), 900)]
    )
    await store.close()


async def test_bytes_by_client_count_all_triggers_that_were_not_deleted(tmp_path: Path) -> None:
    store = await _filled(tmp_path / "relay.db")
    listed = await store.read(triggers.page, "", "", 0, -1)
    expected: Counter[str] = Counter()
    for each in listed:
        expected[each.trigger.client_id] += rules.size_of(each.trigger)
    found = await store.read(triggers.bytes_by_client)
    assert found == expected and found.keys() == {"me", "you"}
    await store.close()
