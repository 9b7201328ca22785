"""Calls of realtime jobs to the relay: where to start, reports of records, live data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import grpc
import structlog

from dexorder_common.model.errors import Unavailable
from dexorder_common.model.realtime import Knowledge, RealtimeStatus
from dexorder_common.model.time_range import TimeRange
from dexorder_common.rpc.realtime_messages import (
    decode_provisional,
    decode_unchecked,
    encode_realtime_series,
    encode_status,
)
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import CallRefused, IngestorPublisher
from dexorder_ingestor.realtime.live_series import Resume
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as pb

log = structlog.get_logger(__name__)
_REPORT_SECONDS = 0.15
_RECONNECT_SECONDS = 1.0
_LIVE_SECONDS = 0.005
"""Shortest time between two messages of live data."""
_MAX_MESSAGE_ITEMS = 2_000
"""Trades and candles above which a message of live data takes no other job."""


@dataclass(frozen=True, slots=True)
class SeriesReport:
    """Records of one series that Kafka has acknowledged.

    Attributes:
        period_seconds: 0 for trades.
        span: Time that they settle.
        count: Trades or candles.
        last_trade_id: Id of the last trade that is settled; empty for candles.
        lag_ns: Time from the end of ``span`` to Kafka's acknowledgement.
        compared_ns: Time before which REST has shown the recorded values of all trades; 0 if that is not known.
    """

    job_id: str
    ticker: str
    period_seconds: int
    span: TimeRange
    count: int
    last_trade_id: str = ""
    lag_ns: int = 0
    compared_ns: int = 0

    def then(self, other: SeriesReport) -> SeriesReport | None:
        """Return both as one, or None if they are not adjacent."""
        if (self.job_id, self.period_seconds) != (other.job_id, other.period_seconds):
            return None
        if self.span.end_ns != other.span.start_ns:
            return None
        span = TimeRange(self.span.start_ns, other.span.end_ns)
        last_trade_id = other.last_trade_id or self.last_trade_id
        count, compared_ns = self.count + other.count, other.compared_ns or self.compared_ns
        return replace(other, span=span, count=count, last_trade_id=last_trade_id, compared_ns=compared_ns)


class ReportedJob(Protocol):
    """A job with records that are reported."""

    job_id: str

    def fence(self) -> None:
        """End the job without a completion: the relay no longer wants it."""


class Reports:
    """Reports of all realtime jobs, several in one call; the reports of one series are in the order of its records.

    One call follows the other: a relay that was away would otherwise take an older status after a newer one.
    """

    def __init__(self, publisher: IngestorPublisher) -> None:
        self._publisher = publisher
        self._jobs: dict[str, ReportedJob] = {}
        self._waiting: dict[tuple[str, int], list[SeriesReport]] = {}
        self._statuses: dict[str, RealtimeStatus] = {}
        self._number = self._failures = 0
        self._calling = asyncio.Lock()
        self._some = asyncio.Event()

    def add(self, job: ReportedJob, progress: SeriesReport) -> None:
        """Report records soon; adjacent ones that still wait are reported as one."""
        self._jobs[job.job_id] = job
        waiting = self._waiting.setdefault((progress.job_id, progress.period_seconds), [])
        if waiting and (joined := waiting[-1].then(progress)):
            waiting[-1] = joined
        else:
            waiting.append(progress)
        self._some.set()

    def tell(self, job: ReportedJob, known: Knowledge) -> None:
        """Report soon a job's knowledge that is not in its records; only the newest report of each job is sent."""
        self._jobs[job.job_id] = job
        self._number += 1
        self._statuses[job.job_id] = RealtimeStatus(job.job_id, known, self._number)
        self._some.set()

    async def flush(self) -> None:
        """Report everything that waits, in one attempt of ``publish_timeout_seconds``; a failure is logged.

        One that has waited for another one, which failed, does not try: what it would report is left to ``run``.
        """
        failures = self._failures
        async with self._calling:
            if self._failures == failures:
                await self._report()

    async def _report(self) -> None:
        found = [progress for parts in self._waiting.values() for progress in parts]
        statuses = self._statuses
        if not found and not statuses:
            return
        self._waiting, self._statuses, self._some = {}, {}, asyncio.Event()
        request = pb.ReportRealtimeRequest(
            reports=[_encode(progress) for progress in found], statuses=map(encode_status, statuses.values())
        )
        relay, timeout = self._publisher.relay, self._publisher.rpc_timeout_seconds
        try:
            answer = await self._publisher.call(
                "ReportRealtime", lambda: relay.ReportRealtime(request, timeout=timeout)
            )
        except Unavailable as error:  # an older position costs a repeated refill
            log.warning("realtime reports are lost", reports=len(found), reason=str(error))
            self._failures += 1
            kept = {job_id: known for job_id, known in statuses.items() if job_id in self._jobs}
            self._statuses = kept | self._statuses  # a newer word counts
            self._some.set()  # nothing else may come for a minute
            return
        for job_id in answer.fenced_job_ids:
            if job := self._jobs.get(job_id):
                job.fence()

    def forget(self, job_id: str) -> None:
        """Forget a job that has ended."""
        self._jobs.pop(job_id, None)
        self._statuses.pop(job_id, None)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_REPORT_SECONDS)
            await self.flush()


