"""Histories of many tickers in one call, progress in a notebook, and the stream of notifications."""

from __future__ import annotations

import sys
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pandas as pd
import polars as pl
import pytest

from dexorder import AsyncClient, Client, errors
from dexorder.client import many
from dexorder.client.inputs import make_request
from dexorder.client.notebook import ProgressView, is_notebook
from dexorder.client.requests import Ended
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.history import Progress, RequestState
from tests.fakes.candle_table import HOURS, OTHER, TICKER
from tests.fakes.relay_server import EPOCH, FakeRelay, Notify, ended

SPAN = ("1h", "2024-01-01", "2024-01-02T06:00")


@pytest.fixture
def two(fake: FakeRelay) -> FakeRelay:
    """OTHER ends with its three rows."""
    fake.ends_of[OTHER] = ended(Notify.OK, rows=3, snapshot=fake.ends.snapshot_id, empty_periods=27)
    return fake


def test_rows_of_many_follow_each_other(two: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "QUOTA_SECONDS", 0.05)
    two.no_room = 2
    notes: list[str] = []
    with Client(on_note=notes.append) as client:
        rows = client.history((each for each in [OTHER, TICKER, OTHER]), *SPAN, request_id="run", parallel=1)
    assert rows["ticker"].to_pylist() == [OTHER] * 3 + [TICKER] * HOURS
    assert [each.request_id for each in two.submitted] == ["run-0001", "run-0002"]
    assert sum("waiting until a request ends" in note for note in notes) == 2


def test_those_that_fail_stop_no_other(two: FakeRelay) -> None:
    two.ends_of["BAD/USDT.SIM"] = ended(Notify.ERROR, error_message="gave up")
    two.refuse_tickers["NO/USDT.SIM"] = "no such symbol"
    with Client() as client, pytest.raises(errors.ManyFailed, match=r"^2 tickers have no .*no such symbol") as failed:
        client.history([TICKER, "BAD/USDT.SIM", "NO/USDT.SIM", OTHER], *SPAN)
    assert {name: type(each) for name, each in failed.value.errors.items()} == {
        "BAD/USDT.SIM": errors.HistoryFailed,
        "NO/USDT.SIM": errors.RequestRefused,
    }
    assert failed.value.rows is not None and failed.value.rows.num_rows == HOURS + 3
    with Client() as client, pytest.raises(errors.RequestRefused, match="no tickers are given"):
        client.history([], *SPAN)


def test_batches_are_calls_and_broken_ones_are_repeated_without_what_has_ended(two: FakeRelay) -> None:
    names = [f"X{number}/USDT.SIM" for number in range(20)]
    requests = [make_request(f"r{n}", name, *SPAN) for n, name in enumerate(names)]
    two.unavailable, two.break_streams, two.break_after_answers = 1, 1, 1
    two.refuse_tickers[names[3]] = "no such symbol"
    accepted: list[str] = []
    with Client() as client:
        found = dict(client.fetch_each([*requests, requests[0]], on_accepted=lambda each: accepted.append(each.ticker)))
    assert two.batches == [20, 19], "the first is repeated without the refused one"
    assert set(accepted) == {*names} - {names[3]} and len(two.submitted) == 19 and not two.watched
    assert list(found) != requests and set(found) == {*requests}
    ends = [each for each in found.values() if isinstance(each, Ended)]
    assert len(ends) == 19 and {each.notification.table for each in ends} == {"trading.ohlc"}
    assert isinstance(found[requests[3]], errors.RequestRefused)


def test_so_many_run_at_a_time_and_few_calls_are_made(two: FakeRelay) -> None:
    names = [f"X{number}/USDT.SIM" for number in range(100)]
    requests = [make_request(f"r{n}", name, *SPAN) for n, name in enumerate(names)]
    with Client() as client:
        ends = client.fetch_each(requests, parallel=8, on_progress=lambda request, now: None)
        next(ends)
        assert len(two.submitted) == 8
        assert 1 + len(list(ends)) == 100
    assert max(two.batches) == 8 and sum(two.batches) == 100 and len(two.batches) <= 50
    assert sorted(two.watched) == sorted(each.request_id for each in requests)


