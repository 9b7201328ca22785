"""What the simulation of realtime notices: rules of the product taken away one by one, under profiles that hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.periods import next_open
from dexorder_common.model.realtime import Resumption
from dexorder_ingestor.exchange.answers import BadAnswer
from dexorder_ingestor.exchange.trades import Trade, TradeAnswer, TradeQuery
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime import candle_checks
from dexorder_ingestor.realtime.agreed.trades import AgreedTrades
from dexorder_ingestor.realtime.agreed.witness import HeardTrades
from dexorder_ingestor.realtime.candle_checker import CandleChecker
from dexorder_ingestor.realtime.candle_checks import Group, equal
from dexorder_ingestor.realtime.live_candles import candle_of
from dexorder_ingestor.realtime.numbered.known_trades import KnownTrades
from dexorder_ingestor.realtime.numbered.open_gaps import OpenGaps
from dexorder_ingestor.realtime.numbered.quiet_time import Quiet, QuietTime
from dexorder_ingestor.realtime.numbered.trade_search import Seam
from dexorder_ingestor.realtime.sources.recalled import RecalledTrades
from dexorder_ingestor.realtime.sources.socket_health import AliveSocket
from dexorder_ingestor.realtime.sources.unshown import UnshownTrades
from dexorder_ingestor.realtime.trade_batches import TradeBatches
from dexorder_relay.broker.dispatcher import JobDispatcher
from dexorder_relay.state.realtime_job import RealtimeJob
from tests.simulation.loop import Spinning
from tests.simulation.realtime import RealtimeProfile, RealtimeStory
from tests.simulation.realtime_evidence import Rule
from tests.simulation.realtime_profiles import (
    BEHIND,
    BEHIND_FOR_LONG,
    CORRECTED,
    CORRECTED_ALONE,
    CORRECTED_KILLED,
    DEAF_AND_BEHIND,
    HOLD,
    LATE,
    RARE,
    RESTARTED,
    REVISED,
    UNNUMBERED,
)
from tests.unit.simulation.test_realtime import SEEDS

pytestmark = pytest.mark.nightly  # they show that the gate's seeds notice, and a changed seed moves them


def _broken(profile: RealtimeProfile | None = None, seeds: Iterable[int] = SEEDS) -> set[Rule]:
    """Return the promises that some seeds find broken, up to the first seed that finds any."""
    profile = profile or next(each for each in HOLD if each.name == "parts that die")
    for seed in seeds:
        if found := {each.rule for each in RealtimeStory(seed, profile).play()}:
            return found
    return set()


def test_a_record_that_is_not_repeated_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    produce = IngestorPublisher.produce_record
    call = IngestorPublisher.call

    async def once(self: IngestorPublisher, name: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        if name != "Produce":
            return await call(self, name, attempt)
        try:
            return await attempt()
        except Exception as error:
            raise Unavailable(name) from error

    async def careless(self: IngestorPublisher, *values: Any, **named: Any) -> None:
        with suppress(Unavailable):
            await produce(self, *values, **named)

    monkeypatch.setattr(IngestorPublisher, "call", once)
    monkeypatch.setattr(IngestorPublisher, "produce_record", careless)
    assert _broken(seeds=range(7, 10)) & {Rule.GIVEN_UP, Rule.MISSED}


def test_a_lease_that_never_ends_leaves_a_job_with_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobDispatcher, "take_back_expired", lambda self, **_: None)
    assert Rule.STUCK in _broken()


def test_a_dispatch_that_begins_where_the_market_is_leaves_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    resumption = RealtimeJob.resumption

    def later(self: RealtimeJob) -> Resumption:
        found, skipped_ns = resumption(self), 60_000_000_000
        return Resumption(found.start_ns + skipped_ns, "", {p: t + skipped_ns for p, t in found.candles.items()})

    monkeypatch.setattr(RealtimeJob, "resumption", later)
    assert _broken() & {Rule.MISSED, Rule.WRONG_CANDLE}


def test_a_job_that_spins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is due once a minute, even if there is nothing to record."""
    due_ns = TradeBatches.due_ns
    monkeypatch.setattr(TradeBatches, "due_ns", lambda self, settled_ns: due_ns(self, 2**63))
    with pytest.raises(Spinning):
        RealtimeStory(1, BEHIND).play()


