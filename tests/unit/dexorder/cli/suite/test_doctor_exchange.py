"""``doctor --exchange``: the rules that exchanges get, and what a day of a scripted client's data is worth."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import typer

from dexorder.cli.suite import doctor_exchange
from dexorder.cli.suite.doctor_exchange import findings, rules
from dexorder.cli.suite.findings import Finding
from dexorder.errors import HistoryFailed, HistoryNotFound, RelayUnreachable, VenueUnknown
from dexorder.supervisor.plan import EXCHANGES_FILE
from dexorder.supervisor.state import SuiteState, register, write_state
from dexorder_common.model.coverage import Coverage, CoverageKind, CoveragePage, CoverageRange, VerificationResult
from dexorder_common.model.instrument import InstrumentList, ListedInstrument
from dexorder_common.model.proof import Proof, ProofKind, encode_proofs
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.values import ValueComparison
from dexorder_ingestor.exchange.dialects import dialect_of

MINUTE = 60 * SECOND_NS
DAY = 1_440 * MINUTE
NOW = 20_000 * DAY + 5 * MINUTE
START = 19_999 * DAY


@pytest.fixture(autouse=True)
def folder_without_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's suite runs in the working folder."""
    monkeypatch.chdir(tmp_path)


def span(first: int, end: int) -> TimeRange:
    return TimeRange(START + first * MINUTE, START + end * MINUTE)


@pytest.mark.parametrize(
    ("ccxt_id", "absences", "trades"),
    [
        ("binance", "coarser candles add up", "no number is missing"),
        ("kraken", "built from trades, which are numbered", "no number is missing"),
        ("gate", "not known to be checksums", "socket and REST"),
        ("cryptocom", "not known to be checksums", ""),
    ],
)
def test_each_exchange_gets_a_rule_by_what_is_known(ccxt_id: str, absences: str, trades: str) -> None:
    first, second = rules(dialect_of(ccxt_id))
    assert absences in first.detail and trades in second.detail


class Scripted:
    """A client whose exchange has a day with two empty minutes."""

    def __init__(self, differing: int = 0, error: Exception | None = None, venues: tuple[str, ...] = ("SIM",)) -> None:
        self.differing, self.error, self.venues = differing, error, venues
        self.asked = list[Any]()

    def __call__(self, relay: str | None) -> Scripted:
        return self

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def markets(self, venue: str) -> InstrumentList:
        if venue not in self.venues:
            raise VenueUnknown(f"venue {venue!r} is unknown")
        tickers = ((f"AAA/USDT.{venue}", True), (f"BTC/USDT.{venue}", True), (f"BTC/EUR.{venue}", False))
        return InstrumentList(venue, tuple(ListedInstrument(*each) for each in tickers), 0)

    def history(self, *asked: Any, **_: Any) -> None:
        self.asked.append(asked)
        if self.error:
            raise self.error

    def coverage(self, ticker: str, period: str, *_: Any, **__: Any) -> Coverage:
        known = [
            (span(0, 10), CoverageKind.ROWS),
            (span(10, 12), CoverageKind.EMPTY),
            (span(12, 1_440), CoverageKind.ROWS),
        ]
        proofs = [
            Proof(span(-60, 1_000), ProofKind.CHECKSUM, 1, 0, 0),
            Proof(span(1_000, 1_440), ProofKind.ODDS, 3, 0, 0),
        ]
        page = CoveragePage(span(0, 1_440), 1_438, (span(10, 12),), encode_proofs(proofs), 0, 0)
        return Coverage(ticker, 60, tuple(CoverageRange(*each) for each in known), (page,))

    def verify(self, ticker: str, *_: Any) -> VerificationResult:
        values = ValueComparison((3_600,), 1_440, (), self.differing, 60 * self.differing, (), 0, (), (), 2)
        return VerificationResult(ticker, 60, None, 0, 0, 0, (), 0, (), 0, (), 0, (), 0, 0, (), 0, 0, values)


def measured(
    monkeypatch: pytest.MonkeyPatch, client: Scripted, exchange: str = "SIM", **more: Any
) -> dict[str, Finding]:
    monkeypatch.setattr(doctor_exchange, "Client", client)
    found = findings(exchange, more.get("ticker"), more.get("day"), None, NOW)
    return {each.name: each for each in found}


def test_a_day_is_fetched_its_proofs_are_counted_and_its_values_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Scripted()
    found = measured(monkeypatch, client)
    assert client.asked == [("BTC/USDT.SIM", "1m", START, START + DAY)], "yesterday, of the market that everybody knows"
    assert all(each.ok for each in found.values())
    assert found["history"].detail.endswith("of 1,440 minutes 1,438 have a candle, 2 are proven absent")
    assert found["proofs"].detail == "1,000 minutes by coarser candles, 440 minutes by answers that agree"
    assert "1,440 minutes were compared with coarser candles in 2 calls, 0 cells differ" in found["values"].detail
    assert not measured(monkeypatch, Scripted(differing=1))["values"].ok


def test_what_could_not_be_measured_is_a_fault_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    record: Any = None
    assert not measured(monkeypatch, Scripted(error=HistoryFailed("2 ranges are missing", record)))["history"].ok
    assert measured(monkeypatch, Scripted(error=HistoryNotFound("empty", record)))["history"].ok
    assert (
        "start a suite that serves SIM"
        in measured(monkeypatch, Scripted(error=RelayUnreachable("gone")))["measured"].detail
    )
    assert not measured(monkeypatch, Scripted(), "bybit")["measured"].ok, (
        "its rules are told, and that it is not served"
    )


def test_an_exchange_of_the_running_suite_is_measured_whatever_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("DEXORDER_DIR", "DEXORDER_RELAY", "DEXORDER_EXCHANGES"):
        monkeypatch.delenv(name, raising=False)
    client = Scripted(venues=("MY_BYBIT", "OKX"))
    assert measured(monkeypatch, client, "okx")["history"].ok, "a relay elsewhere, whose file is not here"
    (tmp_path / EXCHANGES_FILE).write_text("exchanges:\n  MY_BYBIT: {ccxt: bybit}\n")
    write_state(tmp_path, SuiteState(os.getpid(), "now", "127.0.0.1:50051", {}))
    register(50_051, tmp_path)
    assert measured(monkeypatch, client, "bybit")["history"].ok
    monkeypatch.setenv("DEXORDER_RELAY", "elsewhere:50051")
    assert not measured(monkeypatch, client, "bybit")["measured"].ok, (
        "the suite of this machine says nothing of another"
    )
    assert [each[0] for each in client.asked] == ["BTC/USDT.OKX", "BTC/USDT.MY_BYBIT"]


def test_bad_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.BadParameter, match="neither an exchange of ccxt nor a venue"):
        measured(monkeypatch, Scripted(), "nope")
    with pytest.raises(typer.BadParameter, match="has not ended yet"):
        measured(monkeypatch, Scripted(), day="2024-10-04")
