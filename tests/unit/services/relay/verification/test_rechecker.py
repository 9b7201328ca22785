"""When the relay queries provisional ranges again, and that what turned up by other means is announced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.history import HistoryRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as rpb
from dexorder_relay.requests.context import Context
from dexorder_relay.state import planner
from dexorder_relay.state.changes import Changes
from dexorder_relay.verification import rechecker
from dexorder_relay.verification.rechecker import MAX_WAIT_NS, Rechecker, recheck_request
from tests.unit.services.relay.harness import (
    SERIES,
    TICKER,
    at,
    final_of,
    history_state,
    minute,
    page,
    ranges,
    request,
    settings,
    span_of,
    suite,
)

DELAY_NS = 600 * SECOND_NS


class Idle:
    """A relay without ingestors, at a time that the test sets."""

    def __init__(self, folder: Path, **overrides: Any) -> None:
        self.state = history_state(job_periods=100_000, recheck_after_ns=(DELAY_NS,))
        self.clock = ManualClock()
        none = cast(Any, None)
        context = Context(settings(folder, **overrides), frozenset(), self.state, none, none, self.clock, none)
        self._rechecker = Rechecker(context, none, none)

    def add(self, *pairs: tuple[int, int], series: Series = SERIES) -> None:
        """Note minutes as provisional now."""
        spans = [TimeRange(at(start), at(end)) for start, end in pairs]
        self.state.provisional.add(series, spans, now_ns=self.clock.wall_ns())

    def due(self) -> list[tuple[Series, TimeRange]]:
        return list(self._rechecker.due())

    def fetch(self, series: Series, span: TimeRange) -> None:
        """Accept the request for a range that is due."""
        self.accept(recheck_request(f"recheck-{len(self.state.requests)}", series, span))

    def accept(self, request: HistoryRequest) -> None:
        planner.accept(self.state, request, Changes(), wall_ns=self.clock.wall_ns(), now_ns=0)

    def pass_time(self, nanoseconds: int) -> None:
        self.clock.advance(nanoseconds)


def minutes(due: Sequence[tuple[Series, TimeRange]]) -> list[tuple[int, int]]:
    return [(minute(span.start_ns), minute(span.end_ns)) for _, span in due]


def test_neighbours_are_one_request_and_nothing_is_before_its_time(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    idle.add((0, 3), (1_003, 1_005), (2_006, 2_007))
    assert idle.due() == []
    idle.pass_time(DELAY_NS)
    asked = idle.due()
    assert minutes(asked) == [(0, 1_005), (2_006, 2_007)]
    made = recheck_request("recheck-1", *asked[0])
    assert made.again and not made.client_id and made.request_id.startswith("recheck-")


def test_what_turned_up_is_one_request_too(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    for start in (0, 5, 10):
        idle.state.coverage[SERIES].found.add(TimeRange(at(start), at(start + 1)))
    assert minutes(idle.due()) == [(0, 11)]


def test_as_many_as_the_setting_run_at_each_exchange(tmp_path: Path) -> None:
    idle = Idle(tmp_path, parallel_rechecks=2)
    other = Series("BTC/USDT.OTHER", 60)
    for series in (SERIES, other):
        idle.add(*((start, start + 1) for start in range(0, 10_000, 2_000)), series=series)
    idle.pass_time(DELAY_NS)
    asked = idle.due()
    for_each = [(0, 1), (2_000, 2_001)]
    assert [series for series, _ in asked] == [SERIES, SERIES, other, other] and minutes(asked) == for_each * 2
    idle.fetch(*asked[0])
    idle.pass_time(MAX_WAIT_NS)
    asked = idle.due()
    assert [series for series, _ in asked] == [SERIES, other, other]
    assert minutes(asked) == [(2_000, 2_001), *for_each]  # not [0, 1) of the first, which is being queried


def test_clients_come_first_for_ten_minutes(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    idle.add((0, 3))
    idle.accept(HistoryRequest("client", TICKER, at(5_000), at(5_010), 60))
    idle.pass_time(DELAY_NS)
    assert idle.due() == []
    idle.pass_time(MAX_WAIT_NS - 1)
    assert idle.due() == []
    idle.pass_time(1)
    assert minutes(idle.due()) == [(0, 3)]


@pytest.mark.parametrize("by", ["refresh", "late page"])
async def test_candles_that_turned_up_by_other_means_are_announced_by_one_more_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(rechecker, "INTERVAL_SECONDS", 0.05)
    async with suite(tmp_path, recheck_after_seconds=(3_600.0,)) as s:
        ingestor = await s.offering(3)
        await s.queued("first", 0, 10, client_id="me")
        first = await ingestor.take()
        young = page(first.job_id, 0, 10, provisional=[(3, 6)])
        snapshot_id = s.pipeline.upsert([0, 1, 2, 6, 7, 8, 9])
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[young], finals=[final_of(first.job_id)])
        told = await s.notification("RESPONSE:me")
        assert list(told.provisional) == ranges([(3, 6)])
        finals = []
        late = first.job_id
        if by == "refresh":
            await s.relay.operator.RefreshHistorical(rpb.RefreshHistoricalRequest(request=request("refresh", 0, 10)))
            late = (await ingestor.take()).job_id
            finals = [final_of(late)]
        snapshot_id = s.pipeline.upsert([0, 1, 2, 3, 5, 6, 7, 8, 9])
        await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(late, 0, 10, empty=[(4, 5)])], finals=finals)
        again = await ingestor.take()
        assert span_of(again) == (3, 6)
        await s.pipeline.report(pages=[page(again.job_id, 3, 6, empty=[(4, 5)])], finals=[final_of(again.job_id)])
        for topic, after in ((f"REVISED:{TICKER}", None), ("RESPONSE:me", told.cursor)):
            found = await s.notification(topic, after)
            assert found.ready.request_id == again.request_id
            assert found.ready.status == ingest.HistoryReadyNotification.OK
            assert list(found.revised) == ranges([(3, 4), (5, 6)])
