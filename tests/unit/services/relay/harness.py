"""A relay on free ports with a real table, a scripted ingestor on a real DEALER, and a scripted pipeline."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import zmq
import zmq.asyncio
from pyiceberg.catalog import Catalog

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.coverage import CoverageRow, encode_coverage
from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import COVERAGE, OHLC, rows_in
from dexorder_common.messaging.frames import decode_work, encode_work
from dexorder_common.model.history import Dispatch, FinalResult, HistoryRequest, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_common.rpc.relay_stubs import BlockingRelayStubs, RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2_grpc as irpc
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as prpc
from dexorder_relay.config import RelaySettings
from dexorder_relay.server import RunningRelay, relay
from dexorder_relay.state import dispatches, planner
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import Job, RetryPolicy
from dexorder_relay.state.leases import Assignment, Leases
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.state.workers import Slot, SlotKind, TrialRules
from tests import empty_tables
from tests.fakes.pages import dispatch_id
from tests.paths import EXCHANGES, ROOT
from tests.rig.processes import free_block
from tests.series_messages import series

TICKER = "BTC/USDT.SIM"
EARLIER = dispatch_id(1)
"""A dispatch of an earlier relay, which forgot it."""
MINUTE_NS = 60 * SECOND_NS
START_NS = 1_704_067_200 * SECOND_NS  # 2024-01-01, a Monday
SERIES = Series(TICKER, 60)
OK, NOT_FOUND, ERROR, TIMEOUT = (
    ingest.HistoryReadyNotification.NotificationStatus.Value(name) for name in ("OK", "NOT_FOUND", "ERROR", "TIMEOUT")
)
VALUES = ("open", "high", "low", "close", "volume", "quote_volume")


def candle(minutes: int) -> dict[str, Any]:
    """Return the values of a minute's candle; every other one lacks the optional values."""
    odd = minutes % 2
    values = [float(minutes), minutes + 1.5, minutes - 0.5, minutes + 1.0, minutes * 10.0, None if odd else 7.5]
    return {**dict(zip(VALUES, values, strict=True)), "trades": None if odd else minutes}


def at(minutes: int) -> int:
    """Return the nanoseconds of a minute of the test's history."""
    return START_NS + minutes * MINUTE_NS


def span(start: int, end: int) -> TimeRange:
    """Return minutes [start, end) of the test's history."""
    return TimeRange(at(start), at(end))


def moment(minutes: int) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)


def settings(folder: Path, **overrides: Any) -> RelaySettings:
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "metrics_listen": "",
        "broker_listen": "tcp://127.0.0.1:0",
        "drain_seconds": 1,
        "db": folder / "relay.db",
        "exchanges": EXCHANGES / "sim.yaml",
        "count_attempts": 2,
        "retry_backoff_seconds": 0,
    }
    return RelaySettings(**{**values, **overrides})


def environment(folder: Path, port: int = 0, broker_port: int = 0, metrics_port: int | None = None) -> dict[str, str]:
    """Return the environment of ``python -m dexorder_relay`` on the same files."""
    return {
        **os.environ,
        "DEXORDER_RELAY_LISTEN": f"127.0.0.1:{port}",
        "DEXORDER_RELAY_METRICS_LISTEN": "" if metrics_port is None else f"127.0.0.1:{metrics_port}",
        "DEXORDER_RELAY_BROKER_LISTEN": f"tcp://127.0.0.1:{broker_port}",
        "DEXORDER_RELAY_DB": str(folder / "relay.db"),
        "DEXORDER_EXCHANGES": str(EXCHANGES / "sim.yaml"),
        "DEXORDER_CATALOG_URI": f"sqlite:///{folder}/catalog.db",
        "DEXORDER_CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
    }


@contextmanager
def relay_process(
    folder: Path, port: int, *command: str, **options: Any
) -> Iterator[tuple[subprocess.Popen[Any], Any]]:
    """Run a relay on the same files until the block ends; give the process and a stub, whose calls block."""
    words = [sys.executable, *(command or ("-m", "dexorder_relay"))]
    with subprocess.Popen(words, cwd=ROOT, env=environment(folder, port), **options) as process:
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield process, BlockingRelayStubs(channel)
        finally:
            process.kill()


def history_state(
    first_dispatch: int = 1,
    *,
    attempts: int = 3,
    job_periods: int = 10,
    trials: TrialRules | None = None,
    **more: Any,
) -> HistoryState:
    """Return an empty state, whose dispatches have the numbers after the first."""
    numbers = itertools.count(first_dispatch)
    leases = Leases(lease_ns=15, new_id=lambda: dispatch_id(next(numbers)), trials=trials)
    values: dict[str, Any] = {"page_periods": 10, **more}
    return HistoryState(leases, RetryPolicy(attempts, 0), job_periods=job_periods, **values)


