"""Promises of the history chain, checked when a request ends and when everything has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dexorder_common.model.history import RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import open_times
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state.request import CANCELLED
from tests.simulation.chain.client import Asked
from tests.simulation.table import Row

if TYPE_CHECKING:
    from tests.simulation.history import Chain

SETTLED_STATES = (RequestStatus.OK, RequestStatus.NOT_FOUND)


def check_outcome(chain: Chain, asked: Asked) -> None:
    """Check the end of a request: OK means that every row is there, as the exchange has it, or named provisional."""
    request, heard = asked.request, asked.notification
    assert heard is not None
    outcome, run = heard.outcome, chain.run
    if outcome.status is RequestStatus.TIMEOUT:
        run.fail(f"{request.request_id} made no progress: {outcome.error}")
    if outcome.status is RequestStatus.ERROR:
        if asked.is_cancelled and outcome.error == CANCELLED:
            return
        if not chain.plan.lies and not chain.plan.hides:
            run.fail(f"{request.request_id} failed at an honest exchange: {outcome.error}")
        return
    check_rows(chain, request.request_id, request.series, request.span, outcome.provisional)
    if request.refresh:
        _check_fetched_again(chain, asked)
    if chain.plan.asks_again and request.request_id.endswith("-again") and outcome.provisional:
        _check_new_look(chain, asked)


def _check_fetched_again(chain: Chain, asked: Asked) -> None:
    """Check that all rows of a refreshed range come from dispatches that began after the request."""
    request = asked.request
    for rows in chain.parts.table.current.rows_in(request.series, request.span).values():
        if (began_ns := chain.parts.begun_ns[rows[0].dispatch]) < asked.submitted_ns:
            age = (asked.submitted_ns - began_ns) / SECOND_NS
            chain.run.fail(f"{request.request_id} is OK with a row that was fetched {age:.0f} s before it")


def _check_new_look(chain: Chain, asked: Asked) -> None:
    """Check that a hole of which the client was told half a minute ago or earlier was queried again."""
    first = chain.known(asked.request.request_id.removesuffix("-again"))
    assert asked.notification is not None
    if first is None or first.notification is None:
        return
    before, now = first.notification.outcome, asked.notification.outcome
    same = [part for part in now.provisional if part in before.provisional]
    is_old = asked.submitted_ns - first.ended_ns > 30 * SECOND_NS
    if same and is_old and not any(call >= asked.submitted_ns for call in chain.parts.exchange_calls):
        chain.run.fail(f"{asked.request.request_id}: {same[0]} is provisional still, and the exchange was not asked")


def check_rows(
    chain: Chain, name: str, series: Series, span: TimeRange, excepted: tuple[TimeRange, ...] | list[TimeRange]
) -> None:
    """Check the rows of a range against the market."""
    rows, market, world = chain.parts.table.current.rows_in(series, span), chain.parts.world.market, chain.parts.world
    for open_ns in open_times(span, series.period_seconds):
        found, true = rows.get(open_ns, ()), market.get(open_ns)
        period = (open_ns - world.span.start_ns) // (series.period_seconds * SECOND_NS)
        if len(found) > 1:
            chain.run.fail(f"{name}: period {period} has {len(found)} rows")
        if found and (true is None or not _equal(found[0], true)):
            chain.run.fail(f"{name}: period {period} is {found[0].values}, the exchange has {true}")
        if not found and true is not None and not any(e.start_ns <= open_ns < e.end_ns for e in excepted):
            chain.run.fail(f"{name}: period {period} is not in the table")


def _equal(row: Row, candle: Candle) -> bool:
    return row.values == (candle.open, candle.high, candle.low, candle.close, candle.volume)


def check_end(chain: Chain) -> None:
    """Check the end of a run: every request has ended, nothing is provisional, coverage claims what the table has."""
    run, engine = chain.run, chain.relay.engine
    if engine is None:
        run.fail("the relay did not come back")
        return
    state = engine.context.state
    told = list[TimeRange]()
    for asked in (each for client in chain.clients for each in client.asked.values()):
        if asked.notification is None:
            run.fail(f"{asked.request.request_id} has not ended")
        elif asked.notification.outcome.status in SETTLED_STATES:
            told.append(asked.request.span)
    if state.requests:
        run.fail(f"the relay still works for {next(iter(state.requests))}")
    if provisional := chain.provisional():
        run.fail(f"{provisional[0]} is provisional for ever")
    for series in state.coverage:
        covered, empty = state.claims(series, chain.parts.world.span)
        for span in covered:
            check_rows(chain, "coverage", series, span, ())
        for span in empty:
            if chain.parts.table.current.rows_in(series, span):
                run.fail(f"coverage says that {span} is empty, and the table has rows of it")
        if not chain.restored and (lost := [h for span in merge(told) for h in state.covered(series).holes(span)]):
            run.fail(f"a client was told that {lost[0]} is complete, and coverage has forgotten it")
