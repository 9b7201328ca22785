"""Absences from the exchange to what a user sees: relay, ingestor and unmodified ccxt, with the simulated exchange."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.clock import SystemClock
from dexorder_common.model.times import SECOND_NS, iso
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_relay.verification import rechecker
from tests.integration.services.relay.verification.test_verify_values import TICKER, settings, table_of
from tests.unit.services.ingestor.whole import Whole, whole
from tests.unit.services.relay.harness import at, ranges, span

pytestmark = pytest.mark.smoke

START, END = 600, 1_800
ABSENT = span(900, 1_200)
RANGE = ["--since", iso(at(START)), "--until", iso(at(END))]


class ShiftedClock(SystemClock):
    """The relay's clock, which the test puts forward."""

    shift_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.shift_ns


async def command(w: Whole, *words: str) -> Any:
    """Run a command as a user does; return what it printed, JSON values one after the other."""
    command = [sys.executable, "-m", "dexorder", *words, *RANGE, "--json", "--relay", w.suite.running.address]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    assert process.returncode == 0
    text, found, decoder = stdout.decode().strip(), [], json.JSONDecoder()
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].lstrip()
    return found


async def provisional_of(w: Whole) -> list[tuple[int, int]]:
    """Return the ranges that `dexorder coverage` calls provisional."""
    found = await command(w, "coverage", TICKER, "1m")
    return [(each["start_ns"], each["end_ns"]) for each in found if each["kind"] == "provisional"]


async def test_minutes_absent_for_a_while_are_named_found_stored_announced_and_named_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 minutes, and all hours in them, are absent until after the request."""
    monkeypatch.setattr(rechecker, "INTERVAL_SECONDS", 0.1)
    monkeypatch.setenv("DEXORDER_CATALOG_URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("DEXORDER_CATALOG_WAREHOUSE", f"file://{tmp_path}/warehouse")
    clock = ShiftedClock()
    async with whole(tmp_path, sim=settings(), relay={"clock": clock}, upsert=True) as w:
        fault = {"kind": "absent", "span": [ABSENT.start_ns, ABSENT.end_ns], "coarser": "absent"}
        await w.sim.faults(fault)
        (before,) = await command(w, "history", TICKER, "1m")
        ends = (ABSENT.start_ns, ABSENT.end_ns)
        assert [(each["start_ns"], each["end_ns"]) for each in before["provisional"]] == [ends]
        assert len(before["rows"]) == END - START - 300
        assert await provisional_of(w) == [ends]
        await w.sim.faults()
        clock.shift_ns = 601 * SECOND_NS
        told = await w.suite.notification(f"REVISED:{TICKER}")
        assert told.ready.request_id.startswith("recheck-")
        assert told.ready.status == ingest.HistoryReadyNotification.OK
        assert list(told.revised) == ranges([(900, 1_200)])
        (after,) = await command(w, "history", TICKER, "1m")
        assert after["provisional"] == [] and len(after["rows"]) == END - START
        assert await provisional_of(w) == []
        assert await table_of(w, span(START, END)) == await w.sim.truth(span(START, END))
