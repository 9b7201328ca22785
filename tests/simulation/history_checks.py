"""Promises of the history chain, checked when a request ends and when everything has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dexorder_common.kafka.page_record import parse_response
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.periods import open_times
from dexorder_common.model.time_range import TimeRange, intersect, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_relay.state.request import CANCELLED
from tests.simulation.chain.client import Asked
from tests.simulation.exchange.history import wall_ns
from tests.simulation.table import Row

if TYPE_CHECKING:
    from tests.simulation.history import Chain

OLD_NS = 30 * SECOND_NS
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
        _check_failure(chain, asked)
        return
    check_rows(chain, request.request_id, request.series, request.span, outcome.provisional)
    if request.refresh:
        _check_fetched_again(chain, asked)
    if chain.plan.asks_again and request.request_id.endswith("-again"):
        _check_new_look(chain, asked)


def _check_failure(chain: Chain, asked: Asked) -> None:
    """Check that a request that failed has a failed dispatch in its range, whose place no other had taken by then."""
    request, parts = asked.request, chain.parts
    assert asked.notification is not None
    error = asked.notification.outcome.error
    if "must not have" in error and (chain.plan.hides or chain.plan.lies):
        return  # the exchange has denied rows that the table has
    for record in (each for partition in parts.log.partitions for each in partition):
        headers = PageHeaders.parse(dict(record.headers))
        if headers.kind is Kind.FINAL and headers.span.overlaps(request.span):
            is_error = parse_response(record.payload).status == pb.DataResponse.ERROR
            if is_error and not parts.is_fenced(headers.dispatch_id, record.appended_ns):
                return
    chain.run.fail(f"{request.request_id} failed without a dispatch that did: {error}")


def _check_fetched_again(chain: Chain, asked: Asked) -> None:
    """Check that all rows of a refreshed range come from dispatches that began after the request."""
    request = asked.request
    began_ns = {number_of(dispatch_id): each.began_ns for dispatch_id, each in chain.parts.begun.items()}
    for rows in chain.parts.table.current.rows_in(request.series, request.span).values():
        if (row_ns := began_ns[rows[0].dispatch]) < asked.submitted_ns:
            age = (asked.submitted_ns - row_ns) / SECOND_NS
            chain.run.fail(f"{request.request_id} is OK with a row that was fetched {age:.0f} s before it")


def _check_new_look(chain: Chain, asked: Asked) -> None:
    """Check that a hole of which the client was told half a minute ago or earlier was queried again.

    If the exchange shows its candles by then, they are in the table.
    """
    first = chain.known(asked.request.request_id.removesuffix("-again"))
    assert asked.notification is not None
    if first is None or first.notification is None or asked.submitted_ns - first.ended_ns <= OLD_NS:
        return
    before, now = first.notification.outcome, asked.notification.outcome
    since_ns = asked.submitted_ns - OLD_NS
    queried = [window for call_ns, window in chain.parts.exchange_calls if call_ns >= since_ns]
    for hole in intersect(now.provisional, asked.request.span):
        was_told = any(hole.overlaps(part) for part in before.provisional)
        if was_told and not any(hole.overlaps(window) for window in queried):
            chain.run.fail(f"{asked.request.request_id}: {hole} is provisional still, and the exchange was not asked")
    untruth, fault_ns = chain.parts.world.untruth, chain.parts.fault_ns - wall_ns(0.0)
    if untruth and not chain.plan.faults and fault_ns + untruth.lasts_s * SECOND_NS < since_ns:
        check_rows(chain, f"{asked.request.request_id}, after the fault", asked.request.series, asked.request.span, ())


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
