"""Records of one topic that a member of a group may deliver, and commands for its consumer. Pure: no I/O, no clock.

Partitions take turns, and due records come before new ones. The owner guards the queue with a lock: the member's thread
adds records, callers take them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic

from dexorder_common.kafka.ack_tracker import AckTracker
from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.partition_queue import BEGINNING, Delivery, PartitionQueue, QueueProgress, ReadRules, T


class TopicQueue(Generic[T]):
    """Partitions of one topic.

    Attributes:
        gone_back: How many times a partition's log went back; the reader of the count sets it to 0.
    """

    def __init__(self, rules: ReadRules) -> None:
        self.rules = rules
        self.gone_back = 0
        self._partitions: dict[int, PartitionQueue[T]] = {}
        self._order: deque[int] = deque()  # the assigned ones
        self._recreated = False

    def _part(self, partition: int) -> PartitionQueue[T]:
        if (part := self._partitions.get(partition)) is None:
            part = self._partitions[partition] = PartitionQueue(self.rules)
        return part

    # ---- assignment

    def assign(self, partition: int, commit: Commit | None, *, new_group: bool, epoch: int = -1) -> int:
        """Start to deliver a partition's records; return the position at which the consumer starts.

        Args:
            commit: Kafka's commit of the group in this partition; may be None.
            new_group: Whether the whole topic has no commit; otherwise a partition without a commit was added later.
            epoch: Epoch of the commit; -1 without one.
        """
        part = self._part(partition)
        if not part.assigned:
            self._order.append(partition)
        if commit is None and part.lost_its_topic:
            self._recreated = True
            self.gone_back += 1
            part.go_back()
        start = BEGINNING if self._recreated or not new_group else self.rules.new_group_start
        return part.assign(commit, start=start, epoch=epoch)

    def leave(self, partition: int) -> None:
        """Stop to deliver a partition; its acks are kept until it is assigned again."""
        if self.is_assigned(partition):
            self._order.remove(partition)
            self._partitions[partition].leave()

    def restart(self, partition: int, commit: Commit) -> None:
        """Continue at a commit that was set from outside; it stays as it is until an ack changes it.

        Pending records are forgotten. Their acks may still come; they must not count for records that are delivered
        later.
        """
        self._partitions[partition].restart(commit)

    def go_back(self) -> None:
        """Read every partition from its start: the topic is another one of the same name."""
        self._recreated = True
        self.gone_back += len(self._partitions)
        for part in self._partitions.values():
            part.go_back()

    # ---- records from the consumer

    def fetched(
        self,
        partition: int,
        records: list[tuple[int, T]],
        *,
        epoch: int = -1,
        first_epoch: int = -1,
        stamp_of: Callable[[T], object] | None = None,
    ) -> bool:
        """Add records in the order of the log; return False if it went back: see `PartitionQueue.fetched`."""
        forward = self._part(partition).fetched(records, epoch=epoch, first_epoch=first_epoch, stamp_of=stamp_of)
        self.gone_back += not forward
        return forward

    def log_end(self, partition: int, end: int) -> bool:
        """Note that all records before the log's end were read; return False if the log went back."""
        forward = self._part(partition).log_end(end)
        self.gone_back += not forward
        return forward

    def positions(self) -> dict[int, int]:
        """Return where the consumer is to continue, for partitions where it is elsewhere; then call `repositioned`."""
        return {p: at for p, part in self._partitions.items() if (at := part.position()) is not None}

    def repositioned(self, partition: int, position: int) -> None:
        """Note that the consumer continues at a position of `positions`."""
        self._partitions[partition].repositioned(position)

    # ---- pauses

    @property
    def _share(self) -> int:
        """Number of partitions that have the buffer together."""
        return max(1, len(self._order)) if self.rules.buffer_shared else 1

    def full_partitions(self) -> dict[int, int]:
        """Return the partitions with a full buffer that are not paused, and the number of records in it."""
        share = self._share
        return {p: part.length for p, part in self._partitions.items() if part.is_full(share) and not part.paused}

    def pause(self, full: Mapping[int, int], *, others: bool = False) -> list[int]:
        """Return the partitions that must not be fetched for now.

        A partition that callers empty, only more slowly than Kafka fills it, is not paused unless others need fetching.

        Args:
            full: Result of ``full_partitions`` a while ago.
            others: Whether other topics need fetching.
        """
        parts = self._partitions
        fetching = [part for p, part in parts.items() if part.assigned and not part.paused and p not in full]
        share = self._share
        if not others and not any(part.has_room(share) for part in fetching):
            full = {p: before for p, before in full.items() if p in parts and parts[p].length >= before}
        chosen = [p for p in full if p in parts]
        for partition in chosen:
            parts[partition].paused = True
        return chosen

    def resume(self) -> list[int]:
        """Return the paused partitions that are to be fetched again."""
        ready = [p for p in self.paused if self.has_room(p)]
        for partition in ready:
            self._partitions[partition].paused = False
        return ready

    @property
    def paused(self) -> set[int]:
        """Partitions that are not fetched, because their fetched records are not taken."""
        return {p for p, part in self._partitions.items() if part.assigned and part.paused}

    def has_room(self, partition: int) -> bool:
        """Return whether a partition may be fetched again after it was full."""
        part = self._partitions.get(partition)
        return part is None or part.has_room(self._share)

    # ---- calls of users

    def take(self, limit: int = 1, *, now_ns: int) -> list[Delivery[T]]:
        """Return the next deliveries; empty without records, or if too many are unacked."""
        found: list[Delivery[T]] = []
        order, parts = self._order, self._partitions
        for _ in range(len(order)):
            partition = order[0]
            order.rotate(-1)
            if taken := parts[partition].take(limit - len(found), now_ns=now_ns):
                found += [Delivery(partition, *each) for each in taken]
                if len(found) >= limit:
                    break
        return found

    @property
    def has_undelivered(self) -> bool:
        """True if fetched records were not delivered; after an empty ``take``, the limits are the reason."""
        return any(part.length for part in self._partitions.values())

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> bool:
        """Ack a record; return whether that changed anything: acks may be repeated.

        A record that was never delivered is skipped once it comes, or with ``delivered_only`` its ack is ignored. Acks
        of partitions that are not assigned are kept until they are.

        Raises:
            Exhausted: Too many acks of records not delivered.
        """
        return self._part(partition).ack(offset, delivered_only=delivered_only)

    def ack_all(self, pairs: Iterable[tuple[int, int]]) -> int:
        """Ack (partition, offset) pairs, as `ack` each; return how many were not acked before.

        Raises:
            Exhausted: Too many acks of records not delivered.
        """
        offsets = defaultdict[int, list[int]](list)
        for partition, offset in pairs:
            offsets[partition].append(offset)
        return sum([self._part(partition).ack_all(some) for partition, some in offsets.items()])

    def give_back(self, partition: int, offset: int, *, now_ns: int) -> bool:
        """Make a record due at once because its caller went away or does not want it; return False if not pending."""
        part = self._partitions.get(partition)
        return part is not None and part.give_back(offset, now_ns=now_ns)

    def give_back_all(self, *, now_ns: int) -> None:
        """Make all records that callers have due at once."""
        for part in self._partitions.values():
            for offset in part.tracker.pending_offsets if part.tracker else ():
                part.give_back(offset, now_ns=now_ns)

    def give_up(self, *, now_ns: int) -> list[tuple[int, list[int]]]:
        """Remove and return, by partition, the records that are due after their last retry; they count as acked."""
        if self.rules.max_retries < 0:
            return []
        return [(p, spent) for p, part in self._partitions.items() if (spent := part.give_up(now_ns=now_ns))]

    # ---- commits and progress

    def commits(self, partitions: Iterable[int] | None = None) -> dict[int, Commit]:
        """Return the positions not committed yet, by assigned partition; call ``committed`` when Kafka has them.

        They are never beyond the last delivered record, even after early acks: a commit beyond the log's end would look
        like a commit in an earlier topic of that name.
        """
        numbers = self._order if partitions is None else partitions
        parts = ((number, self._partitions.get(number)) for number in numbers)
        return {n: commit for n, part in parts if part is not None and (commit := part.commit()) is not None}

    def committed(self, commits: Mapping[int, Commit]) -> None:
        """Note the commits that Kafka has confirmed."""
        for partition, position in commits.items():
            if (part := self._partitions.get(partition)) is not None:
                part.committed(position)

    def epoch(self, partition: int) -> int:
        """Return the epoch of the partition's leaders at the last record; -1 if it is unknown."""
        part = self._partitions.get(partition)
        return -1 if part is None else part.epoch

    @property
    def partitions(self) -> list[int]:
        """Assigned partitions, ascending."""
        return sorted(self._order)

    def is_assigned(self, partition: int) -> bool:
        """Return whether a partition is assigned."""
        part = self._partitions.get(partition)
        return part is not None and part.assigned

    def was_delivered(self, partition: int, offset: int) -> bool:
        """Return whether a record was delivered by this process, or passed."""
        part = self._partitions.get(partition)
        return part is not None and part.was_delivered(offset)

    def _trackers(self) -> dict[int, AckTracker]:
        parts = self._partitions
        return {p: tracker for p in list(self._order) if (tracker := parts[p].tracker) is not None}

    def progress(self) -> dict[int, QueueProgress]:
        """Return the progress of each assigned partition."""
        trackers = self._trackers().items()
        return {p: QueueProgress(each.pending, each.lowest_unacked, each.next_offset) for p, each in trackers}

    def last_ack_deadline_ns(self) -> int:
        """Return the latest end of an ack timeout; 0 without pending records."""
        return max((each.last_ack_deadline_ns() for each in self._trackers().values()), default=0)

    def in_flight(self) -> int:
        """Return how many records callers have."""
        return sum(part.tracker.in_flight for part in self._partitions.values() if part.tracker is not None)

    def lost(self) -> int:
        """Return how many records were to be delivered again but are no longer in the log."""
        return sum(part.tracker.lost for part in self._partitions.values() if part.tracker is not None)

    def lag(self, starts: Mapping[int, int], ends: Mapping[int, int], committed: Mapping[int, int]) -> int:
        """Return how many records of the topic are not acked; by the commits for partitions of other members."""
        total, trackers = 0, self._trackers()
        for number, end in ends.items():
            start, tracker = starts.get(number, 0), trackers.get(number)
            if tracker is None:
                total += max(0, end - max(committed.get(number, 0), start))
            else:
                total += max(0, tracker.unacked(end) - max(0, start - tracker.lowest_unacked))
        return total
