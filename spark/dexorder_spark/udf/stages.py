"""All UDFs of a driver: follows the relay's registry, starts and stops their stages, and reports on them.

A stage stops between two batches, or in the middle of one that is then fed again. Stages start after the relay's first
answer, because it knows which UDFs were stopped. Without later answers all of them continue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import structlog

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.errors import SuiteError
from dexorder_common.model.udf import OHLC, UdfState, UdfStatus
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import error_text
from dexorder_common.rpc.udf_messages import decode_registration, encode_definition, encode_status
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2_grpc as rpc
from dexorder_protos.dexorder.udf.v1.udf_registry_service_pb2 import UdfRegistration
from dexorder_spark.config import SparkSettings
from dexorder_spark.records.relay_client import RelayClient
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.ticks import TRADES
from dexorder_spark.udf.lags import TopicEnds
from dexorder_spark.udf.lake import UdfLake
from dexorder_spark.udf.programs import Declared, Wanted, spec_of, wanted
from dexorder_spark.udf.reader import UdfReader
from dexorder_spark.udf.report import LogBook, lines_of, report_parts
from dexorder_spark.udf.sending import Sending
from dexorder_spark.udf.sinks import Sinks
from dexorder_spark.udf.stage import UdfStage

log = structlog.get_logger(__name__)
SYNC_SECONDS = 0.5
"""With the time between two looks at a topic, what `Status` shows is known within a second."""
_CALL_TIMEOUT_S = 3.0


@dataclass
class Running:
    """A stage and its thread."""

    wanted: Wanted
    stage: UdfStage | None
    thread: threading.Thread | None
    stop: threading.Event
    status: UdfStatus

    @property
    def is_alive(self) -> bool:
        """Return whether its thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def now(self, ends: TopicEnds) -> UdfStatus:
        """Return its status, with how far it is behind the topic now."""
        if self.stage is None:
            return self.status
        status, done = self.stage.status, self.stage.done
        lag = ends.lag(self.stage.source, done) if done is not None else None
        return status if lag is None else replace(status, lag=lag)


