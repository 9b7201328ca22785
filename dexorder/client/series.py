"""Coverage, ``client.series``: which ranges of a series are complete, and whether the table agrees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from dexorder import errors
from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import covered_dataset, read_part
from dexorder.client.moments import Moment
from dexorder_common.model.coverage import (
    Coverage,
    CoveragePage,
    CoverageRange,
    VerificationProgress,
    VerificationResult,
)
from dexorder_common.model.instrument import Series
from dexorder_common.rpc.common_messages import encode_series
from dexorder_common.rpc.coverage_messages import (
    decode_coverage_page,
    decode_coverage_range,
    decode_verification,
    decode_verification_progress,
)
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1.operator_service_pb2 import RepairCoverageRequest


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
            NotSupported: The relay is older than what the call needs.
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
