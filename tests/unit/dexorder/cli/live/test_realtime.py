"""Commands ``dexorder realtime`` and ``dexorder watch``."""

from __future__ import annotations

import io
import json

from rich.console import Console

from dexorder.cli.live.watch_view import WatchView
from dexorder.client.live import LiveUpdate, MissedData
from dexorder.client.realtime import decode_update
from dexorder_common.model.realtime import RealtimeState
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from tests.fakes.candle_table import START
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder
from tests.unit.dexorder.client.test_live import TICKER, answer, candle, lacking, trade


def test_start_prints_the_id_and_list_shows_subscription_and_job(fake: FakeRelay) -> None:
    started = dexorder("realtime", "start", TICKER, "--period", "1m, 5m", "--client-id", "desk")
    assert started.exit_code == 0, started.stderr
    name = started.stdout.strip()
    assert f"dexorder realtime stop {name}" in started.stderr
    series = [pb.RealtimeSeries(settled_until_ns=START, count=12, reported_ns=START, lag_ns=20_000_000)]
    fake.jobs = [
        pb.RealtimeJob(
            ticker=TICKER,
            state=pb.REALTIME_STATE_RUNNING,
            ingestor="[red]i-1\x1b[2J",
            series=series,
            last_error="[/] lost",
            provisional=[lacking("7", "9"), lacking("[b]", "[b]")],
            late_trades=3,
            corrected_trades=2,
        )
    ]
    listed = dexorder("realtime", "list")
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [name, "desk", TICKER, "trades,", "1m,", "5m", "its", "start", "2024-01-01T00:00:00Z"] in rows
    assert [
        TICKER,
        "running",
        "[red]i-1\\x1b[2J",
        "trades",
        "2024-01-01T00:00:00Z",
        "12",
        "20",
        "ms",
        "0",
        "[/]",
        "lost",
    ] in rows
    span = [TICKER, "2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z", *["the", "exchange", "has", "left", "out", "ids"]]
    assert [*span, "7", "to", "9", "2"] in rows and [*span, "[b]", "2"] in rows
    value = json.loads(dexorder("realtime", "list", "--json").stdout)
    job = value["jobs"][0]
    assert (job["late_trades"], job["corrected_trades"], job["provisional"][0]["first_id"]) == (3, 2, "7")
    assert value["subscriptions"][0]["periods"] == ["1m", "5m"]
    assert value["jobs"][0]["series"][0] == {
        "name": "trades",
        "settled_until": "2024-01-01T00:00:00Z",
        "count": 12,
        "reported": "2024-01-01T00:00:00Z",
        "lag_ms": 20,
    }
    assert dexorder("realtime", "stop", name).exit_code == 0
    assert json.loads(dexorder("realtime", "list", "--json").stdout)["subscriptions"] == []


def test_watch_as_json_prints_lines_and_stops_its_subscription(fake: FakeRelay) -> None:
    fake.live = [[answer(trade(1), trade(2)), answer(candle(0))]]
    result = dexorder("watch", TICKER, "--json", "--count", "3")
    assert result.exit_code == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["kind"], each.get("trade_id"), each.get("closed")) for each in found] == [
        ("trade", "1", None),
        ("trade", "2", None),
        ("candle", None, True),
    ]
    assert list(fake.subscriptions.values()) == [None]  # started, then stopped
    assert not fake.asked[0].include_running and list(fake.asked[0].period_seconds) == [60]


def test_watch_without_a_subscription_of_its_own(fake: FakeRelay) -> None:
    fake.live = [[answer(trade(1))]]
    assert dexorder("watch", TICKER, "--json", "--count", "1", "--no-start").exit_code == 0
    assert not fake.subscriptions


def test_watch_for_people_ends_after_a_count_too(fake: FakeRelay) -> None:
    fake.live = [[answer(trade(1)), answer(candle(0, closed=False)), answer(trade(2))]]
    result = dexorder("watch", TICKER, "--count", "2")
    assert (result.exit_code, list(fake.subscriptions.values())) == (0, [None]), result.stderr


def drawn(view: WatchView, now_ns: int) -> str:
    console = Console(file=io.StringIO(), width=100, height=40, color_system=None)
    console.print(view.render(100, 40, now_ns=now_ns))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_shows_state_price_candles_trades_and_what_was_missed() -> None:
    view = WatchView(TICKER, [60, 300])
    assert "waiting" in drawn(view, START) and "nothing is stored" not in drawn(view, START)
    state = pb.LiveState(ticker=TICKER, state=pb.REALTIME_STATE_RUNNING)
    now_ns = START + 3 * SECOND_NS
    view.add(decode_update(answer(trade(1), trade(2), candle(0, closed=False), states=[state])), now_ns=now_ns)
    view.add(LiveUpdate(missed=(MissedData(TICKER, 0, 5, START, START),)), now_ns=now_ns)
    view.add(decode_update(answer(trade(2), candle(0), candle(1, closed=False))), now_ns=now_ns)
    text = drawn(view, now_ns + 7 * SECOND_NS)
    assert f"{TICKER}  102  running  lag 1,000 ms, last trade 7 s ago  5 trades not shown" in text
    lines = text.splitlines()
    assert sum("00:00:02.000" in line for line in lines) == 1  # the trade that came twice
    assert any(line.split()[:3] == ["1m", "01-01", "00:01:00"] and line.rstrip().endswith("open") for line in lines)
    assert view.status is RealtimeState.RUNNING


def test_the_view_says_why_a_job_that_runs_settles_nothing_until_it_does() -> None:
    view = WatchView(TICKER, [60])
    for waiting in ("[red]REST is behind", ""):
        spans = [lacking("7", "9")] if waiting else []
        state = pb.LiveState(ticker=TICKER, state=pb.REALTIME_STATE_RUNNING, waiting=waiting, provisional=spans)
        view.add(decode_update(answer(states=[state])), now_ns=START)
        view.add(decode_update(answer(trade(1))), now_ns=START)  # an update without a state changes nothing
        assert ("nothing is stored now: [red]REST is behind" in drawn(view, START)) == bool(waiting)
        assert ("1 provisional span of trades" in drawn(view, START)) == bool(waiting)
