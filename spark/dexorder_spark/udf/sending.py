"""Rows of a UDF on their way to its topic and its user, in their own thread: feeding never waits for them.

The rows of the last commits are kept in memory, up to a number. A sender that falls behind reads the others from the
table, so a gateway may be away for any time. A row that can't be sent is tried again without limit, with growing
pauses. A refused row goes to the dead letters before any later one counts as sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Self

import grpc
import structlog

from dexorder_common.rpc.client_retry import error_text
from dexorder_spark.udf.lake import UdfLake
from dexorder_spark.udf.sinks import MOST_ROWS, Sinks

Row = Mapping[str, Any]
log = structlog.get_logger(__name__)
MOST_HELD = 20_000
"""Rows in memory; later ones are read from the table."""
_FROM_TABLE = 10_000
"""Rows that are read from the table at once."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 10.0


class Sending:
    """Sender of one UDF's rows; ``offer`` and ``sent`` are for the stage's thread.

    Attributes:
        sent: Rows of the table, from the first one, that were sent on or are dead letters.
        message: Why it waits; empty while it does not.
    """

    def __init__(self, name: str, sinks: Sinks, lake: UdfLake, on_log: Callable[[str], None]) -> None:
        """Take the places of the rows, and the table for the sender alone."""
        self._name = name
        self._sinks = sinks
        self._lake = lake
        self._on_log = on_log
        self.sent = 0
        self.message = ""
        self._until = 0
        self._held: deque[Row] = deque()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"udf-{name}-sending", daemon=True)

    def begin(self, sent: int) -> None:
        """Start with the first row that was not sent; only the first call counts."""
        if self._thread.ident is None:
            self.sent = self._until = sent
            if self._sinks.is_used:
                self._thread.start()

    def offer(self, until: int, rows: Sequence[Row] = ()) -> None:
        """Take it that the table has the rows before ``until``, the last of which may be given."""
        if not self._sinks.is_used:
            self.sent = until
            return
        with self._changed:
            follows = not self._held or (rows and rows[0]["sequence"] == self._held[-1]["sequence"] + 1)
            if follows and len(self._held) + len(rows) <= MOST_HELD:
                self._held.extend(rows)
            self._until = until
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop at once. Rows that are being sent may have been written."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._sinks.close()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                self._send(*self._next())
                pause_s, self.message = _FIRST_PAUSE_S, ""
            except Exception as error:
                if not self._stop.is_set():
                    self._waits(error)
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _next(self) -> tuple[list[Row], int]:
        """Wait for rows; return the next ones and the sequence number after them, or no rows at the stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or self.sent < self._until)
            sent, until = self.sent, self._until
            if self._stop.is_set():
                return [], sent
            while self._held and self._held[0]["sequence"] < sent:
                self._held.popleft()
            if self._held and self._held[0]["sequence"] == sent:
                rows = list(islice(self._held, MOST_ROWS))
                return rows, sent + len(rows)
            end = min(until, sent + _FROM_TABLE, *(each["sequence"] for each in islice(self._held, 1)))
        return [*self._lake.rows(sent, end)], end

    def _send(self, rows: Sequence[Row], end: int) -> None:
        for first in range(0, len(rows), MOST_ROWS):
            part = rows[first : first + MOST_ROWS]
            refused = self._sinks.send(part)
            if refused:
                self._lake.bury(refused)
            for each in refused:
                sequence, group = each.row["sequence"], each.row["group"]
                log.error("a row of a UDF is left out", udf=self._name, sequence=sequence, reason=each.reason)
                self._on_log(
                    f"dexorder: row {sequence} of group {group!r} is left out of the {each.place}: {each.reason}"
                )
            self.sent = part[-1]["sequence"] + 1
            self._stop.wait(len(part) / self._sinks.rows_per_second)
            if self._stop.is_set():
                return
        self.sent = end

    def _waits(self, error: Exception) -> None:
        reason = error_text(error) if isinstance(error, grpc.RpcError) else f"{type(error).__name__}: {error}"
        message = f"rows are not sent on: {reason[:500]}"
        if message != self.message:
            log.warning("rows of a UDF wait", udf=self._name, reason=reason[:500])
            self._on_log(f"dexorder: {message}")
        self.message = message
