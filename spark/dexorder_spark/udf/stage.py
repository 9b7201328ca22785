"""One UDF on the stream, in its own thread, batch by batch:

1. Read the next records of the topic, and keep those rows that the UDF is to be fed (``reader``, ``feed``).
2. Feed them, and checkpoint: all of their output, and the UDF's state after it.
3. Commit the output as rows, the position in the topic and the state with one snapshot of the table (``lake``).
4. Offer the rows to the sender, which brings them to topic and user in its own thread (``sending``).

Whoever starts it again starts with the position and the state of the last commit, so each row is there once. A batch
without output is not committed at once: after a crash it is fed again, with the same result. How many rows were sent on
is committed within seconds; those after it are sent at the next start, and their sequence numbers tell copies apart.

If something that it needs is away, it waits and starts again at the last commit. If the UDF fails for good, only it
ends, with the UDF's own words. No query of a table ever waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from dexorder_common.lake.commit import CommitLost
from dexorder_common.lake.commit_state import CommitState
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.udf import UdfDefinition, UdfState, UdfStatus
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.runtime.locks import WriterLock
from dexorder_spark.source.client import SourceBroken
from dexorder_spark.udf.feed import UdfFeed
from dexorder_spark.udf.lake import Loaded, UdfLake
from dexorder_spark.udf.reader import UdfReader
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sending import Sending
from dexorder_spark.udf.state import StageState
from dexorder_udf.errors import UdfError, UdfStopped, UdfUnreachable
from dexorder_udf.host import UdfHost
from dexorder_udf.points import MARK, Batch, Point
from dexorder_udf.spec import UdfSpec

log = structlog.get_logger(__name__)
OnLog = Callable[[str], None]
_MAX_BACKOFF_S = 10.0
_MOST_AT_ONCE = 2_000
"""Points, or batches, that are fed at once; fewer of a slow UDF."""
_FED_AT_ONCE_S = 0.25
"""Time that one of these pieces should take, so that status and ``stop`` are looked at several times a second."""
_PULSE_SECONDS = 0.4
"""Longest time between two renewals of the status. The next report to the relay follows within half a second."""
_SENT_SECONDS = 5.0
"""Longest time between two commits of what was sent on, so of the rows of which copies come after a kill."""
_STOP_GRACE_S = 0.5
"""Time for the end of output, for the end, and for the end after SIGTERM, when it is stopped."""


class UdfStage:
    """Runner of one UDF until ``stop`` is set or the UDF fails for good."""

    def __init__(
        self,
        definition: UdfDefinition,
        spec: UdfSpec,
        reader: UdfReader,
        lake: UdfLake,
        sending: Sending,
        *,
        tolerance_ns: int,
        generation: int = 0,
        since_generation: int = 0,
        stop: threading.Event,
        on_log: OnLog,
        writer_lock: WriterLock | None = None,
        batch_seconds: float = 2.0,
        commit_seconds: float = 60.0,
        poll_seconds: float = 0.5,
    ) -> None:
        """Keep the parts; ``run`` uses them.

        Args:
            spec: How the UDF is run.
            tolerance_ns: That of the input's table.
            generation: Number of the start, for its status.
            since_generation: State of an earlier start than this is ignored.
            on_log: Takes each line of the UDF's stderr, and what happens to it; from any thread.
            writer_lock: Shared with the maintenance of the table.
            batch_seconds: Time between the starts of two batches.
            commit_seconds: Time after which a position without output is committed.
        """
        self.definition = definition
        self._spec = spec
        self._reader = reader
        self._lake = lake
        self._sending = sending
        self._tolerance_ns = tolerance_ns
        self._since_generation = since_generation
        self._stop = stop
        self._on_log = on_log
        self._lock = writer_lock or WriterLock()
        self._batch_seconds = batch_seconds
        self._commit_seconds = commit_seconds
        self._poll_seconds = poll_seconds
        self._rows = self._fed = self._late = self._restarts = self._lag = 0
        self._note = ""
        self._at_once = 16
        self._loaded: Loaded | None = None
        self._committed_s = 0.0
        self.status = UdfStatus(definition.name, UdfState.STARTING, generation=generation)
        """For other threads: it is replaced, never changed."""
        self.done: Mapping[int, int] | None = None
        """Place in the topic, by partition, before which all output is complete; likewise. None before the start."""

    @property
    def source(self) -> str:
        """Address of the topic."""
        return self._reader.source

    def run(self) -> None:
        """Run until ``stop`` is set, or until the UDF fails for good, which its status says."""
        with self._sending:
            self._run_until_stopped()

    def _run_until_stopped(self) -> None:
        failures = 0
        while not self._stop.is_set():
            started_s = time.monotonic()
            try:
                self._run()
            except (Stopped, UdfStopped):
                break
            except UdfUnreachable as error:
                failures += 1
                log.warning("UDF waits", udf=self.definition.name, reason=error.reason)
                self._show(UdfState.WAITING, error.reason)
            except (UdfError, SourceBroken) as error:
                self._fail(error.reason if isinstance(error, UdfError) else str(error))
                return
            except InvalidRequest as error:
                self._fail(str(error))
                return
            except CommitLost as error:
                self._on_log(f"dexorder: another driver has written to the table; beginning at its state: {error}")
            except Exception as error:
                failures = 1 if time.monotonic() - started_s > 60 else failures + 1
                reason = f"{type(error).__name__}: {str(error)[:300]}"
                log.warning("UDF waits", udf=self.definition.name, reason=reason)
                self._show(UdfState.WAITING, reason)
            self._stop.wait(min(0.2 * 2.0 ** min(failures, 10), _MAX_BACKOFF_S))
        self._show(UdfState.STOPPED)

    def _fail(self, reason: str) -> None:
        log.error("UDF has failed", udf=self.definition.name, reason=reason)
        self._on_log(f"dexorder: failed: {reason}")
        self._show(UdfState.FAILED, reason)

    def _run(self) -> None:
        """Start at the last commit, and go on until an error or ``stop``."""
        self._loaded = None
        loaded = self._begin(self._lake.load())
        state = loaded.state or StageState()
        self._sending.begin(max(state.sent, loaded.commit_state.udf_sent))
        self._sending.offer(state.outputs)
        restarts = self._restarts

        def show_restart(reason: str) -> None:
            self._restarts, self._note = restarts + host.restarts, f"it was started again: {reason}"
            self._show(self.status.state, self._note)

        host = UdfHost(self._spec, self._on_log, stop=self._stop, on_restart=show_restart, on_wait=self._wait_for_udf)
        try:
            host.start(state.snapshot or None)
            with self._lock.batch():
                self._loaded = loaded = self._lake.declare(loaded, host.info.outputs)
            feed = UdfFeed(
                self.definition.input,
                host.info.wants,
                self._tolerance_ns,
                state.feed,
                has_timers=host.info.has_timers,
            )
            self._loop(host, feed, loaded, state)
        finally:
            self._restarts = restarts + host.restarts
            host.close(_STOP_GRACE_S if self._stop.is_set() else None)
            with suppress(Exception):  # copies of some rows come then
                self._keep_sent(now=True)

    def _begin(self, loaded: Loaded) -> Loaded:
        """Resume at the position of the table. A new position is committed, so that "now" keeps its meaning."""
        state = loaded.state or StageState(self._since_generation)
        is_anew = state.generation < self._since_generation
        if loaded.fault and not is_anew:
            raise InvalidRequest(loaded.fault)
        known = replace(loaded.commit_state, offsets={}, epochs={}) if is_anew else loaded.commit_state
        is_new = self._reader.resume(known)
        self.done = dict(self._reader.position)
        state = state.anew(self._since_generation) if is_anew else state
        self._rows = state.outputs
        if not is_new and loaded.state is not None:
            self._loaded = loaded = replace(loaded, state=state)
            return loaded
        return self._commit(loaded, self._reader.after(known), state)

    def _loop(self, host: UdfHost, feed: UdfFeed, loaded: Loaded, state: StageState) -> None:
        uncommitted = False
        self._show(UdfState.RUNNING)
        while not self._stop.is_set():
            begun_s = time.monotonic()
            late = feed.late
            read = self._reader.next(feed.wants, self._pulse)
            rows: list[dict[str, Any]] = []
            if read is not None:
                uncommitted = True
                self._lag = read.lag
                if fed := feed.take(read.rows):
                    outputs, snapshot = self._process(host, fed)
                    rows = rows_of(outputs, state.outputs)
                    state = replace(state, outputs=state.outputs + len(rows), snapshot=snapshot)
            self._late += feed.late - late
            self.done = dict(self._reader.position)
            loaded = self._loaded or loaded
            if rows or (uncommitted and time.monotonic() - self._committed_s >= self._commit_seconds):
                loaded = self._commit(loaded, self._reader.after(loaded.commit_state), state, rows)
                uncommitted = False
            self._sending.offer(state.outputs, rows)
            self._rows = state.outputs
            self._pulse()
            if read is None:
                self._lag = 0
                self._wait(host, self._poll_seconds)
            elif not read.lag:
                self._wait(host, begun_s + self._batch_seconds - time.monotonic())

    def _process(self, host: UdfHost, fed: Sequence[Point | Batch]) -> tuple[list[Point | Batch], bytes]:
        """Feed points in pieces that take a moment each, even if the UDF is slow."""
        outputs: list[Point | Batch] = []
        first = 0
        while first < len(fed):
            piece, began_s = fed[first : first + self._at_once], time.monotonic()
            outputs += host.process(piece)
            first += len(piece)
            self._fed += sum(len(each.points) if isinstance(each, Batch) else each.name != MARK for each in piece)
            self._pulse()
            faster = time.monotonic() - began_s < _FED_AT_ONCE_S
            self._at_once = min(2 * self._at_once, _MOST_AT_ONCE) if faster else max(self._at_once // 2, 1)
        more, snapshot = host.checkpoint()
        return outputs + more, snapshot

    def _commit(
        self, loaded: Loaded, after: CommitState, state: StageState, rows: Sequence[dict[str, Any]] = ()
    ) -> Loaded:
        with self._lock.batch():
            sent = max(self._sending.sent, after.udf_sent)
            loaded = self._loaded = self._lake.commit(loaded, replace(after, udf_sent=sent), state, rows)
        self._committed_s = time.monotonic()
        return loaded

    def _keep_sent(self, *, now: bool = False) -> None:
        """Commit how many rows were sent on, if that is news and the last commit is some seconds ago."""
        loaded, sent = self._loaded, self._sending.sent
        due = now or time.monotonic() - self._committed_s >= _SENT_SECONDS
        if loaded is None or not due or sent <= loaded.commit_state.udf_sent:
            return
        with self._lock.batch():
            self._loaded = self._lake.commit_sent(loaded, sent)
        self._committed_s = time.monotonic()

    def _wait(self, host: UdfHost, seconds: float) -> None:
        """Wait for the next look at the topic. Notice its end; keep status and sent rows current."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not self._stop.wait(min(left_s, _PULSE_SECONDS)):
            host.look()
            self._pulse()

    def _pulse(self) -> None:
        """Renew the status and commit the number of sent rows, every `_PULSE_SECONDS`; raise Stopped at ``stop``."""
        if self._stop.is_set():
            raise Stopped("stopping in the middle of a batch")
        self._keep_sent()
        self._show(UdfState.RUNNING, self._sending.message or self._note)

    def _wait_for_udf(self) -> None:
        """Renew the status, and commit the number of sent rows, during a wait. Its errors do not end the UDF's work."""
        if self.status.state is not UdfState.RUNNING:
            return
        try:
            self._keep_sent()
        except Exception as error:  # the next commit of rows meets it too, if it lasts
            self._committed_s = time.monotonic()
            log.debug("what was sent is committed later", udf=self.definition.name, error=str(error)[:300])
        self._show(UdfState.RUNNING, self._sending.message or self._note)

    def _show(self, state: UdfState, message: str = "") -> None:
        self.status = replace(
            self.status,
            state=state,
            message=message,
            rows=self._rows,
            fed=self._fed,
            late=self._late,
            lag=self._lag,
            restarts=self._restarts,
        )
