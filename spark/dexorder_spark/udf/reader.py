"""Rows of a topic for a UDF: reads a range of the log, keeps the records that count, decodes them.

The table's own query and this reader are independent of each other: both read the log, at their own positions. The same
rules decide which records count (`dexorder_spark.records.selection`). Refused records are in ``trading.dead_letters``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from dexorder_common.lake.commit_state import CommitState
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.udf import UdfInput
from dexorder_spark.records.relay_client import KnownDispatches
from dexorder_spark.records.selection import rows_in, select
from dexorder_spark.source.client import SourceClient
from dexorder_spark.source.offsets import SourceState, cap, plan, to_json
from dexorder_spark.source.records import Result
from dexorder_spark.tables.table import PageTable
from dexorder_spark.udf.feed import Settled

log = structlog.get_logger(__name__)
MAX_ROWS = 50_000
"""Rows after which a batch ends with the list of records that was read last."""
_RECORDS_IN_A_LIST = 50


@dataclass(frozen=True)
class Read:
    """One batch.

    Attributes:
        rows: In the order of the log, partition by partition; a settled time after the rows of each realtime record.
        lag: Records after the batch.
    """

    rows: list[dict[str, Any] | Settled]
    lag: int


class UdfReader:
    """Reader of one topic at one position; one thread uses it."""

    def __init__(
        self,
        table: PageTable,
        address: str,
        given: UdfInput,
        describe: Callable[[Collection[str]], Mapping[str, IssuedDispatch]],
        *,
        max_records: int,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Read the topic at ``address``, as ``SourceClient`` takes it.

        Args:
            describe: Asks the relay for issued dispatches; waits while it is away.
            max_records: Largest number of records in a batch.
        """
        self._table = table
        self._client = SourceClient(address)
        self._given = given
        self._max_records = max_records
        self._wall_ns = wall_ns
        self._dispatches = KnownDispatches(describe)
        self.position: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.topic_id = ""

    @property
    def source(self) -> str:
        """Address of the topic, under which commits keep its offsets."""
        return self._client.address

    def resume(self, state: CommitState) -> bool:
        """Go to the position that a table has, or to where a new UDF starts; return whether it is new.

        Unavailable while the source is.
        """
        log_state = self._state()
        self.topic_id = log_state.topic_id
        kept = state.offsets.get(self.source)
        if kept is None:
            self.position = dict(log_state.ends if self._given.since_ns is None else log_state.starts)
            self.epochs = dict(log_state.epochs)
            return True
        epochs = state.epochs.get(self.source, {})
        known = to_json(kept, topic_id=state.topics.get(self.source, ""))
        lost = self._client.lost_logs(known, epochs, log_state)
        if lost:
            log.error("the UDF has read another log; this one is read from its start", reasons=lost)
        kept = {p: offset for p, offset in kept.items() if p not in lost}
        gone = {p: first - kept[p] for p, first in log_state.starts.items() if kept.get(p, first) < first}
        if gone:
            log.error("records were removed from the topic before a UDF was fed", source=self.source, records=gone)
        self.position = {p: max(first, kept.get(p, first)) for p, first in log_state.starts.items()}
        self.epochs = {p: epoch for p, epoch in {**log_state.epochs, **epochs}.items() if p not in lost}
        return False

    def after(self, state: CommitState) -> CommitState:
        """Return the commit state for all records before the present position."""
        source = self.source
        return replace(
            state,
            offsets={**state.offsets, source: dict(self.position)},
            topics={**state.topics, source: self.topic_id} if self.topic_id else state.topics,
            epochs={**state.epochs, source: dict(self.epochs)} if self.epochs else state.epochs,
        )

    def next(self, wants: Callable[[Series], bool], pulse: Callable[[], None] = lambda: None) -> Read | None:
        """Return the next batch, and move the position after it; None without records.

        Args:
            wants: Whether a series is wanted.
            pulse: Called after each list of records; an error of it ends the reading, and the position stays.

        Raises:
            Unavailable: The source cannot be read now, or a leader of a partition changed during the read.
        """
        state = self._state()
        ranges = plan(self.position, cap(self.position, state.ends, self._max_records), epochs=state.epochs)
        if not ranges:
            return None
        rows: list[dict[str, Any] | Settled] = []
        ends: dict[int, int] = {}
        for part in ranges:
            for results in self._client.read(part, limit=_RECORDS_IN_A_LIST, retry_seconds=1.0):
                pulse()
                rows += self._rows(results, wants)
                ends[part.partition] = int(results[-1].offset.offset) + 1
                if len(rows) >= MAX_ROWS:
                    break
            else:
                ends[part.partition] = part.end
            if len(rows) >= MAX_ROWS:
                break
        if self._state().epochs != state.epochs:
            raise Unavailable(f"source {self.source}: partitions changed their leaders while they were read")
        self.position |= ends
        self.epochs |= {p: epoch for p, epoch in state.epochs.items() if p in ends}
        lag = sum(max(0, end - self.position.get(p, 0)) for p, end in state.ends.items())
        return Read(rows, lag)

    def _state(self) -> SourceState:
        try:
            return self._client.state()
        except NotImplementedError as error:
            raise Unavailable(str(error)) from None

    def _rows(self, results: Iterable[Result], wants: Callable[[Series], bool]) -> Iterator[dict[str, Any] | Settled]:
        records = select(self._table, results, wants)
        issued = self._dispatches.of({each.headers.dispatch_id for each in records})
        for each in records:
            decoded = rows_in(each, issued, now_ns=self._wall_ns(), history=self._given.history)
            if decoded is not None:
                yield from self._table.iceberg.rows(decoded)
                if issued[each.headers.dispatch_id].is_realtime:
                    yield Settled(each.headers.ticker, each.headers.period_seconds, each.headers.span.end_ns)
