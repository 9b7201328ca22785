"""Place of a query in its source: what a commit says of where the next query starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dexorder_common.lake.commit_state import CommitState
from dexorder_common.model.history import PageResult
from dexorder_spark.pipeline.place import Look, SourcePlace, finished


@dataclass
class MemoryTable:
    """A table that has a state and nothing else."""

    state: CommitState = field(default_factory=CommitState)
    is_claimed = False

    async def look(self) -> Look[None]:
        return Look(None, self.state)

    async def claim(self, look: Look[None], pages: Sequence[PageResult]) -> str:
        raise AssertionError("nothing claims coverage")

    async def commit(self, look: Look[None], after: CommitState, *, always: bool) -> None:
        self.state = after


def test_whoever_continues_repeats_what_is_committed_and_not_reported() -> None:
    table, place = MemoryTable(), SourcePlace("source", position={0: 5})
    finished(place.commit(table, {}, {0: 9}))
    assert table.state.position("source") == {0: 5}
    place.reported({0: 9})
    finished(place.commit(table, {}, {0: 12}))
    assert table.state.position("source") == {0: 9}


def test_the_first_batch_of_a_partition_that_is_new_is_repeated_too() -> None:
    """A topic gets partitions while a query reads it, and the query has no position in them."""
    table, place = MemoryTable(), SourcePlace("source", position={0: 5})
    finished(place.commit(table, {}, {0: 9, 1: 3}))
    assert table.state.position("source") == {0: 5, 1: 0}
