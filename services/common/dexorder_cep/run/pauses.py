"""Pauses: outcomes that a paused trigger does not send, kept for as long as a resumption may be on its way. Pure.

A paused trigger takes rows as any other, so that its state belongs to the newest row when it is resumed. A client that
resumes it may have its answer before the engine learns of it: events of rows settled in between are sent then. The
engine may also learn of it before it has the rows of the pause: they are not sent either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dexorder_cep.compile.plans import ResultColumn
from dexorder_cep.run.delivery import Delivered, Firing, Outcome, Registration, TriggerEnded, deliver, with_entry
from dexorder_cep.run.runs import RunResult
from dexorder_cep.run.stream import Stream
from dexorder_common.model.times import SECOND_NS

WITHHELD_NS = 120 * SECOND_NS
"""Time for which outcomes are kept."""
MAX_PAUSES = 16
"""Pauses of a trigger on one ticker whose times are kept after their end."""
MAX_WITHHELD = 100
"""Outcomes of a trigger on one ticker that are kept."""


def withhold(
    registration: Registration, stream: Stream, result: RunResult, period_ns: int, stamp_ns: int
) -> list[Outcome]:
    """Keep the outcomes of a result on a ticker that is paused, except the end of the trigger's time.

    Once it is resumed they are dropped: the row was settled in the pause. An unsent outcome does not start a cooldown.
    """
    before = replace(registration.delivered.get(stream.ticker, Delivered()))
    found = deliver(registration, stream, result, period_ns)
    registration.delivered = with_entry(registration.delivered, stream.ticker, before)
    if found and isinstance(found[0], TriggerEnded):
        return found
    kept = registration.withheld.get(stream.ticker, [])
    kept += [(stamp_ns, each) for each in found]
    kept[:] = [each for each in kept[-MAX_WITHHELD:] if each[0] > stamp_ns - WITHHELD_NS]
    return []


def released(registration: Registration, ticker: str, at_ns: int) -> list[Outcome]:
    """End the pause on a ticker; return the outcomes of rows that were settled after a time."""
    found: list[Outcome] = []
    registration.silent = with_entry(registration.silent, ticker, [(0, at_ns)])
    withheld = registration.withheld.get(ticker, [])
    registration.withheld = {name: each for name, each in registration.withheld.items() if name != ticker}
    for stamp_ns, each in withheld:
        if stamp_ns <= at_ns:
            continue
        found.append(each)
        if isinstance(each, TriggerEnded):
            break
        if isinstance(each, Firing):
            until_ns = each.time_ns + registration.kind.parameters.cooldown_ns
            sent = Delivered(until_ns, 0, each.context["kind"] != "resolved")
            registration.delivered = with_entry(registration.delivered, ticker, sent)
    return found


def skip(registration: Registration, ticker: str, pauses: Iterable[Sequence[int]]) -> None:
    """Silence a trigger for rows that were settled in pauses of which the engine learns after their end."""
    spans = [*registration.silent.get(ticker, ()), *((start_ns, end_ns) for start_ns, end_ns in pauses)]
    registration.silent = with_entry(registration.silent, ticker, spans[-MAX_PAUSES:])


def encoded(withheld: Iterable[tuple[int, Outcome]]) -> list[Any]:
    """Return kept outcomes as JSON values."""
    return [
        [stamp_ns, each.event_id, each.time_ns, each.rows, each.context]
        if isinstance(each, Firing)
        else [stamp_ns, None, each.time_ns, each.reason, None]
        for stamp_ns, each in withheld
    ]


def decoded(values: Iterable[Any], registration: Registration, ticker: str) -> list[tuple[int, Outcome]]:
    """Return the outcomes that ``encoded`` was given."""
    columns: tuple[ResultColumn, ...] = registration.kind.columns
    name, number = registration.trigger_id, registration.number
    return [
        (stamp_ns, TriggerEnded(name, number, time_ns, rows))
        if event_id is None
        else (stamp_ns, Firing(event_id, name, number, ticker, time_ns, columns, tuple(map(tuple, rows)), context))
        for stamp_ns, event_id, time_ns, rows, context in values
    ]
