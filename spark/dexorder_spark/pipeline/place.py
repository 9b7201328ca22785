"""Place of a query in its source, and the commits that move it: look, claim the new pages, commit or look again.

The table is behind three calls, so that the order of these steps can be run against a model of it in virtual time. The
calls are coroutines; in the product they never wait (`finished`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import structlog

from dexorder_common.lake.commit import CommitLost
from dexorder_common.lake.commit_state import CommitState, Offsets
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import PageResult
from dexorder_spark.records.admission import Place

log = structlog.get_logger(__name__)
L = TypeVar("L")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Look(Generic[L]):
    """The table as it was looked at, and the state that it has."""

    table: L
    state: CommitState


class BatchTable(Protocol[L, R_co]):
    """A table to which the rows of one batch are committed."""

    @property
    def is_claimed(self) -> bool:
        """Whether its pages claim coverage."""

    async def look(self) -> Look[L]:
        """Return the table as it is now."""

    async def claim(self, look: Look[L], pages: Sequence[PageResult]) -> str:
        """Keep the claims of pages and return where; empty without claims."""

    async def commit(self, look: Look[L], after: CommitState, *, always: bool) -> R_co:
        """Commit the rows of the batch that are new, with a state; CommitLost if the table is no longer as in the look.

        Args:
            always: Commit the state even if no row is new.
        """


@dataclass
class SourcePlace:
    """Place in one source.

    Attributes:
        topic_id: Id of the topic that is read.
        begun_anew: Partitions with a log that has started again, until a commit records it.
        position: Next offset of each partition; the records before it are committed and reported.
    """

    source: str
    topic_id: str = ""
    begun_anew: set[int] = field(default_factory=set)
    position: dict[int, int] = field(default_factory=dict)

    async def commit(
        self,
        table: BatchTable[L, R],
        good: Mapping[Place, PageResult],
        ends: Offsets,
        *,
        epochs: Offsets = MappingProxyType({}),
        always: bool = False,
    ) -> R:
        """Commit rows, offsets and claims together, and look again as often as another writer is faster.

        Args:
            good: The pages of the batch that count.
            ends: Next offset to read of each partition of the batch.
        """
        claimed: list[PageResult] = []
        claims = ""
        while True:
            look = await table.look()
            state = look.state.without(self.source, self.begun_anew)
            new = [page for place, page in good.items() if not state.has(self.source, place)]
            if table.is_claimed and new != claimed:
                claimed, claims = new, await table.claim(look, new)
            after = state.after(
                self.source,
                ends,
                dispatch=max((number_of(page.dispatch_id) for page in new), default=0),
                claims=claims if new else "",
                resume=dict.fromkeys(ends, 0) | self.position,  # a partition that is new is read from 0
                topic_id=self.topic_id,
                epochs={p: epoch for p, epoch in epochs.items() if p in ends},
            )
            try:
                return await table.commit(look, after, always=always or bool(new))
            except CommitLost as error:
                log.info("another writer was faster; looking again", source=self.source, error=str(error))

    def committed(self, ends: Offsets) -> None:
        """Note that a snapshot records the logs that have started again."""
        self.begun_anew -= ends.keys()

    def reported(self, ends: Offsets) -> None:
        """Move behind records that the relay knows of."""
        self.position |= ends


def finished(work: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    work.close()
    raise RuntimeError("a coroutine waits where nothing runs it")