def dispatch_all(
    state: HistoryState, changes: Changes, *, wall_ns: int, now_ns: int
) -> list[tuple[Assignment, Dispatch]]:
    """Give queued jobs to free slots and start their dispatches, as the dispatcher does."""
    made = state.leases.assign(now_ns=now_ns)
    return [(each, dispatches.begin(state, each, changes, wall_ns=wall_ns, now_ns=now_ns)) for each in made]


class Driver:
    """What clients, ingestors and the pipeline do to a state, at one time; ``changes`` is to be stored."""

    def __init__(self, state: HistoryState | None = None, *, now_ns: int = 0) -> None:
        self.state = state or history_state()
        self.changes = Changes()
        self.now_ns = now_ns

    def accept(self, request_id: str, start: int, end: int, **fields: Any) -> LiveRequest:
        """Accept a request for minutes [start, end)."""
        request = HistoryRequest(request_id, TICKER, at(start), at(end), 60, **fields)
        return planner.accept(self.state, request, self.changes, wall_ns=self.now_ns, now_ns=self.now_ns)

    def dispatch(self, slots: int = 1) -> list[Dispatch]:
        """Offer slots and start the dispatches of the jobs that get one."""
        for _ in range(slots):
            self.state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
        return [each for _, each in dispatch_all(self.state, self.changes, wall_ns=self.now_ns, now_ns=self.now_ns)]

    def page(self, dispatch_id: str, start: int, end: int, empty: Sequence[TimeRange] = ()) -> None:
        """Report a page that Kafka has."""
        dispatches.page(self.state, dispatch_id, span(start, end), empty, self.changes, now_ns=self.now_ns)

    def report(self, pages: Sequence[PageResult] = (), finals: Sequence[FinalResult] = ()) -> None:
        """Report what the pipeline has committed."""
        dispatches.report(self.state, pages, finals, self.changes, wall_ns=self.now_ns, now_ns=self.now_ns)

    def lose(self, dispatch_id: str, reason: str = "its lease expired") -> Job | None:
        """Take back a dispatch."""
        return dispatches.lose(self.state, dispatch_id, reason, self.changes, now_ns=self.now_ns)


def counts(leases: Leases) -> tuple[int, int, int]:
    """Return queued jobs, running jobs and free slots of all exchanges."""
    loads = leases.load().values()
    free = sum(sum(load.free.values()) for load in loads)
    return sum(load.queued for load in loads), sum(load.running for load in loads), free


def free_port() -> int:
    """Return a port that was free on loopback a moment ago."""
    return free_block(1)