def test_a_relay_without_batches_gets_request_by_request_and_so_does_a_refresh(two: FakeRelay) -> None:
    two.missing_calls = {"SubmitHistoricalBatch"}
    with Client() as client:
        rows = client.history([OTHER, TICKER], *SPAN)
        assert rows["ticker"].to_pylist() == [OTHER] * 3 + [TICKER] * HOURS and not two.batches
        two.missing_calls = set()
        client.history([OTHER, TICKER], *SPAN, refresh=True)
    assert not two.batches and [each.request.ticker for each in two.asked] == [OTHER, TICKER]


def test_a_run_ends_when_no_relay_answers(two: FakeRelay) -> None:
    requests = [make_request(f"r{n}", f"X{n}/USDT.SIM", *SPAN) for n in range(3)]
    with Client("127.0.0.1:1") as client, pytest.raises(errors.RelayUnreachable, match="nothing listens"):
        list(client.fetch_each(requests))


def test_a_caller_without_rights_is_refused_once_for_each(two: FakeRelay) -> None:
    two.token = "secret"
    with Client() as client, pytest.raises(errors.ManyFailed) as failed:
        client.history([TICKER, OTHER], *SPAN)
    assert {type(each) for each in failed.value.errors.values()} == {errors.NotAllowed}


def test_many_can_time_out(two: FakeRelay) -> None:
    two.stuck = True
    with Client() as client, pytest.raises(errors.WaitEnded, match="their requests continue, mine-0001 and others"):
        client.history([TICKER, OTHER], *SPAN, request_id="mine", timeout=0.2)


def test_data_frames_take_the_rows_as_they_are(two: FakeRelay) -> None:
    with Client() as client:
        rows = client.history([TICKER, OTHER], *SPAN)
    frame = pl.DataFrame(rows)
    assert frame.group_by("ticker").len().sort("ticker")["len"].to_list() == [HOURS, 3]
    assert str(frame["open_time"].dtype) == "Datetime(time_unit='us', time_zone='UTC')"
    assert rows.to_pandas().groupby("ticker")["close"].count().to_dict() == {TICKER: HOURS, OTHER: 3}
    assert isinstance(rows.to_pandas()["open_time"].dtype, pd.DatetimeTZDtype)


class Page:
    """Display of a notebook that keeps what it shows."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, view: Any, display_id: bool) -> Page:
        assert display_id
        self.update(view)
        return self

    def update(self, view: Any) -> None:
        self.shown.append(view._repr_html_() + repr(view))


def test_progress_is_shown_below_the_cell(two: FakeRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_notebook()
    page = Page()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=page))
    assert is_notebook()
    with Client() as client:
        client.history([TICKER, OTHER], *SPAN)
        assert "submitting" in page.shown[0] and "30 of 30 candles, finished" in page.shown[-1]
        assert page.shown[-1].count('<progress value="1.000">') == 2
        before = len(page.shown)
        client.history(TICKER, *SPAN, progress=False)
        assert len(page.shown) == before


def test_text_of_others_is_no_html() -> None:
    page = Page()
    view = ProgressView(["<b>"], page)
    view.update("<b>", Progress(RequestState.QUEUED, 2, 0, 0, 1, 0, 1, 0, 0, waiting="<script>"))
    assert "<b>" not in page.shown[-1].partition("</table>")[0] and "<script>" not in view._repr_html_()
    assert "waiting: <script>" in repr(view)


async def test_notifications_are_resumed_behind_the_last_one(two: FakeRelay) -> None:
    async with AsyncClient(two.address) as client:
        await client.history(TICKER, *SPAN, request_id="one")
        two.break_streams = 1
        async for notification in client.notifications("HISTORY_READY:one"):
            assert (notification.cursor, notification.request_id) == (Cursor(EPOCH, 7), "one")
            assert notification.row_count == HOURS
            break


async def test_a_relay_that_cannot_resume_says_so_and_all_notifications_follow(two: FakeRelay) -> None:
    notes: list[str] = []
    async with AsyncClient(two.address, on_note=notes.append) as client:
        await client.history(TICKER, *SPAN, request_id="one")
        async with aclosing(client.notifications("HISTORY_READY:one", after=Cursor("restored", 9))) as found:
            notification = await anext(found)
    assert (notification.cursor, notification.request_id) == (Cursor(EPOCH, 7), "one")
    (note,) = notes
    assert "can't continue after the cursor" in note and two.address in note