def test_time_that_is_settled_without_a_witness_is_claimed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuietTime, "answered", lambda self, clock_ns, *, now_ns: Quiet(clock_ns, False))
    assert _broken(DEAF_AND_BEHIND)


def test_a_late_trade_that_is_thrown_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenGaps, "close", lambda self, trades: [])
    assert _broken(LATE, range(1, 21))


def test_a_gap_that_ends_before_the_table_has_its_trades_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealtimeJob, "_close", lambda self, before, after: None)
    assert Rule.UNTOLD in _broken(LATE, range(1, 21))


def test_a_first_value_that_stays_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(self: KnownTrades, answer: Sequence[Trade], *, now_ns: int) -> list[Trade]:
        for trade in answer:
            known = self.get(trade.number)
            if known is not None and (known.price, known.amount) != (trade.price, trade.amount):
                raise BadAnswer("the answer has other values", kind="other_symbol")
        return []

    monkeypatch.setattr(KnownTrades, "judge", judge)
    monkeypatch.setattr(UnshownTrades, "take_query", lambda self, settled_ns, *, now_ns: None)
    assert _broken(CORRECTED, range(1, 21))


def test_numbers_that_begin_again_unnoticed_stop_a_market(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Seam, number: int, time_ns: int) -> None:
        self.first, self.tail, self.fresh, self.is_over = None, [], [], True

    monkeypatch.setattr(Seam, "__init__", none)
    assert _broken(RESTARTED)


def test_two_equal_answers_that_settle_time_without_numbers_lose_trades(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the socket has sent binds REST no longer, and what REST passes over is not taken from it."""
    confirm = AgreedTrades.confirm

    def believe(self: AgreedTrades, trades: Iterable[Trade], until_ns: int, **more: Any) -> list[Trade]:
        return confirm(self, trades, until_ns, **(more | {"is_witnessed": True}))

    monkeypatch.setattr(AgreedTrades, "confirm", believe)
    monkeypatch.setattr(HeardTrades, "lacking_ns", lambda self, settled_ns, newest_ns: None)
    monkeypatch.setattr(HeardTrades, "compare", lambda self, shown, newest_ns, **_: [])
    assert _broken(UNNUMBERED)


def test_a_candle_that_is_amended_by_a_replica_that_is_behind_is_spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison takes an answer that ends before the candle does, and counts no trades."""

    async def careless(self: CandleChecker, group: Group, differing: list[int]) -> bool:
        period, mine = group.known.period_seconds, group.candles or {}
        query = TradeQuery(since_ns=differing[0])
        answer: TradeAnswer = await self.services.queries.trades(self.symbol, query, lambda answer: answer)
        for open_ns in differing:
            inside = [trade for trade in answer.trades if open_ns <= trade.time_ns < next_open(open_ns, period)]
            if not equal(mine.get(open_ns), candle_of(inside)):
                self.series.repair(period, open_ns, inside, now_ns=self._now_ns())
        self.changed()
        return False

    monkeypatch.setattr(CandleChecker, "_is_repaired", careless)
    assert _broken(BEHIND_FOR_LONG, range(1, 11)) & {Rule.SPOILED, Rule.WRONG_CANDLE}


def test_values_that_are_not_recalled_after_a_kill_stay_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecalledTrades, "take_query", lambda self, *, now_ns: None)
    assert Rule.WRONG_VALUE in _broken(CORRECTED_KILLED, range(1, 11))


def test_a_late_correction_that_no_quote_volume_shows_stays_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candle_checks, "_near", lambda one, other: True)
    assert Rule.WRONG_VALUE in _broken(REVISED, range(1, 11))


def test_trades_that_came_by_the_socket_alone_stay_wrong_if_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnshownTrades, "take_query", lambda self, settled_ns, *, now_ns: None)
    assert Rule.WRONG_VALUE in _broken(CORRECTED_ALONE, range(1, 11))


def test_a_socket_that_counts_after_a_silence_claims_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AliveSocket, "lost", lambda self, *, now_ns: None)
    monkeypatch.setattr(AliveSocket, "proven", _always)
    assert Rule.EARLY in _broken(RARE, [5005])


def _always(self: AliveSocket, at_ns: int) -> None:
    self.from_ns = at_ns if self.from_ns is None else self.from_ns
    self.until_ns = max(self.until_ns, at_ns)
