import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder.cli.history.runs import KEPT_DAYS, Run, RunStore, file_name, parse_tickers, run_from
from dexorder.cli.rows.options import OutputOptions
from dexorder.errors import RequestRefused, RunUnknown
from dexorder_common.model.time_range import TimeRange
from tests.fakes.candle_table import SPAN

RUN = Run(
    "abc",
    "host:1",
    True,
    ("BTC/USDT.SIM", "nonsense", "ETH/USDT.SIM"),
    ((3600, SPAN),),
    7,
    "me",
    OutputOptions(out=Path("/rows")),
)


def test_tickers_are_lines_without_comments_and_duplicates() -> None:
    text = "# mine\nBTC/USDT.SIM\n\n  ETH/USDT.SIM  # the other\r\nBTC/USDT.SIM\n#\n"
    assert parse_tickers(text) == ("BTC/USDT.SIM", "ETH/USDT.SIM")
    assert parse_tickers("# nothing\n") == ()


def test_each_ticker_has_a_request_of_its_own() -> None:
    first, third = RUN.request(0), RUN.request(2)
    assert (first.request_id, third.request_id) == ("abc-0001", "abc-0003")
    assert (third.ticker, third.span, third.limit, third.client_id) == ("ETH/USDT.SIM", SPAN, 7, "me")
    with pytest.raises(RequestRefused, match="'nonsense' is not SYMBOL"):
        RUN.request(1)
    assert replace(RUN, many=False).request(0).request_id == "abc"


def test_the_periods_of_a_ticker_follow_each_other() -> None:
    minutes = TimeRange(SPAN.start_ns, SPAN.start_ns + 60_000_000_000)
    run = replace(RUN, periods=((3600, SPAN), (60, minutes)))
    requests = [run.request(index) for index in (0, 1, 4, 5)]
    assert [(each.ticker, each.period_seconds, each.span) for each in requests] == [
        (ticker, *part) for ticker in ("BTC/USDT.SIM", "ETH/USDT.SIM") for part in run.periods
    ]
    assert [run.own_file(index) for index in (0, 1)] == [
        Path("/rows/BTC_USDT.SIM.1h.parquet"),
        Path("/rows/BTC_USDT.SIM.1m.parquet"),
    ]
    assert run.count == 6 and run_from(json.loads(json.dumps(run.as_json()))) == run


@pytest.mark.parametrize(
    ("many", "out", "own", "common"),
    [
        (True, "/rows", "/rows/BTC_USDT.SIM.1h.parquet", None),
        (True, "/rows.csv", None, "/rows.csv"),
        (True, None, None, None),
        (False, "/rows.parquet", None, "/rows.parquet"),
    ],
)
def test_rows_are_written_to_one_file_or_one_per_ticker(
    many: bool, out: str | None, own: str | None, common: str | None
) -> None:
    run = replace(RUN, many=many, output=OutputOptions(out=Path(out) if out else None))
    assert run.own_file(0) == (own and Path(own)) and run.common_file == (common and Path(common))


@given(st.sets(st.text("AB/_:-%. 5F2é", min_size=1, max_size=8), min_size=2, max_size=2))
def test_no_two_tickers_share_a_file(tickers: set[str]) -> None:
    names = {file_name(ticker) for ticker in tickers}
    assert len(names) == 2 and not any("/" in name or " " in name for name in names)


def test_a_run_survives_json() -> None:
    for run in (RUN, replace(RUN, limit=None, output=OutputOptions(as_json=True, plot=Path("/x.html"), rows=3))):
        assert run_from(json.loads(json.dumps(run.as_json()))) == run


@pytest.mark.parametrize("damage", [{"format": 1}, {"periods": None}, {"shown": {"more": 1}}, {"tickers": None}])
def test_run_of_another_version_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"it has format 1|it is damaged"):
        run_from(RUN.as_json() | damage)


def test_load_returns_the_last_run_or_the_one_with_the_id(state_home: Path) -> None:
    store = RunStore()
    for number, name in enumerate(("one/2", "two")):
        store.save(replace(RUN, run_id=name))
        os.utime(store._path(name), ns=(number, time.time_ns() + number * 1_000_000_000))
    assert store.load().run_id == "two" and store.load("one/2").run_id == "one/2"
    store.forget(replace(RUN, run_id="two"))
    assert store.load().run_id == "one/2"
    with pytest.raises(RunUnknown, match="run two is not recorded; finished runs are deleted"):
        store.load("two")
    assert store.resume_command(RUN) == "dexorder history --resume abc"


def test_old_and_damaged_runs(state_home: Path) -> None:
    store = RunStore()
    store.save(RUN)
    store._path("abc").write_text("{")
    with pytest.raises(RunUnknown, match="can't be read"):
        store.load()
    os.utime(store._path("abc"), (0, time.time() - KEPT_DAYS * 86_400 - 60))
    store.save(replace(RUN, run_id="other"))
    assert [p.stem for p in store._path("abc").parent.iterdir()] == ["other"]


def test_run_in_a_given_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run.json")
    with pytest.raises(RunUnknown, match=r"run .*run\.json is not recorded"):
        store.load()
    store.save(RUN)
    assert store.load() == RUN and store.resume_command(RUN).endswith(f"--resume --state {tmp_path}/run.json")
    store.forget(RUN)
    assert not list(tmp_path.iterdir())
