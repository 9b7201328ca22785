"""StreamCoverage: the pure rule, and a relay over gRPC."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.coverage import CoverageKind, CoverageRange, known_ranges
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as rpb
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    EARLIER,
    TICKER,
    at,
    coverage_row,
    page,
    ranges,
    refused,
    suite,
    write_coverage,
)

ROWS, EMPTY = rpb.COVERAGE_KIND_ROWS, rpb.COVERAGE_KIND_EMPTY
spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda p: TimeRange(p[0], p[0] + p[1])))


@given(covered=spans, empty=spans)
def test_every_point_has_the_one_kind_it_was_given(covered: list[TimeRange], empty: list[TimeRange]) -> None:
    def inside(time: int, parts: list[TimeRange]) -> bool:
        return any(part.start_ns <= time < part.end_ns for part in parts)

    found = known_ranges(covered, empty)
    for time in range(50):
        kinds = [each.kind for each in found if each.span.start_ns <= time < each.span.end_ns]
        expected = CoverageKind.EMPTY if inside(time, empty) else CoverageKind.ROWS
        assert kinds == ([expected] if inside(time, covered) else [])
    for one, two in itertools.pairwise(found):
        assert one.span.end_ns < two.span.start_ns or (one.span.end_ns == two.span.start_ns and one.kind != two.kind)


def test_pages_that_touch_are_one_range() -> None:
    covered = merge([TimeRange(0, 10), TimeRange(10, 20), TimeRange(30, 40)])
    assert known_ranges(covered, [TimeRange(8, 12)]) == [
        CoverageRange(TimeRange(0, 8), CoverageKind.ROWS),
        CoverageRange(TimeRange(8, 12), CoverageKind.EMPTY),
        CoverageRange(TimeRange(12, 20), CoverageKind.ROWS),
        CoverageRange(TimeRange(30, 40), CoverageKind.ROWS),
    ]


async def asked(
    relay: Any, *, ticker: str = TICKER, period_seconds: int = 60, **fields: Any
) -> list[rpb.StreamCoverageResponse]:
    request = rpb.StreamCoverageRequest(series=series(ticker, period_seconds), **fields)
    return [answer async for answer in relay.coverage.StreamCoverage(request, timeout=30)]


def reported(answers: list[rpb.StreamCoverageResponse]) -> list[tuple[int, int, int]]:
    found = [each for answer in answers for each in answer.ranges]
    return [(int(each.start_ns - at(0)), int(each.end_ns - at(0)), each.kind) for each in found]


def minutes(*parts: tuple[int, int, Any]) -> list[tuple[int, int, int]]:
    return [(at(start) - at(0), at(end) - at(0), kind) for start, end, kind in parts]


async def test_ranges_of_pages_that_were_reported_and_of_those_in_the_table(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        assert [answer.ranges for answer in await asked(s.relay)] == [[]]
        write_coverage(s.pipeline.catalog, coverage_row(20, 30, fetched_ns=at(90), empty=[(28, 30)]))
    async with suite(tmp_path) as s:
        await s.pipeline.report(pages=[page(EARLIER, 10, 20, empty=[(12, 14)]), page(EARLIER, 40, 50)])
        whole = [(10, 12, ROWS), (12, 14, EMPTY), (14, 28, ROWS), (28, 30, EMPTY), (40, 50, ROWS)]
        assert reported(await asked(s.relay)) == minutes(*whole)
        assert reported(await asked(s.relay, start_ns=at(13))) == minutes((13, 14, EMPTY), *whole[2:])
        assert reported(await asked(s.relay, start_ns=at(0), end_ns=at(12))) == minutes((10, 12, ROWS))
        assert (
            reported(await asked(s.relay, period_seconds=3_600)) == reported(await asked(s.relay, ticker="A.SIM")) == []
        )


async def test_a_start_reads_only_claims_that_the_database_may_lack(tmp_path: Path) -> None:
    """Reading 100,000 claims takes 3 s; a database that has them, or a backup of it, needs those committed since."""
    async with suite(tmp_path) as s:
        old, young = (coverage_row(n, n + 10, fetched_ns=at(90), age_ns=n * 3_600 * SECOND_NS) for n in (30, 10))
        write_coverage(s.pipeline.catalog, old, young)
    async with suite(tmp_path) as s:
        assert reported(await asked(s.relay)) == minutes((10, 20, ROWS))
    async with suite(tmp_path, db=tmp_path / "new.db") as s:
        assert reported(await asked(s.relay)) == minutes((10, 20, ROWS), (30, 40, ROWS))


async def test_detail_gives_the_pages_with_evidence_and_times(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        pages = [coverage_row(10, 20, fetched_ns=at(90), empty=[(12, 14)]), coverage_row(0, 10, fetched_ns=at(80))]
        write_coverage(s.pipeline.catalog, *pages, coverage_row(50, 60, fetched_ns=at(80)))
        answers = await asked(s.relay, end_ns=at(50), detail=True)
        found = [each for answer in answers for each in answer.pages]
        assert [(each.start_ns, each.end_ns, each.rows) for each in found] == [
            (at(0), at(10), 10),
            (at(10), at(20), 8),
        ]
        second = found[1]
        assert (list(second.empty), second.evidence, list(second.retracted)) == (ranges([(12, 14)]), "page", [])
        assert (second.fetched_ns, second.committed_ns // 1_000) == (at(90), pages[0].committed_ns // 1_000)
        assert not any(answer.pages for answer in await asked(s.relay, end_ns=at(50)))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ticker": "BTCUSDT"}, "ticker 'BTCUSDT' is not SYMBOL.VENUE"),
    ({"ticker": "BTC/USDT.MOON"}, "ticker 'BTC/USDT.MOON': exchange 'MOON' is not known; this relay has SIM"),
    ({"ticker": "x" * 300 + ".SIM"}, "has 304 characters; at most 256 are allowed"),
    ({"period_seconds": 61}, "period_seconds 61"),
    ({"start_ns": at(0) + 1}, f"start_ns {at(0) + 1} is not on the 1m grid"),
    ({"end_ns": 2**64 - 1}, f"end_ns {2**64 - 1} is over {MAX_TIME_NS}"),
    ({"start_ns": at(5), "end_ns": at(5)}, f"end_ns {at(5)} is not after start_ns {at(5)}"),
    ({"end_ns": 0}, "end_ns 0 is not after start_ns 0"),
]


@pytest.mark.parametrize("rpc", ["StreamCoverage", "VerifyCoverage"])
async def test_bad_questions_name_field_and_value(tmp_path: Path, rpc: str) -> None:
    async with suite(tmp_path) as s:
        for fields, text in BAD:
            wanted = series(TICKER, 60)
            for name in {"ticker", "period_seconds"} & fields.keys():
                setattr(wanted, name, fields[name])
            values = {"series": wanted, **{name: each for name, each in fields.items() if name.endswith("_ns")}}
            call = getattr(s.relay.coverage, rpc)(getattr(rpb, f"{rpc}Request")(**values))
            with refused(grpc.StatusCode.INVALID_ARGUMENT, text):
                await call.read()
        for weeks in (604_800, 2_592_000):
            assert await asked(s.relay, period_seconds=weeks) == [rpb.StreamCoverageResponse()]
