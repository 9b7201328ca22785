"""The promises of the realtime chain, checked at the end of a run by the exchange's tape. Pure.

rule            broken if
MISSED          a trade before the settled time is in no record: it lies between the records of two dispatches
GIVEN_UP        the same, between the records of one dispatch, which has gone on without it
UNNUMBERED      the same, at an exchange that does not number its trades
WRONG_VALUE     a trade in the table has not the exchange's final value, or is not the exchange's
WRONG_CANDLE    a claimed candle is not the exchange's, and no part of it is provisional
SPOILED         a candle was right, and a later record has made it wrong
STUCK           trades are not settled although faults ceased long ago
STUCK_BY_VALUE  the same, behind a trade whose value in the table is not the exchange's final one
STUCK_BY_IDS    the same, since the exchange's numbers have begun again
EARLY           a span was claimed as settled some time before its last trade was recorded, and was not called
                provisional
ABSENT          a minute after the last fault the table lacks a trade that was published before, and its time is not
                called provisional
UNTOLD          a trade's time was provisional, and no longer is although the table lacks the trade
SILENT          a running job has settled nothing for long, and does not say why
DELISTED        the market was delisted long ago, and the job does not say so
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from tests.simulation.exchange.trades import Executed, FinalCandle, candles_of
from tests.simulation.live.storage import LogRecord
from tests.simulation.loop import SECOND_NS, START_WALL_NS
from tests.simulation.realtime_evidence import EARLY_SECONDS, Breach, Evidence, Rule, Sample, seconds

SETTLED_SECONDS = 100.0
"""Longest time, without faults, from a trade to the record that settles it: the heartbeat of a quiet market is 60 s."""
QUIET_SECONDS = 160.0
"""The same if no trade has come for longer than usual: REST alone is believed 60 s later."""
_DOWN_NS = 15 * SECOND_NS
"""Time without a sample, of which there is one each 10 s, after which the relay was down: no job could say anything."""
_UNKNOWN = ("Invalid symbol", "is unknown to")
_CANDLE_TOLERANCE = 1e-8


def breaches(evidence: Evidence) -> list[Breach]:
    """Return the broken promises of a run, the worst of each rule with the number of its like."""
    found = [
        *_lost(evidence),
        *_untold(evidence),
        *(Breach(Rule.ABSENT, f"{_name(trade)} is not in the table") for trade in evidence.absent),
        *_values(evidence),
        *_candles(evidence),
        *_stuck(evidence),
        *_silent(evidence),
        *_delisted(evidence),
    ]
    by_rule: defaultdict[Rule, list[Breach]] = defaultdict(list)
    for breach in found:
        by_rule[breach.rule].append(breach)
    return [
        Breach(rule, each[0].text + (f" (and {len(each) - 1} more)" if len(each) > 1 else ""))
        for rule, each in by_rule.items()
    ]


def _lost(evidence: Evidence) -> Iterator[Breach]:
    previous: LogRecord | None = None
    following = _following(evidence)
    for trade in evidence.truth:
        record, claim = evidence.record_of(trade), evidence.claim_of(trade)
        if record is not None:
            previous = record
            known_ns = trade.published_ns - START_WALL_NS  # before, nobody can know of it
            is_late = claim is not None and record.time_ns > max(claim.time_ns, known_ns) + EARLY_SECONDS * SECOND_NS
            if claim is not None and is_late and not evidence.was_named(trade, claim.time_ns):
                late = (record.time_ns - claim.time_ns) / SECOND_NS
                yield Breach(Rule.EARLY, f"{_name(trade)} was recorded {late:.1f} s after its time was settled")
        elif evidence.is_provisional(trade):
            continue
        elif claim is not None or evidence.first_ns <= trade.time_ns < evidence.settled_ns:
            yield _loss(evidence, trade, claim, previous, following[trade.key])


def _untold(evidence: Evidence) -> Iterator[Breach]:
    for trade, look_ns in evidence.early:
        text = f"{_name(trade)} is not in the table at {seconds(look_ns)}, when its time is no longer provisional"
        yield Breach(Rule.UNTOLD, text)


def _following(evidence: Evidence) -> dict[tuple[int, str], LogRecord | None]:
    """Return for each trade the record of the next one that has one."""
    found: dict[tuple[int, str], LogRecord | None] = {}
    record: LogRecord | None = None
    for trade in reversed(evidence.truth):
        found[trade.key] = record
        record = evidence.record_of(trade) or record
    return found


def _loss(
    evidence: Evidence,
    trade: Executed,
    claim: LogRecord | None,
    before: LogRecord | None,
    after: LogRecord | None,
) -> Breach:
    shown_ns = evidence.exchange.shown.get((evidence.symbol, trade.key))
    shown = "never shown to an ingestor" if shown_ns is None else f"shown to an ingestor at {seconds(shown_ns)}"
    by = f"{_short(claim)} has settled its time at {claim.time_ns / SECOND_NS:.3f}" if claim else "later ones are"
    text = f"{_name(trade)} is in no record, though {by}; it was {shown}"
    if not evidence.is_numbered:
        return Breach(Rule.UNNUMBERED, text)
    dispatches = {each.headers.dispatch_id for each in (before, after) if each is not None}
    return Breach(Rule.MISSED if len(dispatches) > 1 else Rule.GIVEN_UP, text)


def _values(evidence: Evidence) -> Iterator[Breach]:
    truth: defaultdict[str, list[Executed]] = defaultdict(list)
    for trade in evidence.exchange.tapes[evidence.symbol].trades:
        truth[trade.trade_id].append(trade)
    for trade_id, rows in evidence.storage.tables.trades[evidence.ticker].items():
        for row in rows:
            same = [trade for trade in truth[trade_id] if trade.time_ns == row.time_ns]
            if not same:
                yield Breach(Rule.WRONG_VALUE, f"trade {trade_id} of {seconds(row.time_ns)} is not the exchange's")
            elif (row.price, row.amount) != (same[0].price, same[0].amount):
                text = f"{_name(same[0])} has price {row.price} in the table, and {same[0].price} at the exchange"
                yield Breach(Rule.WRONG_VALUE, text)


def _candles(evidence: Evidence) -> Iterator[Breach]:
    for period in evidence.periods:
        truth = candles_of(evidence.truth, period)
        claims = evidence.storage.claims(evidence.ticker, period)
        for claim in claims:
            for open_ns in range(claim.start_ns, claim.end_ns, period * SECOND_NS):
                row = evidence.storage.tables.candles.get((evidence.ticker, period, open_ns))
                ours, theirs = row.candle if row else None, truth.get(open_ns)
                span = TimeRange(open_ns, open_ns + period * SECOND_NS)
                if not _equal(ours, theirs) and not any(span.overlaps(each) for each in evidence.provisional):
                    yield Breach(Rule.WRONG_CANDLE, f"{_candle_name(open_ns, period)} is {_values_of(ours, theirs)}")
        yield from _spoiled(evidence, period, truth)


def _spoiled(evidence: Evidence, period: int, truth: dict[int, FinalCandle]) -> Iterator[Breach]:
    right: dict[int, LogRecord] = {}
    newest: dict[int, tuple[int, int]] = {}
    for record in evidence.storage.of(evidence.ticker, period):
        order = record.headers.dispatch, record.headers.page
        for candle in record.candles:
            open_ns = candle.open_time_ns
            if order <= newest.get(open_ns, (0, -1)):  # it is here again, and the table keeps the newer one
                continue
            newest[open_ns] = order
            if _equal(candle, truth.get(open_ns)):
                right[open_ns] = record
            elif (before := right.pop(open_ns, None)) is not None:
                text = (
                    f"{_candle_name(open_ns, period)} was right at {before.time_ns / SECOND_NS:.3f}; at "
                    f"{record.time_ns / SECOND_NS:.3f} {_short(record)} has {_values_of(candle, truth.get(open_ns))}"
                )
                yield Breach(Rule.SPOILED, text)


def _equal(ours: ohlcv_pb2.OHLCV | None, theirs: FinalCandle | None) -> bool:
    if ours is None or theirs is None:
        return ours is None and theirs is None
    near = abs(ours.volume - theirs.volume) <= _CANDLE_TOLERANCE * theirs.volume
    return near and (ours.open, ours.high, ours.low, ours.close) == theirs[1:5]


def _stuck(evidence: Evidence) -> Iterator[Breach]:
    now_ns = evidence.exchange.now_ns
    if evidence.exchange.plan.delisting is not None:  # no time is settled any more, but numbered trades are recorded
        known = [trade for trade in evidence.truth if evidence.is_numbered and trade.time_ns >= evidence.first_ns > 0]
        if lost := [trade for trade in known if evidence.record_of(trade) is None]:
            yield Breach(
                Rule.STUCK, f"{_name(lost[0])} and {len(lost) - 1} more are in no record of the delisted market"
            )
        return
    if not evidence.truth:  # no source proves the absence of a market's first trade; `_silent` asks for the reason
        return
    behind = (now_ns - evidence.settled_ns) / SECOND_NS
    if behind <= SETTLED_SECONDS:
        return
    late_ns = now_ns - int(SETTLED_SECONDS * SECOND_NS)
    if behind <= QUIET_SECONDS and not any(evidence.settled_ns <= trade.time_ns < late_ns for trade in evidence.truth):
        return
    recorded = [trade for trade in evidence.truth if evidence.record_of(trade) is not None]
    waiting = sum(trade.time_ns >= evidence.settled_ns for trade in evidence.truth)
    last = max(recorded, key=lambda trade: trade.time_ns, default=None)
    text = f"settled until {seconds(evidence.settled_ns)}, {behind:.0f} s ago; {waiting} trades wait"
    if last is None:
        yield Breach(Rule.STUCK, text)
    elif any(trade.era > last.era for trade in evidence.truth):
        yield Breach(Rule.STUCK_BY_IDS, f"{text}; their numbers begin again after {_name(last)}")
    elif last.first_price != last.price:
        yield Breach(Rule.STUCK_BY_VALUE, f"{text}; the last one, {_name(last)}, was corrected by the exchange")
    else:
        yield Breach(Rule.STUCK, text)


def _delisted(evidence: Evidence) -> Iterator[Breach]:
    last = evidence.samples[-1].error if evidence.samples else ""
    if evidence.exchange.is_delisted and not any(words in last for words in _UNKNOWN):
        yield Breach(Rule.DELISTED, f"its error is {last!r}")


def _silent(evidence: Evidence) -> Iterator[Breach]:
    since: Sample | None = None
    is_told = False
    last_ns = 0
    for sample in evidence.samples:
        was_down = sample.time_ns > last_ns + _DOWN_NS
        last_ns = sample.time_ns
        if since is None or was_down or not sample.is_running or sample.settled_ns != since.settled_ns or sample.error:
            since, is_told = sample, False
        elif not is_told and (length := (sample.time_ns - since.time_ns) / SECOND_NS) > SETTLED_SECONDS:
            is_told = True
            until = f"settled until {seconds(since.settled_ns)}"
            yield Breach(Rule.SILENT, f"at {sample.time_ns / SECOND_NS:.0f} it is RUNNING, {until} for {length:.0f} s")


def _name(trade: Executed) -> str:
    return f"trade {trade.trade_id} of {seconds(trade.time_ns)}"


def _candle_name(open_ns: int, period: int) -> str:
    return f"candle of {period} s at {seconds(open_ns)}"


def _short(record: LogRecord) -> str:
    return f"page {record.headers.page} of dispatch {record.headers.dispatch_id[:16]}"


def _values_of(ours: ohlcv_pb2.OHLCV | None, theirs: FinalCandle | None) -> str:
    one = "absent" if ours is None else f"volume {ours.volume:g}, close {ours.close:g}"
    other = "absent" if theirs is None else f"volume {theirs.volume:g}, close {theirs.close:g}"
    return f"{one}; the exchange's is {other}"
