"""Adjacent rows of coverage as one row: the same claims for whoever reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.claims import join_claims
from dexorder_common.lake.coverage import CoverageRow, Order, Retractions, decode_coverage, encode_coverage
from dexorder_common.lake.tables import COVERAGE
from dexorder_common.model.instrument import Series
from dexorder_common.model.proof import (
    NO_PROOF,
    Proof,
    ProofKind,
    encode_proofs,
    proofs_of,
    provisional_ranges,
)
from dexorder_common.model.time_range import RangeSet, TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.fakes.pages import span

SERIES = Series("BTC/USDT.SIM", 60)
OTHER = Series("ETH/USDT.SIM", 60)
HOUR_NS = 3_600 * SECOND_NS


def proof(part: TimeRange, kind: ProofKind = ProofKind.TRADE_IDS, later_ns: int = 0) -> str:
    return encode_proofs([Proof(part, kind, 1, part.end_ns, part.end_ns + later_ns)])


def row(
    first: int,
    count: int = 1,
    *,
    dispatch: int = 1,
    series: Series = SERIES,
    empty: Sequence[int] = (),
    kind: ProofKind = ProofKind.TRADE_IDS,
) -> CoverageRow:
    part = span(first, count)
    holes = tuple(span(minute, 1) for minute in empty)
    return CoverageRow(
        series,
        part,
        dispatch,
        part.end_ns,
        holes,
        committed_ns=part.end_ns + SECOND_NS,
        rows=count - len(holes),
        evidence=proof(part, kind),
    )


def join(rows: Sequence[CoverageRow]) -> list[CoverageRow]:
    given_rows = pa.Table.from_pylist(list(map(encode_coverage, rows)), schema=COVERAGE.arrow)
    return [decode_coverage(each) for each in COVERAGE.rows(join_claims(given_rows))]


def test_a_minute_after_another_becomes_one_row_with_the_latest_commit_and_all_proofs() -> None:
    found = join([row(2), row(0), row(1, empty=[1])])
    part = span(0, 3)
    (joined,) = found
    assert (joined.span, joined.rows, joined.empty) == (part, 2, (span(1, 1),))
    assert (joined.fetched_ns, joined.committed_ns) == (span(0, 1).end_ns, part.end_ns + SECOND_NS)
    assert [each.span for each in proofs_of(joined.evidence)] == [part]


def test_what_would_say_something_else_stays_apart() -> None:
    for other in (row(1, dispatch=2), row(1, series=OTHER), row(2), row(0)):
        given_rows = [row(0, dispatch=1), other]
        assert sorted(join(given_rows)) == sorted({*given_rows}), other
    unnumbered = [row(0, dispatch=0), row(1, dispatch=0)]
    assert join(unnumbered) == unnumbered, "the time of the fetch is their order"
    young = [row(0, empty=[0], kind=ProofKind.REFILL), row(1, kind=ProofKind.REFILL)]
    assert join(young) == young, "an absence is as old as its row"


def test_a_row_has_at_most_a_thousand_empty_ranges() -> None:
    thin = [row(n * 2, 2, empty=[n * 2]) for n in range(1_500)]
    found = join(thin)
    assert [len(each.empty) for each in found] == [1_000, 500]
    assert sum(each.rows for each in found) == 1_500


@st.composite
def rows_of_coverage(draw: st.DrawFn) -> list[CoverageRow]:
    rows: list[CoverageRow] = []
    for dispatch in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, 6))
        for count in draw(st.lists(st.integers(1, 3), max_size=6)):
            empty = draw(st.sets(st.integers(first, first + count - 1), max_size=2))
            kind = draw(st.sampled_from([ProofKind.TRADE_IDS, ProofKind.TRADE_IDS, ProofKind.REFILL]))
            rows.append(row(first, count, dispatch=dispatch, empty=sorted(empty), kind=kind))
            first += count + draw(st.sampled_from([0, 0, 0, 1]))
    return draw(st.permutations([*rows, *draw(st.lists(st.sampled_from(rows), max_size=2))] if rows else []))


@given(rows_of_coverage(), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5), st.integers(0, 3))), st.data())
def test_readers_find_the_same_claims(
    rows: list[CoverageRow], retracted: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    retractions = Retractions()
    for first, count, dispatch in retracted:
        retractions.add(span(first, count), Order(dispatch, span(first, count).end_ns + HOUR_NS))
    joined = join(rows)
    assert claims(joined, retractions) == claims(rows, retractions)
    assert sum(each.rows for each in joined) == sum(each.rows for each in {*rows})
    since_ns = data.draw(st.sampled_from([0, *(each.committed_ns for each in rows)]))
    later, joined_later = ([each for each in some if each.committed_ns >= since_ns] for some in (rows, joined))
    for each in later:
        assert any(found.dispatch == each.dispatch and found.span.contains(each.span) for found in joined_later)
    assert join(joined) == joined


def claims(rows: Sequence[CoverageRow], retractions: Retractions) -> dict[object, list[TimeRange]]:
    """Return what is covered, empty, and only provisionally empty, for each dispatch."""
    found: defaultdict[object, RangeSet] = defaultdict(RangeSet)
    for each in rows:
        young = provisional_ranges(proofs_of(each.evidence), each.empty)
        kinds = {"covered": [each.span], "empty": each.empty, "provisional": young}
        for kind, parts in kinds.items():
            for part in parts:
                for claimed in retractions.claimed(part, each.order):
                    found[kind, each.dispatch].add(claimed)
    return {key: list(parts) for key, parts in found.items()}


def test_rows_of_an_older_ingestor_without_proofs_are_joined_where_nothing_is_empty() -> None:
    old = [CoverageRow(SERIES, span(n, 1), 1, 5, (), committed_ns=9_000, rows=1, evidence=NO_PROOF) for n in range(2)]
    assert [each.span for each in join(old)] == [span(0, 2)]
