"""Where a reader that keeps its position with a table continues, and which partitions have another log than before."""

from __future__ import annotations

import structlog

from dexorder_common.lake.commit_state import CommitState
from dexorder_spark.source.client import SourceClient
from dexorder_spark.source.offsets import SourceState, begun_anew, to_compare

log = structlog.get_logger(__name__)


def lost_partitions(state: CommitState, client: SourceClient, log_state: SourceState) -> set[int]:
    """Return the partitions whose log starts again: the topic was created again, or lost records that were read.

    Args:
        state: State of the table.
        log_state: Answer of the source.
    """
    source = client.address
    kept = state.offsets.get(source, {})
    lost = begun_anew(kept, log_state, state.topics.get(source, ""))
    for part in to_compare(kept, state.epochs.get(source, {}), log_state):
        if part.partition not in lost and (reason := client.compare(part)):
            log.error("a partition lost records that the table has read", partition=part.partition, reason=reason)
            lost.add(part.partition)
    if lost:
        log.error("the table has read another log; this one is read from its start", partitions=sorted(lost))
    return lost
