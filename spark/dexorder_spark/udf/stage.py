"""One UDF on the stream, in its own thread, batch by batch:

1. Read the next records of the topic, and keep those rows that the UDF is to be fed (``reader``, ``feed``).
2. Feed them, and checkpoint: all of their output, and the UDF's state after it.
3. Commit the output as rows, the position in the topic and the state with one snapshot of the table (``lake``).
4. Send the rows on to topic and user, if there are any (``sinks``).

Whoever starts it again starts with the position and the state of the last commit, so each row is there once. A batch
without output is not committed at once: after a crash it is fed again, with the same result. Rows that were committed
but not sent on are read from the table and sent on at the next start; their sequence numbers tell copies apart.

If something that it needs is away, it waits and starts again at the last commit. If the UDF fails for good, only it
ends, with the UDF's own words. No query of a table ever waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from dexorder_common.lake.commit import CommitLost
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.udf import UdfDefinition, UdfState, UdfStatus
from dexorder_spark.records.relay_client import Stopped
from dexorder_spark.runtime.locks import WriterLock
from dexorder_spark.source.client import SourceBroken
from dexorder_spark.udf.feed import UdfFeed
from dexorder_spark.udf.lake import Loaded, UdfLake
from dexorder_spark.udf.reader import UdfReader
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sinks import Sinks
from dexorder_spark.udf.state import StageState
from dexorder_udf.errors import UdfError, UdfStopped, UdfUnreachable
from dexorder_udf.host import UdfHost
from dexorder_udf.points import Batch, Point
from dexorder_udf.spec import UdfSpec

log = structlog.get_logger(__name__)
OnLog = Callable[[str], None]
_MAX_BACKOFF_S = 10.0
_FED_AT_ONCE = 2_000
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
        sinks: Sinks,
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
        self._sinks = sinks
        self._tolerance_ns = tolerance_ns
        self._since_generation = since_generation
        self._stop = stop
        self._on_log = on_log
        self._lock = writer_lock or WriterLock()
        self._batch_seconds = batch_seconds
        self._commit_seconds = commit_seconds
        self._poll_seconds = poll_seconds
        self._rows = self._fed = self._late = self._restarts = 0
        self.status = UdfStatus(definition.name, UdfState.STARTING, generation=generation)
        """For other threads: it is replaced, never changed."""

    def run(self) -> None:
        """Run until ``stop`` is set, or until the UDF fails for good, which its status says."""
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
        loaded = self._begin(self._lake.load())
        state = loaded.state or StageState()
        restarts = self._restarts

        def show_restart(reason: str) -> None:
            self._restarts = restarts + host.restarts
            self._show(self.status.state, f"it is started again: {reason}")

        host = UdfHost(self._spec, self._on_log, stop=self._stop, on_restart=show_restart)
        try:
            host.start(state.snapshot or None)
            feed = UdfFeed(self.definition.input, host.info.wants, self._tolerance_ns, state.feed)
            if state.sent < state.outputs:
                state = self._send(state, self._lake.rows_from(loaded.table, state.sent))
            self._loop(host, feed, loaded, state, restarts)
        finally:
            self._restarts = restarts + host.restarts
            host.close(_STOP_GRACE_S if self._stop.is_set() else None)

    def _begin(self, loaded: Loaded) -> Loaded:
        """Resume at the position of the table; what is new is committed, so that "now" stays where it is."""
        state = loaded.state or StageState(self._since_generation)
        is_anew = state.generation < self._since_generation
        if loaded.fault and not is_anew:
            raise InvalidRequest(loaded.fault)
        known = replace(loaded.commit_state, offsets={}, epochs={}) if is_anew else loaded.commit_state
        is_new = self._reader.resume(known)
        state = state.anew(self._since_generation) if is_anew else state
        self._rows = state.outputs
        if not is_new and loaded.state is not None:
            return replace(loaded, state=state)
        with self._lock.batch():
            return self._lake.commit(loaded, self._reader.after(known), state, ())

    def _loop(self, host: UdfHost, feed: UdfFeed, loaded: Loaded, state: StageState, restarts: int) -> None:
        committed_s = time.monotonic()
        uncommitted = False
        self._show(UdfState.RUNNING)
        while not self._stop.is_set():
            begun_s = time.monotonic()
            late, points = feed.late, feed.points
            read = self._reader.next(feed.wants)
            rows: list[dict[str, Any]] = []
            if read is not None:
                uncommitted = True
                if fed := feed.take(read.rows):
                    outputs, snapshot = self._process(host, fed)
                    rows = rows_of(outputs, state.outputs)
                    state = replace(state, outputs=state.outputs + len(rows), snapshot=snapshot)
            if rows or (uncommitted and time.monotonic() - committed_s >= self._commit_seconds):
                with self._lock.batch():
                    loaded = self._lake.commit(loaded, self._reader.after(loaded.commit_state), state, rows)
                committed_s, uncommitted = time.monotonic(), False
            if rows:
                state = self._send(state, rows)
            self._fed += feed.points - points
            self._late += feed.late - late
            self._rows = state.outputs
            self._restarts = restarts + host.restarts
            self._show(UdfState.RUNNING, lag=read.lag if read else 0)
            if read is None:
                self._stop.wait(self._poll_seconds)
            elif not read.lag:
                self._stop.wait(max(0.0, begun_s + self._batch_seconds - time.monotonic()))

    def _process(self, host: UdfHost, fed: Sequence[Point | Batch]) -> tuple[list[Point | Batch], bytes]:
        outputs: list[Point | Batch] = []
        for first in range(0, len(fed), _FED_AT_ONCE):
            if self._stop.is_set():
                raise Stopped("stopping in the middle of a batch")
            outputs += host.process(fed[first : first + _FED_AT_ONCE])
        more, snapshot = host.checkpoint()
        return outputs + more, snapshot

    def _send(self, state: StageState, rows: Sequence[dict[str, Any]]) -> StageState:
        """Send rows on, waiting for whoever takes them; return the state that says so, for the next commit."""
        self._sinks.send(rows)
        return replace(state, sent=state.outputs)

    def _show(self, state: UdfState, message: str = "", *, lag: int | None = None) -> None:
        self.status = replace(
            self.status,
            state=state,
            message=message,
            rows=self._rows,
            fed=self._fed,
            late=self._late,
            lag=self.status.lag if lag is None else lag,
            restarts=self._restarts,
        )
