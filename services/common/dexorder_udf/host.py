"""Host of a UDF: runs it, feeds it, and starts it again when it dies, so that each output comes exactly once.

Outputs are handed over only together with a snapshot that covers them. The input since the last snapshot is kept. If
the UDF dies, the outputs since that snapshot are forgotten, and a new process gets the snapshot and the kept input. So
a death neither loses nor doubles an output, whether or not the function is deterministic. This holds for UDFs that
answer a snapshot request after the output of all earlier input, as single-threaded agents do.

The methods block, and are called by one thread at a time. They raise only `UdfError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from dexorder_udf import messages
from dexorder_udf.connections import Log, open_connection
from dexorder_udf.errors import UdfError, UdfGone, UdfKilled, UdfStopped, UdfUnreachable
from dexorder_udf.link import Link
from dexorder_udf.messages import UdfInfo
from dexorder_udf.options import check_options
from dexorder_udf.pace import PIECE_BYTES
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge
from dexorder_udf.spec import UdfSpec

log = structlog.get_logger(__name__)
T = TypeVar("T")

_CHUNK_BYTES = PIECE_BYTES
_PAUSE_SECONDS = 0.5


class UdfHost:
    """A UDF under our control: ``start``, then ``process`` and ``checkpoint`` in any order, then ``close``."""

    def __init__(
        self,
        spec: UdfSpec,
        on_log: Log | None = None,
        on_start: Callable[[int | None], None] | None = None,
        stop: threading.Event | None = None,
        on_restart: Callable[[str], None] | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        """Take the declaration.

        Args:
            spec: The UDF and its limits.
            on_log: Gets each line that the UDF writes to stderr, from another thread, and a line for each restart.
                None logs them.
            on_start: Called when the UDF is ready for data, at first and after each restart, with the id of its
                process, or None.
            on_restart: Called with the reason when it is going to be started again.
            on_wait: Called twice a second while it is waited for, and in the pause before a restart. If it raises, the
                wait ends, and ``close`` must follow.
            stop: Ends each wait for the UDF with `UdfStopped`, except in ``close``, which must follow.
        """
        self.spec = spec
        self._on_start = on_start or (lambda pid: None)
        self._on_restart = on_restart or (lambda reason: None)
        self._on_wait = on_wait or (lambda: None)
        self._stop = stop or threading.Event()
        self.restarts = 0
        self._on_log = on_log or (lambda line: log.info("udf", udf=spec.name, line=line))
        self._info: UdfInfo | None = None
        self._init = b""
        self._link: Link | None = None
        self._close_connection: Callable[[float], None] = lambda grace: None
        self._snapshot = b""
        self._snapshot_at = 0.0
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._fed = 0  # chunks of _kept that the current process has got
        self._released: list[Point | Batch] = []
        self._restarts_in_a_row = 0
        self._failure: UdfError | None = None

    @property
    def info(self) -> UdfInfo:
        """Return the UDF's own description; known after ``start``."""
        if self._info is None:
            raise UdfError(self.spec.name, "it has not been started")
        return self._info

    def start(self, snapshot: bytes | None = None) -> None:
        """Start the UDF, check the options against its info, initialise it, and restore a state.

        Args:
            snapshot: State from an earlier `checkpoint`; None or empty means none.
        Raises:
            UdfOptionError: An option is unknown or has the wrong type.
            UdfUnreachable: Its address does not answer.
            UdfError: It can't be started, refuses, or does not answer in time.
        """
        if self._link is not None:
            raise UdfError(self.spec.name, "it has been started already")
        self._failure = None
        self._snapshot = snapshot or b""
        self._kept = []
        self._kept_bytes = 0
        self._fed = 0
        self._released = []
        self._restarts_in_a_row = 0
        while self._link is None:
            try:
                self._connect()
            except UdfKilled as error:
                self._pause_before_restart(error)
            except UdfError as error:
                raise self._failed(error) from None

    def process(self, items: Iterable[Point | Batch]) -> list[Point | Batch]:
        """Feed points, or batches to a UDF that takes batches.

        Returns:
            Outputs that a snapshot covers by now, in order; outputs of this call usually come with a later one.
        Raises:
            UdfError: An item has the wrong kind or a value that can't be sent, or the UDF has failed.
        """
        self._check_running()
        for chunk in self._encode(items):
            self._kept.append(chunk)
            self._kept_bytes += len(chunk)
            self._perform(lambda link: None)
            if self._kept_bytes >= self.spec.replay_limit_bytes or self._snapshot_is_due():
                self._take_snapshot()
        released, self._released = self._released, []
        return released

    def look(self) -> None:
        """Start a UDF again that has ended while it was not fed. Call it between two calls of `process`.

        Raises:
            UdfError: The UDF has failed.
        """
        self._check_running()
        self._perform(lambda link: link.look())

    def exchange(self, items: Iterable[Point | Batch]) -> list[Point | Batch]:
        """Feed items without a snapshot, for a UDF that is not to be started again.

        Returns:
            The outputs that have arrived, including this call's if the UDF answers keepalives in order.
        Raises:
            UdfError: An item can't be fed, or the UDF has failed or ended.
        """
        self._check_running()
        chunks = self._encode(items)
        assert self._link is not None
        try:
            for chunk in chunks:
                self._link.feed(chunk)
            self._link.settle()
            return self._link.take_outputs()
        except UdfError as error:
            raise self._failed(error) from None

    def checkpoint(self) -> tuple[list[Point | Batch], bytes]:
        """Wait until everything fed so far is processed.

        Returns:
            The outputs that `process` has not returned, and the state after them.
        Raises:
            UdfError: The UDF has failed, or can't give a snapshot.
        """
        self._check_running()
        self._take_snapshot()
        released, self._released = self._released, []
        return released, self._snapshot

    def close(self, grace_seconds: float | None = None) -> list[Point | Batch]:
        """End the input, read the rest of the output, and end the process within three times the grace.

        Returns:
            Outputs since the last `checkpoint`; they are complete only if the UDF ended its output in time.
        """
        link, self._link = self._link, None
        outputs, self._released = self._released, []
        if link is None:
            return outputs
        grace = self.spec.grace_seconds if grace_seconds is None else grace_seconds
        try:
            if not link.drain(grace):
                self._on_log(f"dexorder: it still runs {grace:g} s after the end of its input, and is ended")
            outputs += link.take_outputs()
        except UdfError as error:
            self._on_log(f"dexorder: while it was stopped: {error.reason}")
        finally:
            self._close_connection(grace)
        return outputs

    def _check_running(self) -> None:
        if self._failure is not None:
            raise UdfError(self.spec.name, f"it has failed: {self._failure.reason}")
        if self._link is None:
            raise UdfError(self.spec.name, "it has not been started")

    def _encode(self, items: Iterable[Point | Batch]) -> list[bytes]:
        batches = self.info.wants is Edge.BATCH
        checked = list(items)
        for each in checked:
            if isinstance(each, Batch) is not batches:
                raise UdfError(self.spec.name, f"it wants {'batches' if batches else 'points'}, not {each!r:.200}")
        try:
            return messages.join_frames(messages.encode_points(checked), _CHUNK_BYTES)
        except (ValueError, TypeError, AttributeError) as error:
            raise UdfError(self.spec.name, f"its input can't be encoded: {error}") from None

    def _snapshot_is_due(self) -> bool:
        assert self._link is not None
        is_much = self._link.output_bytes >= self.spec.output_limit_bytes // 2
        return is_much or time.monotonic() - self._snapshot_at >= self.spec.snapshot_seconds

    def _take_snapshot(self) -> None:
        outputs, self._snapshot = self._perform(lambda link: link.snapshot())
        self._released += outputs
        self._kept = []
        self._kept_bytes = 0
        self._fed = 0
        self._snapshot_at = time.monotonic()
        self._restarts_in_a_row = 0

    def _perform(self, action: Callable[[Link], T]) -> T:
        """Feed the rest of the input, then act; a UDF that dies is started again, as often as allowed."""
        while True:
            try:
                if self._link is None:
                    self._connect()
                assert self._link is not None
                while self._fed < len(self._kept):
                    self._link.feed(self._kept[self._fed])
                    self._fed += 1
                return action(self._link)
            except UdfUnreachable as error:
                raise self._failed(error) from None
            except UdfGone as error:
                self._pause_before_restart(error)
            except UdfStopped:
                raise
            except UdfError as error:
                raise self._failed(error) from None

    def _connect(self) -> None:
        connection = open_connection(self.spec, self._on_log, self._stop)
        self._close_connection = connection.close
        self._link = Link(self.spec, connection, self._stop, self._on_wait)
        self._fed = 0
        if self._info is None:
            self._info = self._link.info()
            options = check_options(self.spec.name, self._info.options, self.spec.options)
            self._init = messages.init_request(options, self.spec.task, self.spec.node or self.spec.name)
        self._link.init(self._init, self._info)
        if self._snapshot:
            self._link.restore(self._snapshot)
        self._snapshot_at = time.monotonic()
        self._on_start(connection.pid)

    def _pause_before_restart(self, error: UdfGone) -> None:
        self._end()
        self._restarts_in_a_row += 1
        if self._restarts_in_a_row > self.spec.max_restarts:
            kind = UdfError if self.spec.prog else UdfUnreachable  # another supervisor starts that one again
            reason = f"{error.reason}; given up after {self.spec.max_restarts} restarts in a row"
            raise self._failed(kind(self.spec.name, reason)) from None
        self.restarts += 1
        pause = self.spec.backoff(self._restarts_in_a_row)
        self._on_log(f"dexorder: {error.reason}; restarted in {pause:g} s, with {len(self._kept)} chunks to repeat")
        self._on_restart(error.reason)
        end_s = time.monotonic() + pause
        while (left_s := end_s - time.monotonic()) > 0:
            if self._stop.wait(min(left_s, _PAUSE_SECONDS)):
                raise UdfStopped(self.spec.name, "it was stopped")
            self._on_wait()

    def _failed(self, error: UdfError) -> UdfError:
        self._failure = error
        self._end()
        return error

    def _end(self) -> None:
        """Kill the process or close the connection at once."""
        self._link = None
        self._close_connection(0)
        self._close_connection = lambda grace: None
