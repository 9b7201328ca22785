"""RPCs about the tables: catalog, instruments, coverage, rows, and their verification."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc import coverage_messages, history_messages
from dexorder_common.rpc.common_messages import decode_series
from dexorder_common.rpc.identity import current_caller
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as rows_pb
from dexorder_protos.dexorder.relay.v1.rows_service_pb2 import StreamRowsRequest, StreamRowsResponse
from dexorder_relay.engine import RelayEngine
from dexorder_relay.requests.queries import page_by_name
from dexorder_relay.state.request import check_part, check_rows
from dexorder_relay.verification.verification import VerificationState

log = structlog.get_logger(__name__)
RANGES_IN_AN_ANSWER, PAGES_IN_AN_ANSWER = 10_000, 1_000

_OfSeries: TypeAlias = (
    coverage_pb.StreamCoverageRequest | coverage_pb.VerifyCoverageRequest | operator_pb.RepairCoverageRequest
)


@dataclass(frozen=True)
class TableRpcs:
    """RPCs about the tables."""

    engine: RelayEngine

    async def GetCatalog(self, request: rows_pb.GetCatalogRequest, _: object) -> rows_pb.GetCatalogResponse:
        """Return name and properties of the Iceberg catalog."""
        return rows_pb.GetCatalogResponse(
            name=self.engine.catalog.name, properties=self.engine.catalog.public_properties()
        )

    async def ListInstruments(
        self, request: history_pb.ListInstrumentsRequest, _: object
    ) -> history_pb.ListInstrumentsResponse:
        """Return a page of the instruments of an exchange."""
        listed = await self.engine.instruments.listed(request.exchange)
        found, token = page_by_name(
            listed.markets,
            lambda each: each.ticker,
            history_messages.encode_instrument,
            request.page_size,
            request.page_token,
        )
        return history_pb.ListInstrumentsResponse(
            instruments=found,
            fetched_ns=listed.fetched_ns,
            candles=history_messages.encode_candle_offer(listed.candles) if listed.candles else None,
            next_page_token=token,
        )

    async def StreamCoverage(
        self, request: coverage_pb.StreamCoverageRequest, _: object
    ) -> AsyncIterator[coverage_pb.StreamCoverageResponse]:
        """Stream the coverage of a series, which is the same for every caller."""
        series, span = self._part(request, without_periods=True)
        with self.engine.context.quotas.stream(current_caller()):
            found = self.engine.queries.coverage(series, span)
            for first in range(0, len(found) or 1, RANGES_IN_AN_ANSWER):
                part = found[first : first + RANGES_IN_AN_ANSWER]
                yield coverage_pb.StreamCoverageResponse(ranges=map(coverage_messages.encode_coverage_range, part))
            pages = await self.engine.queries.pages(series, span) if request.detail else []
            for first in range(0, len(pages), PAGES_IN_AN_ANSWER):
                yield coverage_pb.StreamCoverageResponse(
                    pages=map(coverage_messages.encode_coverage_page, pages[first : first + PAGES_IN_AN_ANSWER])
                )

    async def StreamRows(self, request: StreamRowsRequest, _: object) -> AsyncIterator[StreamRowsResponse]:
        """Stream the rows of a series, which are the same for every caller."""
        series = decode_series(request.series)
        span = check_rows(series, *_ends(request), self.engine.context.venues)
        snapshot_id = request.snapshot_id if request.HasField("snapshot_id") else None
        with self.engine.context.quotas.stream(current_caller()):
            async with aclosing(self.engine.rows.messages(series, span, snapshot_id)) as messages:
                async for message in messages:
                    yield message

    async def VerifyCoverage(
        self, request: coverage_pb.VerifyCoverageRequest, _: object
    ) -> AsyncIterator[coverage_pb.VerifyCoverageResponse]:
        """Stream the progress of a verification, then its result."""
        async with aclosing(self._verified(request, repair=False)) as answers:
            async for name, answer in answers:
                yield coverage_pb.VerifyCoverageResponse(**{name: answer})  # type: ignore[arg-type]

    async def RepairCoverage(
        self, request: operator_pb.RepairCoverageRequest, _: object
    ) -> AsyncIterator[operator_pb.RepairCoverageResponse]:
        """Stream the progress of a verification and repair, then its result."""
        async with aclosing(self._verified(request, repair=True)) as answers:
            async for name, answer in answers:
                yield operator_pb.RepairCoverageResponse(**{name: answer})  # type: ignore[arg-type]

    async def _verified(
        self, request: coverage_pb.VerifyCoverageRequest | operator_pb.RepairCoverageRequest, *, repair: bool
    ) -> AsyncGenerator[tuple[str, coverage_pb.VerifyProgress | coverage_pb.VerifyResult], None]:
        """Yield the answers with the names of their fields."""
        caller, (series, span) = current_caller(), self._part(request)
        current = VerificationState(series)
        if repair or request.values:
            self.engine.context.store.check_space()
        with self.engine.context.quotas.stream(caller):
            run = self.engine.verifier.run(series, span, caller, values=request.values, repair=repair)
            async with aclosing(run) as states:
                async for current in states:
                    yield "progress", coverage_messages.encode_verification_progress(current.progress())
        yield "result", coverage_messages.encode_verification(current.result())

    def _part(self, request: _OfSeries, *, without_periods: bool = False) -> tuple[Series, TimeRange]:
        series = decode_series(request.series)
        return series, check_part(series, *_ends(request), self.engine.context.venues, without_periods=without_periods)


def _ends(request: _OfSeries | StreamRowsRequest) -> tuple[int | None, int | None]:
    start_ns = request.start_ns if request.HasField("start_ns") else None
    return start_ns, request.end_ns if request.HasField("end_ns") else None