class UdfStages:
    """Owner of all stages; ``run`` in one thread."""

    def __init__(
        self,
        settings: SparkSettings,
        catalog: CatalogSettings,
        declared: Mapping[str, Declared],
        locks: WriterLocks,
        stop: threading.Event,
    ) -> None:
        """Run the UDFs of the file and of the relay until ``stop``."""
        self._settings = settings
        self._catalog = catalog
        self._declared = declared
        self._locks = locks
        self._stop = stop
        self._logs = LogBook()
        self._running: dict[str, Running] = {}
        self._ends = TopicEnds()

    def run(self) -> None:
        """Follow the registry until ``stop`` is set; then stop all."""
        threading.Thread(target=self._ends.run, args=(self._stop,), name="udf-lags", daemon=True).start()
        with open_sync_channel(self._settings.relay) as channel:
            stub = rpc.PipelineServiceStub(channel)
            try:
                while not self._stop.is_set():
                    self._follow(stub)
                    self._stop.wait(SYNC_SECONDS)
            finally:
                self.stop_all()

    def statuses(self) -> list[UdfStatus]:
        """Return the status of each UDF that runs, has failed, or has been stopped."""
        return [each.now(self._ends) for each in list(self._running.values())]

    def stop_all(self) -> None:
        """Stop all and wait for them, within the driver's time to stop."""
        deadline = time.monotonic() + self._settings.drain_seconds / 3
        for each in self._running.values():
            each.stop.set()
        for each in self._running.values():
            if each.thread is not None:
                each.thread.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, stub: Any) -> None:
        parts = report_parts(
            [encode_definition(each.definition) for each in self._declared.values()],
            map(encode_status, self.statuses()),
            self._logs.take(),
        )
        try:
            found = self._reported(stub, parts)
        except grpc.RpcError as error:
            self._logs.put_back(lines_of(parts))
            log.debug("the relay does not answer; UDFs stay as they are", error=error_text(error))
            return
        try:
            registrations = map(decode_registration, found)
            self.apply(wanted(self._declared, registrations, any_command=self._settings.udf_any_command))
        except Exception as error:  # one UDF's fault is in its status; this is ours
            log.error("UDFs cannot be started", error=f"{type(error).__name__}: {error}"[:500])

    def _reported(self, stub: Any, parts: deque[pb.SyncUdfsRequest]) -> list[UdfRegistration]:
        """Send the parts, keep the ones without an answer, and return the UDFs to run from all pages."""
        answer = pb.SyncUdfsResponse()
        while parts:
            answer = stub.SyncUdfs(parts[0], timeout=_CALL_TIMEOUT_S)
            parts.popleft()
        found = list(answer.registrations)
        while token := answer.next_page_token:
            answer = stub.SyncUdfs(pb.SyncUdfsRequest(page_token=token), timeout=_CALL_TIMEOUT_S)
            found += answer.registrations
        return found

    def apply(self, all_wanted: Mapping[str, Wanted]) -> None:
        """Stop stages that are not wanted, or wanted otherwise; start the wanted ones that do not run."""
        for name, each in list(self._running.items()):
            if all_wanted.get(name) == each.wanted:
                continue
            each.stop.set()
            if each.is_alive:
                continue  # its table has one writer at a time; it is looked at again the next time
            if name in all_wanted:
                del self._running[name]
            elif each.stage is None or each.stage.status.state is not UdfState.STOPPED:
                each.stage, each.status = None, UdfStatus(name, UdfState.STOPPED, generation=each.wanted.generation)
        for name, one in all_wanted.items():
            if name not in self._running:
                self._running[name] = self._start(one)

    def _start(self, one: Wanted) -> Running:
        name = one.definition.name
        on_log = partial(self._logs.add, name)
        stop = threading.Event()
        failed = UdfStatus(name, UdfState.FAILED, one.fault, generation=one.generation)
        if one.fault:
            on_log(f"dexorder: failed: {one.fault}")
            return Running(one, None, None, stop, failed)
        relay = RelayClient(self._settings.relay, stop, f"UDF {name}")
        try:
            stage = self._stage(one, relay, stop, on_log)
        except SuiteError as error:
            on_log(f"dexorder: failed: {error}")
            return Running(one, None, None, stop, replace(failed, message=str(error)))

        def run() -> None:
            try:
                stage.run()
            finally:
                relay.close()

        thread = threading.Thread(target=run, name=f"udf-{name}", daemon=True)
        log.info("UDF starts", udf=name, generation=one.generation)
        thread.start()
        return Running(one, stage, thread, stop, stage.status)

    def _stage(self, one: Wanted, relay: RelayClient, stop: threading.Event, on_log: Callable[[str], None]) -> UdfStage:
        definition, settings = one.definition, self._settings
        candles = definition.input.table == OHLC
        sinks = Sinks(definition.name, definition.output, settings.gateway)
        their_lake = UdfLake(self._catalog, definition.name, settings.udf_frame_limit_bytes)
        table = CANDLES if candles else TRADES
        return UdfStage(
            definition,
            spec_of(definition, settings.udf_frame_limit_bytes),
            UdfReader(
                table,
                settings.source if candles else f"{settings.source}#{table.topic}",
                definition.input,
                relay.describe,
                max_records=settings.max_records_per_batch if candles else settings.max_trade_records_per_batch,
            ),
            UdfLake(self._catalog, definition.name, settings.udf_frame_limit_bytes),
            Sending(definition.name, sinks, their_lake, on_log),
            tolerance_ns=table.tolerance_ns,
            generation=one.generation,
            since_generation=one.since_generation,
            stop=stop,
            on_log=on_log,
            writer_lock=self._locks.of(definition.table),
            batch_seconds=settings.batch_seconds,
        )