def catalog_settings(folder: Path) -> CatalogSettings:
    return CatalogSettings(uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


def make_tables(catalog: Catalog) -> None:
    """Create the tables that the relay reads."""
    empty_tables.make_tables(catalog, (OHLC, COVERAGE))


def write_coverage(catalog: Catalog, *rows: CoverageRow) -> None:
    """Append to the coverage table, as the pipeline does before its report."""
    table = COVERAGE.load_or_create(catalog)
    table.append(pa.Table.from_pylist([encode_coverage(each) for each in rows], schema=COVERAGE.arrow))


def coverage_row(
    start: int,
    end: int,
    *,
    fetched_ns: int,
    dispatch: int = 1,
    empty: Sequence[tuple[int, int]] = (),
    series: Series | None = None,
    age_ns: int = 0,
) -> CoverageRow:
    """Return a row of the coverage table for minutes [start, end), committed so long ago."""
    holes = tuple(TimeRange(at(first), at(last)) for first, last in empty)
    rows = end - start - sum(last - first for first, last in empty)
    span, committed_ns = TimeRange(at(start), at(end)), time.time_ns() - age_ns
    return CoverageRow(
        series or Series(TICKER, 60), span, dispatch, fetched_ns, holes, committed_ns, rows, evidence="page"
    )


@contextmanager
def refused(code: grpc.StatusCode, text: str = "") -> Iterator[None]:
    """Expect that a call in the block is refused with a code, and a text in its details."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        assert (error.code(), text in (error.details() or "")) == (code, True), error
    else:
        raise AssertionError(f"no call was refused as {code}: {text}")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another task or thread makes true."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it happens in a thread, or far inside the relay
            await asyncio.sleep(0.01)


@dataclass
class Pipeline:
    """Scripted Spark: rows into the table, then the report."""

    catalog: Catalog
    stub: Any

    def write(self, minutes: Sequence[int], ticker: str = TICKER, **values: Any) -> int:
        """Append one row a minute, with ``values`` instead of those of ``candle``; return the snapshot."""
        OHLC.load_or_create(self.catalog).append(self.rows(minutes, ticker, **values))
        return self.snapshot_id()

    def upsert(self, minutes: Sequence[int], **values: Any) -> int:
        """Write one row a minute in place of any that is there; return the snapshot."""
        table, where = self.catalog.load_table(OHLC.name), rows_in(Series(TICKER, 60), TimeRange(at(0), at(1_000_000)))
        found = table.scan(row_filter=where).to_arrow().cast(OHLC.arrow)
        again = pc.is_in(found["open_time"], pa.array(list(map(moment, minutes)), MICROSECONDS))
        rows = pa.concat_tables([found.filter(pc.invert(again)), self.rows(minutes, **values)])
        replace_rows(table, where, rows, {})
        return self.snapshot_id()

    def rows(self, minutes: Sequence[int], ticker: str = TICKER, **values: Any) -> pa.Table:
        """Return one row a minute."""
        key = {"ticker": ticker, "period_seconds": 60, "fetched_at": moment(0)}
        rows = [{**key, "open_time": moment(m), **candle(m), **values} for m in minutes]
        return pa.Table.from_pylist(rows, schema=OHLC.arrow)

    def snapshot_id(self) -> int:
        snapshot = self.catalog.load_table(OHLC.name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    async def report(
        self, *, snapshot_id: int | None = None, pages: Sequence[Any] = (), finals: Sequence[Any] = ()
    ) -> None:
        await self.stub.ReportJobs(ppb.ReportJobsRequest(snapshot_id=snapshot_id, pages=pages, finals=finals))

    async def land(self, dispatch: Any, *, holes: Sequence[int] = (), final: bool = True) -> None:
        """Commit a whole dispatch as one page: every minute except the holes, which are verified empty."""
        first, last = span_of(dispatch)
        there = [m for m in range(first, last) if m not in holes]
        snapshot_id = self.upsert(there) if there else None
        await self.report(
            snapshot_id=snapshot_id,
            pages=[page(dispatch.job_id, first, last, empty=[(m, m + 1) for m in holes if first <= m < last])],
            finals=[final_of(dispatch.job_id)] if final else [],
        )


def minute(time_ns: int) -> int:
    return int((time_ns - START_NS) // MINUTE_NS)


def span_of(dispatch: Any) -> tuple[int, int]:
    """Return the minutes that a dispatch asks for."""
    return minute(dispatch.historical.start_time), minute(dispatch.historical.end_time)


def ranges(pairs: Sequence[tuple[int, int]]) -> list[common_pb.TimeRange]:
    return [common_pb.TimeRange(start_ns=at(start), end_ns=at(end)) for start, end in pairs]


def page(
    job_id: str,
    start: int,
    end: int,
    *,
    empty: Sequence[tuple[int, int]] = (),
    provisional: Sequence[tuple[int, int]] = (),
    refused: str | None = None,
) -> ppb.PageResult:
    """Return the report of a page of minutes [start, end); ``provisional`` ranges are empty as well."""
    return ppb.PageResult(
        job_id=job_id,
        series=series(ticker=TICKER, period_seconds=60),
        start_ns=at(start),
        end_ns=at(end),
        empty=ranges([*empty, *provisional]),
        provisional=ranges(provisional),
        refused=refused,
    )


def final_of(job_id: str, status: Any = ingest.DataResponse.OK, error: str | None = None) -> ppb.FinalResult:
    return ppb.FinalResult(job_id=job_id, status=status, error_message=error)


def request(request_id: str, start: int, end: int, **fields: Any) -> ingest.SubmitHistoricalRequest:
    """Return a request for minutes [start, end)."""
    values = {"ticker": TICKER, "start_time": at(start), "end_time": at(end), "period_seconds": 60, **fields}
    return ingest.SubmitHistoricalRequest(request_id=request_id, **values)


class Ingestor:
    """One DEALER that offers slots, takes dispatches and answers as the test decides."""

    def __init__(self, context: zmq.asyncio.Context, address: str, stub: Any) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)
        self.stub = stub

    async def send(self, message: Any) -> None:
        await self.socket.send_multipart(encode_work(message))

    async def offer(self, slots: int = 1, venue: str = "SIM", job_type: Any = ingest.HISTORICAL) -> None:
        for _ in range(slots):
            await self.send(ingest.WorkerReady(exchanges=[venue], job_type=job_type))

    async def take(self) -> ingest.DataRequest:
        """Return the next dispatch."""
        message = decode_work(await asyncio.wait_for(self.socket.recv_multipart(), 20))
        assert isinstance(message, ingest.DataRequest)
        return message

    async def page(self, job_id: str, start: int, end: int, empty: Sequence[tuple[int, int]] = ()) -> bool:
        """Report a page that Kafka has; return whether the dispatch is current."""
        answer = await self.stub.ReportPage(
            ipb.ReportPageRequest(
                job_id=job_id,
                start_ns=at(start),
                end_ns=at(end),
                candles=end - start,
                empty=ranges(empty),
            )
        )
        return bool(answer.current)

    async def work(self, pipeline: Pipeline, *, dispatches: int, holes: Sequence[int] = ()) -> list[Any]:
        """Take a number of dispatches and complete each."""
        done = []
        for _ in range(dispatches):
            dispatch = await self.take()
            done.append(dispatch)
            first, last = span_of(dispatch)
            assert await self.page(dispatch.job_id, first, last)
            await self.send(ingest.WorkComplete(job_id=dispatch.job_id, success=True))
            await pipeline.land(dispatch, holes=holes)
            await self.offer()
        return done


@dataclass
class Suite:
    """A running relay and everything around it; what is ``opened`` is closed before the relay stops."""

    folder: Path
    running: RunningRelay
    channel: grpc.aio.Channel
    pipeline: Pipeline
    opened: AsyncExitStack
    tls_ca: Path | None = None

    def __post_init__(self) -> None:
        self.relay: Any = RelayStubs(self.channel)
        self.ingestors: Any = irpc.IngestorServiceStub(self.channel)
        self.pipeline.stub = prpc.PipelineServiceStub(self.channel)
        self.context = zmq.asyncio.Context()
        self.opened.callback(self.context.term)

    async def channel_of(self, caller: str | None) -> grpc.aio.Channel:
        """Return a channel with the token of a caller."""
        made = ChannelSettings(tls_ca=self.tls_ca, token=token_of(caller) if caller else None)  # type: ignore[arg-type]
        return await self.opened.enter_async_context(open_channel(self.running.address, made))

    async def stub(self, caller: str) -> Any:
        return RelayStubs(await self.channel_of(caller))

    def ingestor(self) -> Ingestor:
        made = Ingestor(self.context, self.running.broker_address, self.ingestors)
        self.opened.callback(made.socket.close)
        return made

    async def offering(self, slots: int = 1) -> Ingestor:
        """Return a new ingestor that has offered slots."""
        made = self.ingestor()
        await made.offer(slots)
        return made

    async def submit(self, request_id: str, start: int, end: int, **fields: Any) -> ingest.SubmitResponse:
        answer: ingest.SubmitResponse = (
            await self.relay.history.SubmitHistorical(request(request_id, start, end, **fields))
        ).answer
        return answer

    async def queued(self, request_id: str, start: int, end: int, **fields: Any) -> str:
        answer = await self.submit(request_id, start, end, **fields)
        assert answer.status == ingest.SubmitResponse.QUEUED, answer
        return str(answer.notification_topic)

    async def dispatched(self, request_id: str, start: int, end: int, **fields: Any) -> tuple[Ingestor, Any]:
        """Submit a request; return a new ingestor with its dispatch."""
        made = await self.offering()
        await self.queued(request_id, start, end, **fields)
        return made, await made.take()

    async def record(self, request_id: str) -> Any:
        return (await self.relay.history.GetRequest(history_pb.GetRequestRequest(request_id=request_id))).record

    async def finished(self, request_id: str) -> Any:
        """Wait until the request has ended and return its record."""
        async for _ in self.relay.history.WatchProgress(
            history_pb.WatchProgressRequest(request_id=request_id), timeout=30
        ):
            pass
        record = await self.record(request_id)
        assert record.state == history_pb.REQUEST_STATE_FINISHED
        return record

    async def ended(self, request_id: str) -> tuple[int, int]:
        """Wait until the request has ended and return its status and number of rows."""
        record = await self.finished(request_id)
        return record.status, record.row_count

    async def notification(self, topic: str, after: common_pb2.Cursor | None = None) -> Any:
        """Return the first notification after a cursor, which must be valid."""
        call = self.relay.history.WatchNotifications(
            history_pb.WatchNotificationsRequest(topic=topic, after=after), timeout=30
        )
        assert (await call.read()).HasField("opened")
        answer = await call.read()
        call.cancel()
        return answer.notification


def token_of(client_id: str) -> str:
    return f"{client_id}-token-that-no-log-may-show"


@asynccontextmanager
async def suite(folder: Path, clock: Clock | None = None, **overrides: Any) -> AsyncIterator[Suite]:
    catalog_of = catalog_settings(folder)
    catalog = catalog_of.load()
    make_tables(catalog)
    async with (
        relay(settings(folder, **overrides), catalog_of, clock or SystemClock()) as running,
        grpc.aio.insecure_channel(running.address) as channel,
        AsyncExitStack() as opened,
    ):
        yield Suite(folder, running, channel, Pipeline(catalog, None), opened)
    catalog.close()
