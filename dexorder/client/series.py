"""Coverage, ``client.series``: which ranges of a series are complete, and whether the table agrees."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from dexorder import errors
from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import covered_dataset, read_part, refused
from dexorder.client.moments import Moment
from dexorder_common.model.coverage import (
    Coverage,
    CoveragePage,
    CoverageRange,
    VerificationProgress,
    VerificationResult,
)
from dexorder_common.model.coverage_days import CoverageDays, coverage_days
from dexorder_common.model.datasets import CANDLES, TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.common_messages import encode_series
from dexorder_common.rpc.coverage_messages import (
    decode_coverage_page,
    decode_coverage_range,
    decode_verification,
    decode_verification_progress,
)
from dexorder_common.rpc.history_messages import decode_record
from dexorder_common.rpc.realtime_messages import decode_started
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as realtime_pb
from dexorder_protos.dexorder.relay.v1.operator_service_pb2 import RepairCoverageRequest

_NEWEST = 1_000
"""Requests and subscriptions that are looked at for what was asked for."""


class AsyncSeries:
    """Coverage of the series of one relay, for asyncio."""

    def __init__(self, connection: RelayConnection) -> None:
        self._connection = connection

    async def coverage(
        self,
        ticker: str,
        period: str | int,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        detail: bool = False,
    ) -> Coverage:
        """Return the coverage of a series: all of it, or between two times, rounded down to the period's grid.

        In place of a period, ``trades`` and ``funding`` return the ranges in which these rows are complete. With
        ``detail`` it includes the pages behind the ranges. Raises RequestRefused if the relay refuses the request.
        """
        dataset = covered_dataset(period)
        seconds, start_ns, end_ns = read_part(period, since, until, dataset=dataset)
        series = Series(ticker, seconds, dataset)
        part = encode_series(series)
        request = pb.StreamCoverageRequest(series=part, start_ns=start_ns, end_ns=end_ns, detail=detail)
        known, pages = list[CoverageRange](), list[CoveragePage]()
        async with aclosing(
            self._connection.answers(self._connection.stub.coverage.StreamCoverage, request)
        ) as answers:
            async for answer in answers:
                known += map(decode_coverage_range, answer.ranges)
                pages += map(decode_coverage_page, answer.pages)
        return Coverage(ticker, seconds, tuple(known), tuple(pages), dataset)

    async def days(
        self, ticker: str, period: str | int, since: Moment | None = None, until: Moment | None = None
    ) -> CoverageDays:
        """Return the state of each day of a series: proven, provisional, missing or not asked for.

        Arguments as for ``coverage``. A day is missing, not "not asked", if one of the newest 1,000 requests or a
        subscription has asked for it. ``unproven`` lists the days that a backtest must refuse.
        """
        found = await self.coverage(ticker, period, since, until)
        _, start_ns, end_ns = read_part(period, since, until, dataset=found.dataset)
        asked = await self._asked(found)
        span = None
        if start_ns is not None or end_ns is not None:
            known = [*(each.span for each in found.known), *asked]
            start_ns = min((each.start_ns for each in known), default=end_ns) if start_ns is None else start_ns
            end_ns = max((each.end_ns for each in known), default=start_ns) if end_ns is None else end_ns
            span = TimeRange(start_ns or 0, max(start_ns or 0, end_ns or 0))
        with refused():
            return coverage_days(found, found.dataset.period_name(found.period_seconds), span, asked)

    async def _asked(self, found: Coverage) -> list[TimeRange]:
        """Return the ranges that the newest requests and the subscriptions have asked for."""
        call, stub = self._connection.call, self._connection.stub
        answer = await call(stub.history.ListRequests, history_pb.ListRequestsRequest(page_size=_NEWEST))
        requests = [decode_record(each).request for each in answer.records]
        series = Series(found.ticker, found.period_seconds, found.dataset)
        asked = [each.span for each in requests if each.series == series and each.limit is None]
        if found.dataset in (TRADES, CANDLES):
            wanted = realtime_pb.ListRealtimeRequest(ticker=found.ticker, page_size=_NEWEST)
            now_ns = time.time_ns()
            for each in map(decode_started, (await call(stub.realtime.ListRealtime, wanted)).subscriptions):
                wants, start_ns = each.subscription.params, each.subscription.since_ns or each.started_ns
                if wants.include_ticks if found.dataset is TRADES else found.period_seconds in wants.periods:
                    asked.append(TimeRange(min(start_ns, now_ns), now_ns))
        return asked

    async def verify(
        self,
        ticker: str,
        period: str | int,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        repair: bool = False,
        values: bool = True,
        on_progress: Callable[[VerificationProgress], None] | None = None,
    ) -> VerificationResult:
        """Compare the table with the coverage of a series: all of it, or between two times, rounded down to the grid.

        Args:
            repair: Remove rows that the table must not have, retract coverage of lost, unsure and differing ones and
                submit requests for these; ``wait`` follows the requests.
            values: Compare the values with the exchange's coarser candles too, which an ingestor fetches. With
                ``repair``, return when all requests have ended and their ranges were compared again.
            on_progress: Called at each change.

        Raises:
            RequestRefused: The relay refuses the request; the message names the field and its value.
            NotSupported: The relay is too old for this call.
            TableUnavailable: The relay can't read or change the table now; the message has the cause.
            RelayUnreachable: The connection broke; verify again.
        """
        seconds, start_ns, end_ns = read_part(period, since, until)
        stub, series = self._connection.stub, Series(ticker, seconds)
        part: Any = {"series": encode_series(series), "start_ns": start_ns, "end_ns": end_ns, "values": values}
        if repair and values:
            await self._connection.require("repair-values")
        if repair:
            call = self._connection.answers(stub.operator.RepairCoverage, RepairCoverageRequest(**part))
        else:
            call = self._connection.answers(stub.coverage.VerifyCoverage, pb.VerifyCoverageRequest(**part))
        async with aclosing(call) as answers:
            async for answer in answers:
                if answer.HasField("result"):
                    return decode_verification(series, answer.result)
                if on_progress is not None:
                    on_progress(decode_verification_progress(answer.progress))
        raise errors.DexorderError("the relay's answer ended without a result; verify again")
