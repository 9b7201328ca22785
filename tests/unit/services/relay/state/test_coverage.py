"""Coverage, retractions and provisional absences: the state and the two tables always agree."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from dexorder_common.lake.coverage import Claim, Order, Retraction
from dexorder_common.model.history import PageResult
from dexorder_common.model.proof import NO_PROOF, Proof, ProofKind, encode_proofs
from dexorder_common.model.time_range import TimeRange, intersect, subtract
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state import coverage, dispatches
from dexorder_relay.state.changes import AbsencesChanged, Changes, ValueStored
from dexorder_relay.store.changes import statements
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import SERIES, at, history_state, minute, span

parts = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda p: span(p[0], p[0] + p[1]))
pages = st.tuples(st.just("page"), parts, st.integers(0, 100), parts)
taken = st.tuples(st.just("taken"), parts, st.just(0), parts)


@given(events=st.lists(pages | taken, max_size=20), order=st.randoms())
def test_the_board_says_what_the_two_tables_say(
    events: list[tuple[str, TimeRange, int, TimeRange]], order: object
) -> None:
    """Pages and retractions arrive in any order; a page is reported some time after its dispatch, or twice."""
    live, ledger, retracted = history_state(), list[PageResult](), list[tuple[TimeRange, Order]]()
    for number, (what, part, ago, empty) in enumerate(events, start=1):
        if what == "taken":
            coverage.retract(live, SERIES, [part], Order(number, 0), Changes())
            retracted.append((part, Order(number, 0)))
        else:
            ledger.append(PageResult(dispatch_id(max(number - ago, 1)), SERIES, part, (empty,)))
            for _ in range(1 + ago % 2):
                dispatches.report(live, ledger[-1:], [], Changes(), wall_ns=0, now_ns=0)
    order.shuffle(ledger)  # type: ignore[attr-defined]
    order.shuffle(retracted)  # type: ignore[attr-defined]
    again = history_state()
    for part, order_of in retracted:
        coverage.retract(again, SERIES, [part], order_of, Changes())
    for page in ledger:
        coverage.cover(again, SERIES, page.span, page.empty, Order(page.dispatch, 0), Changes())
    assert list(again.coverage[SERIES].covered) == list(live.coverage[SERIES].covered)
    assert list(again.coverage[SERIES].empty) == list(live.coverage[SERIES].empty)
    for part, order_of in retracted:
        fresh = [page.span for page in ledger if page.dispatch >= order_of.dispatch]
        assert not subtract(live.coverage[SERIES].covered.within(part), fresh), "never more than was dispatched since"
    assert again.retractions[SERIES].in_force() == live.retractions[SERIES].in_force()


@given(reported=st.lists(st.tuples(parts, parts), max_size=12))
def test_only_what_every_page_calls_empty_is_empty(reported: list[tuple[TimeRange, TimeRange]]) -> None:
    """A row stays in the table, whatever a page of a fenced dispatch claims before or after."""
    state = history_state()
    for number, (part, empty) in enumerate(reported, start=1):
        page = PageResult(dispatch_id(number), SERIES, part, (empty,))
        dispatches.report(state, [page], [], Changes(), wall_ns=0, now_ns=0)
    rows = [row for part, empty in reported for row in subtract([part], [empty])]
    assert list(state.coverage[SERIES].empty) == subtract([part for part, _ in reported], rows)


steps = st.tuples(st.sampled_from(["page", "taken"]), parts, parts)


@given(steps=st.lists(steps, max_size=12))
def test_candles_that_turned_up_are_in_coverage_until_they_are_announced(
    steps: list[tuple[str, TimeRange, TimeRange]],
) -> None:
    state = history_state(recheck_after_ns=(600 * SECOND_NS,))
    for number, (what, part, empty) in enumerate(steps, start=1):
        if what == "taken":
            coverage.retract(state, SERIES, [part], Order(number, NOW_NS), Changes())
        else:
            page = PageResult(dispatch_id(number), SERIES, part, (empty,), provisional=(empty,))
            dispatches.report(state, [page], [], Changes(), wall_ns=NOW_NS, now_ns=0)
        known, found = state.coverage[SERIES], list(state.coverage[SERIES].found)
        rows = subtract(known.covered, known.empty)
        assert not subtract(found, rows)
        assert not [part for each in found for part in state.provisional.within(SERIES, each)]


def test_candles_that_turned_up_and_are_taken_back_before_they_are_announced_are_provisional_again() -> None:
    state, changes = history_state(recheck_after_ns=(600 * SECOND_NS,)), Changes()
    for number, empty in ((1, (span(0, 10),)), (2, ())):
        page = PageResult(dispatch_id(number), SERIES, span(0, 10), empty, provisional=empty)
        dispatches.report(state, [page], [], Changes(), wall_ns=NOW_NS, now_ns=0)
    assert list(state.coverage[SERIES].found) == [span(0, 10)] and not state.provisional.within(SERIES, span(0, 10))
    coverage.retract(state, SERIES, [span(2, 4)], Order(3, NOW_NS), changes)
    assert state.provisional.within(SERIES, span(0, 10)) == [span(2, 4)]
    assert [each.span for change in changes if isinstance(change, AbsencesChanged) for each in change.change.added] == [
        span(2, 4)
    ]
    assert Retraction(SERIES, span(2, 4), Order(3, NOW_NS)) in [
        change.value for change in changes if isinstance(change, ValueStored)
    ]


# ---- provisional absences, derived from claims ----------------------------------------------------------------------

DAY_NS = 86_400 * SECOND_NS
NOW_NS = at(0) + 400 * DAY_NS  # the ranges ended long ago, so what is asked for long enough is final


@dataclass
class Told:
    """A claim of the table, in the order of dispatches."""

    span: TimeRange
    empty: TimeRange
    kind: str
    age_days: int

    def claim(self, number: int) -> Claim:
        asked_ns = NOW_NS - self.age_days * DAY_NS
        spread_ns = {"young": 1, "final": 600, "none": 0}[self.kind] * SECOND_NS
        proof = Proof(self.span, ProofKind.ODDS, 5, asked_ns, asked_ns + spread_ns)
        evidence = encode_proofs([proof]) if spread_ns else NO_PROOF
        return Claim(SERIES, self.span, number, asked_ns, tuple(intersect([self.empty], self.span)), evidence=evidence)


def known(*kinds: str) -> list[Told]:
    return [Told(span(0, 5), span(0, 5), kind, 0) for kind in kinds]


tellings = st.builds(Told, parts, parts, st.sampled_from(["young", "final", "none"]), st.integers(0, 3))


@example(told=known("young", "final"), covered=[], order=Random(0))
@example(told=known("final", "young"), covered=[], order=Random(0))
@given(told=st.lists(tellings, max_size=6), covered=st.lists(parts, max_size=2), order=st.randoms())
def test_of_claims_that_were_not_known_the_last_one_says_which_absences_are_provisional(
    told: list[Told], covered: list[TimeRange], order: Any
) -> None:
    """A relay that has lost its database reads all of them; one that has it knows what they cover."""
    state = history_state(recheck_after_ns=(600 * SECOND_NS, 2 * DAY_NS))
    for part in covered:
        coverage.cover(state, SERIES, part, [part], Order(0, 0), Changes())
    claims = [each.claim(number) for number, each in enumerate(told, start=1)]
    order.shuffle(claims)
    unknown = [state.covered(SERIES).holes(claim.span) for claim in claims]
    for claim in claims:
        coverage.cover(state, SERIES, claim.span, claim.empty, claim.order, Changes())
    changes = Changes()
    coverage.note_claims(state, zip(claims, unknown, strict=True), changes, now_ns=NOW_NS)
    found = state.provisional.within(SERIES, span(0, 100))
    expected = [m for m in range(45) if is_provisional(span(m, m + 1), told, covered)]
    assert [m for part in found for m in range(minute(part.start_ns), minute(part.end_ns))] == expected
    assert bool(statements(changes)) == bool(expected)


def is_provisional(period: TimeRange, told: list[Told], covered: list[TimeRange]) -> bool:
    about = [each for each in told if each.span.contains(period)]
    if not about or any(part.contains(period) for part in covered):
        return False
    absent = all(each.empty.contains(period) for each in about)
    return absent and about[-1].kind != "final" and about[-1].age_days < 2
