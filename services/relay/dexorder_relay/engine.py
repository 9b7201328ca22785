"""Engine of the relay: joins the rules with the store, the broker and the table. Runs in one event loop.

``submitter.py`` accepts requests, ``jobs.py`` follows the dispatches of their jobs, ``completion.py`` ends them;
``context.py`` has the parts that they share, and the order in which memory, disk and answers change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import structlog
from pyiceberg.catalog import Catalog

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.broker.dispatcher import IngestorSender, JobDispatcher
from dexorder_relay.broker.upkeep import Upkeep
from dexorder_relay.reading.fetch_ohlc import OhlcAnswers
from dexorder_relay.reading.row_stream import RowStreams
from dexorder_relay.realtime.control import ControlChannel
from dexorder_relay.realtime.jobs import FLUSH_SECONDS, RealtimeJobs
from dexorder_relay.realtime.live import LiveHub
from dexorder_relay.requests.completion import Completion
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.instruments import Instruments
from dexorder_relay.requests.jobs import HistoryJobs
from dexorder_relay.requests.outcome import OutcomeDecider
from dexorder_relay.requests.queries import RequestQueries
from dexorder_relay.requests.retraction_log import RetractionLog
from dexorder_relay.requests.submitter import Submitter
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.udfs import UdfRegistry
from dexorder_relay.store.database import FORGET_DISPATCHES, FORGET_REQUESTS, FORGET_SUBSCRIPTIONS, FORGOTTEN_AT_ONCE
from dexorder_relay.triggers.alerts import AlertSender
from dexorder_relay.triggers.backtest import Backtests
from dexorder_relay.triggers.edits import TriggerEdits
from dexorder_relay.triggers.text_checks import TextChecks
from dexorder_relay.triggers.triggers import RegisteredTriggers
from dexorder_relay.verification.mending import TableMender
from dexorder_relay.verification.newest_values import NewestValues
from dexorder_relay.verification.rechecker import Rechecker
from dexorder_relay.verification.value_verification import ValueVerifier
from dexorder_relay.verification.verification import Verifier

log = structlog.get_logger(__name__)
TICK_SECONDS = 0.25
FORGET_SECONDS = 3_600
MEASURE_SECONDS = 1.0


class RelayEngine:
    """The components, and the tasks that run by themselves."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        retraction_log: RetractionLog,
        udfs: UdfRegistry,
        catalog: CatalogSettings,
        tables: Catalog,
    ) -> None:
        """Continue with the state that was read from the store."""
        settings, reader = context.settings, context.reader
        self.context, self.registry, self.udfs, self.catalog, self.tables = context, registry, udfs, catalog, tables
        for live in context.state.requests.values():
            context.quotas.enter(live.request)
        self.queries = RequestQueries(context)
        self.completion = Completion(context, OutcomeDecider(context, retraction_log))
        self.queries.is_live = self.completion.live
        self.submitter = Submitter(context, self.completion, retraction_log)
        self.jobs = HistoryJobs(context, self.completion)
        self.instruments = Instruments(context)
        turns, max_bytes = context.table_reads, settings.max_message_bytes
        self.answers = OhlcAnswers(self.submitter.submit, self.queries.outcome, reader, turns, max_bytes=max_bytes)
        self.rows = RowStreams(reader, turns)
        self.live = LiveHub(settings.live_queue)
        self.realtime = RealtimeJobs(context, registry, self.submitter, self.live)
        self.live.state = self.realtime.state
        self.queries.doubtful = self.realtime.provisional_in
        self._text_checks = TextChecks()
        self.triggers = RegisteredTriggers(context, self.realtime, self._text_checks.periods)
        self.edits = TriggerEdits(context, self.triggers, self._text_checks.differences)
        self._alerts = AlertSender(context, self.triggers)
        self.backtests = Backtests(catalog, settings)
        self.control = ControlChannel(settings.control_timeout_seconds)
        context.stop_work = lambda request: self.control.cancel(request.request_id, request.series.exchange)
        self.dispatcher = JobDispatcher(context, [self.jobs, self.realtime])
        self.upkeep = Upkeep(context, self.dispatcher, self.completion)
        values = ValueVerifier(context, self.submitter, self.completion, self.queries, self.instruments)
        self.verifier = Verifier(context, self.submitter, TableMender(tables), values)
        self.rechecker = Rechecker(context, self.submitter, values)
        context.look_again = self.rechecker.look
        self.newest = NewestValues(context, self.submitter, values)
        context.changed_values, context.request_ends = self.newest.changed, self.newest.ended

    async def run(self, sender: IngestorSender) -> None:
        """Dispatch jobs, watch leases and timeouts, end requests; until cancelled, or until the store fails."""
        async with aclosing(self._text_checks), asyncio.TaskGroup() as tasks:
            self.context.tasks = tasks
            tasks.create_task(self.dispatcher.run(sender))
            tasks.create_task(self.upkeep.run(TICK_SECONDS))
            tasks.create_task(self._tick_realtime())
            tasks.create_task(self.rechecker.run())
            tasks.create_task(self.newest.run())
            tasks.create_task(self.triggers.run())
            tasks.create_task(self._alerts.run())
            tasks.create_task(self._forget())
            tasks.create_task(self._measure())
            tasks.create_task(self._fail_stop())
            self.completion.check_ready()
            self.context.wake.set()

    async def _tick_realtime(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.realtime.tick()

    async def _measure(self) -> None:
        context = self.context
        while True:
            age_ns = context.clock.monotonic_ns() - self.jobs.reported_ns
            context.metrics.sample(context.state, self.registry, wall_ns=context.clock.wall_ns(), report_age_ns=age_ns)
            await asyncio.sleep(MEASURE_SECONDS)

    async def _forget(self) -> None:
        """Forget old requests and dispatches, in pieces, so that other writes do not wait for all of them."""
        settings, store = self.context.settings, self.context.store
        kept: list[tuple[Callable[[int], Awaitable[int]], float]] = [
            (partial(store.forget, FORGET_REQUESTS), settings.retention_days),
            (partial(store.forget, FORGET_SUBSCRIPTIONS), settings.retention_days),
            (store.forget_trigger_events, settings.retention_days),
            (partial(store.forget, FORGET_DISPATCHES), settings.dispatch_retention_days),
        ]
        while True:
            for forget, days in kept:
                before_ns = self.context.clock.wall_ns() - int(days * 86_400 * SECOND_NS)
                while await forget(before_ns) == FORGOTTEN_AT_ONCE:
                    pass
            await asyncio.sleep(FORGET_SECONDS)

    async def _fail_stop(self) -> None:
        try:
            await asyncio.shield(self.context.store.failed)
        except Exception as error:
            log.error("the database can't be written; the relay stops, acknowledged changes are safe", error=str(error))
            raise