class LiveSource(Protocol):
    """A job with live data."""

    def take_live(self) -> pb.JobMarketData | None:
        """Return the data since the last call, bounded; None without any."""


class LivePush:
    """The stream of live data of this process. Each job keeps a bounded amount; it drops data if the stream is slow."""

    def __init__(self, publisher: IngestorPublisher, metrics: IngestorMetrics) -> None:
        self._publisher = publisher
        self._metrics = metrics
        self._changed: dict[LiveSource, None] = {}
        self._some = asyncio.Event()

    def changed(self, source: LiveSource) -> None:
        """Send a job's live data as soon as the stream takes it."""
        self._changed[source] = None
        self._some.set()

    async def run(self) -> None:
        """Stream until cancelled; a relay without the call gets no live data."""
        while True:
            await self._some.wait()
            try:
                await self._publisher.relay.PushMarketData(self._messages())
            except grpc.aio.AioRpcError as error:
                log.info("stream of live data lost", code=error.code().name)
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _messages(self) -> AsyncIterator[pb.PushMarketDataRequest]:
        while True:
            await self._some.wait()
            while self._changed:
                self._metrics.live_messages.inc()
                yield self._message()
                await asyncio.sleep(_LIVE_SECONDS)  # the first change is sent at once, the next ones together
            self._some.clear()

    def _message(self) -> pb.PushMarketDataRequest:
        """Return the data of as many changed jobs as fit; a message each would cost a turn of the event loop each."""
        message, items = pb.PushMarketDataRequest(), 0
        while self._changed and items < _MAX_MESSAGE_ITEMS:
            source = next(iter(self._changed))
            del self._changed[source]
            if data := source.take_live():
                message.jobs.append(data)
                items += len(data.trades) + len(data.candles)
        return message


async def resume(
    publisher: IngestorPublisher, settings: IngestorSettings, job_id: str, *, fallback_ns: int, periods: Iterable[int]
) -> Resume | None:
    """Ask where a dispatch starts; None if it is no longer current. With an older relay it starts now.

    Args:
        fallback_ns: The exchange's time.
    Raises:
        Unavailable: The relay is unavailable for ``publish_timeout_seconds``.
    """
    request = pb.ResumeRealtimeRequest(job_id=job_id, ingestor_id=settings.name, exchange_time_ns=fallback_ns)
    relay, timeout = publisher.relay, settings.rpc_timeout_seconds
    try:
        answer = await publisher.call("ResumeRealtime", lambda: relay.ResumeRealtime(request, timeout=timeout))
    except CallRefused as error:
        log.warning("the relay does not say where to start; starting now", reason=str(error))
        return Resume(fallback_ns, "", dict.fromkeys(periods, fallback_ns))
    if not answer.current:
        return None
    wanted = {each.period_seconds: each.start_ns for each in answer.candles}
    return Resume(
        answer.start_ns,
        answer.last_trade_id,
        wanted,
        {each.period_seconds: each.first_ns or each.start_ns for each in answer.candles},
        tuple(sorted(map(decode_provisional, answer.provisional))),
        tuple(map(decode_unchecked, answer.unchecked)),
        answer.compared_until_ns if answer.HasField("compared_until_ns") else None,
    )


def _encode(progress: SeriesReport) -> pb.RealtimeReport:
    return pb.RealtimeReport(
        job_id=progress.job_id,
        series=encode_realtime_series(progress.ticker, progress.period_seconds),
        start_ns=progress.span.start_ns,
        end_ns=progress.span.end_ns,
        count=progress.count,
        last_trade_id=progress.last_trade_id or None,
        lag_ns=max(0, progress.lag_ns),
        compared_until_ns=progress.compared_ns,
    )
