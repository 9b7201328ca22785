"""Queue of the records that one member of a group may deliver next. Pure.

Partitions take turns, and due records come before new ones. The owner guards the queue with a lock: Kafka's thread adds
records, the event loop takes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic

from services.common.model.errors import Conflict, InvalidRequest
from services.gateway.kafkapixy.ack_tracker import AckResult, AckRules, AckTracker
from services.gateway.kafkapixy.commits import Commit, StartPosition
from services.gateway.kafkapixy.pending_runs import Amount, Run, T
from services.gateway.kafkapixy.types import Delivery, Demand, NotAssigned, Progress, RefusedAck, Span


@dataclass(slots=True)
class _Partition(Generic[T]):
    tracker: AckTracker[T]
    fetched: deque[tuple[int, T]] = field(default_factory=deque)
    fetched_bytes: int = 0
    committed: Commit | None = None
    sent: set[Commit] = field(default_factory=set)  # without a good answer so far: Kafka may have any of these
    forgotten: set[int] = field(default_factory=set)

    def pop(self, records: int, size: int) -> list[tuple[int, T]]:
        """Remove and return fetched records until there are this many of them or this many bytes."""
        taken = []
        while self.fetched and records > 0 and size > 0:
            item = self.fetched.popleft()
            taken.append(item)
            records -= 1
            size -= len(item[1])
            self.fetched_bytes -= len(item[1])
        return taken


@dataclass(frozen=True, slots=True)
class _LostPartition:
    """State of a partition that went away without a last commit; ``commits`` are those of ours that Kafka may have."""

    position: StartPosition
    commits: frozenset[Commit | None]


class DeliveryQueue(Generic[T]):
    """Partitions of one group and topic that this process reads.

    Attributes:
        buffer: Amount of a partition that may be fetched ahead, then fetching pauses until half of it; may change.
    """

    def __init__(self, rules: AckRules, *, buffer: Amount) -> None:
        self._rules = rules
        self.buffer = buffer
        self._partitions: dict[int, _Partition[T]] = {}
        self._order: deque[int] = deque()
        self._lost: dict[int, _LostPartition] = {}

    def resume_position(self, partition: int, start: StartPosition, *, end: int) -> StartPosition:
        """Return the start of an assigned partition: if it was lost and no other member read it since, as it was left.

        Args:
            start: The start by Kafka's commit.
            end: The log's end.
        """
        lost = self._lost.pop(partition, None)
        if lost is None or not start.committed or lost.position.offset > end:
            return start
        committed = AckTracker[T](start.offset, self._rules, start.acked).position()
        return lost.position if committed in lost.commits else start

    def assign(self, partition: int, start: StartPosition) -> None:
        """Begin to deliver a partition's records."""
        owned = _Partition[T](AckTracker(start.offset, self._rules, start.acked))
        if start.committed:
            owned.committed = owned.tracker.position()
        if partition not in self._partitions:
            self._order.append(partition)
        self._partitions[partition] = owned

    def restart(self, partition: int, start: StartPosition) -> None:
        """Continue at a commit that was set from outside.

        Pending records are forgotten. Their acks may still come; they must not count for the records that are delivered
        from now on.
        """
        before = self._partitions[partition]
        self.assign(partition, start)
        self._partitions[partition].forgotten = before.forgotten.union(before.tracker.pending_offsets)

    def revoke(self, partition: int) -> Commit | None:
        """Forget a partition; return its last commit if Kafka does not have it yet."""
        owned = self._partitions.pop(partition, None)
        if owned is None:
            return None
        self._order.remove(partition)
        position = owned.tracker.position()
        return None if position == owned.committed else position

    def lose(self, partition: int) -> None:
        """Forget a partition that is no longer ours, so that nothing can be committed; see ``resume_position``."""
        owned = self._partitions.get(partition)
        if owned is not None:
            position = StartPosition(owned.tracker.lowest_unacked, tuple(owned.tracker.acked_above()))
            self._lost[partition] = _LostPartition(position, frozenset({owned.committed, *owned.sent}))
            self.revoke(partition)

    @property
    def partitions(self) -> list[int]:
        """Assigned partitions."""
        return list(self._partitions)

    def last_ack_deadline_ns(self, caller: int | None = None) -> int:
        """Return the latest end of an ack timeout, of one caller or all; 0 if nothing is pending."""
        return max((owned.tracker.last_ack_deadline_ns(caller) for owned in self._partitions.values()), default=0)

    def progress(self) -> dict[int, Progress]:
        """Return the progress of each partition."""
        trackers = ((p, owned.tracker) for p, owned in self._partitions.items())
        return {p: Progress(tracker.pending, tracker.lowest_unacked, tracker.next_offset) for p, tracker in trackers}

    def unacked_of(self, caller: int) -> Amount:
        """Return how much a caller has and did not ack."""
        parts = [owned.tracker.unacked_of(caller) for owned in self._partitions.values()]
        return Amount(sum(part.records for part in parts), sum(part.bytes for part in parts))

    def fetched(self, partition: int, records: list[tuple[int, T]]) -> None:
        """Add offsets and records; dropped if the partition is no longer assigned."""
        if (owned := self._partitions.get(partition)) is not None:
            owned.fetched.extend(records)
            owned.fetched_bytes += sum([len(record) for _, record in records])

    @property
    def has_undelivered(self) -> bool:
        """True if fetched records were not delivered; after an empty ``take``, its limits are the reason."""
        return any(owned.fetched for owned in self._partitions.values())

    def full_partitions(self) -> dict[int, int]:
        """Return the partitions with a full buffer, and the number of records in it."""
        limit = self.buffer
        lengths = ((p, len(owned.fetched), owned.fetched_bytes) for p, owned in self._partitions.items())
        return {p: count for p, count, size in lengths if count >= limit.records or size >= limit.bytes}

    def partitions_to_pause(self, full: Mapping[int, int], fetching: Collection[int]) -> list[int]:
        """Return the full partitions that must not be fetched for now.

        A pause is expensive: Kafka's client drops the records it has fetched, and resuming takes a fetch's time. So a
        partition that callers empty, only more slowly than Kafka fills it, is not paused unless others need fetching.

        Args:
            full: Result of ``full_partitions`` a while ago.
            fetching: The other partitions that are fetched.
        """
        if any(self.has_room(partition) for partition in fetching):
            return list(full)
        parts = self._partitions
        return [p for p, before in full.items() if p in parts and len(parts[p].fetched) >= before]

    def has_room(self, partition: int) -> bool:
        """Return whether a partition may be fetched again after it was full."""
        owned = self._partitions.get(partition)
        if owned is None:
            return True
        return len(owned.fetched) <= self.buffer.records // 2 and owned.fetched_bytes <= self.buffer.bytes // 2

    def take(self, demand: Demand, *, now_ns: int) -> list[Delivery[T]]:
        """Return the next deliveries; none if there are no records or too many are unacked."""
        found: list[Delivery[T]] = []
        left, caller = demand.records, demand.caller
        allowance = None  # of new records, for a stream
        if (limit := demand.max_unacked) is not None:
            unacked = self.unacked_of(caller)
            allowance = Amount(limit.records - unacked.records, min(demand.bytes, limit.bytes - unacked.bytes))
        for _ in range(len(self._order)):
            partition = self._order[0]
            self._order.rotate(-1)
            owned = self._partitions[partition]
            while left and (run := owned.tracker.redeliver(left, now_ns=now_ns, caller=caller)) is not None:
                found.append(Delivery(partition, run.records, run.redelivery))
                left -= len(run.records)
            while left and (new := self._pop_new(owned, left, allowance)):
                run = owned.tracker.deliver(new, now_ns=now_ns, caller=caller)
                if run is not None:
                    found.append(Delivery(partition, run.records))
                    left -= len(run.records)
            if not left:
                break
        return found

    def _pop_new(self, owned: _Partition[T], limit: int, allowance: Amount | None) -> list[tuple[int, T]]:
        if allowance is None:
            return [] if owned.tracker.full else owned.pop(1, 1)  # one at a time: the next may be too many
        new = owned.pop(min(limit, allowance.records), allowance.bytes)
        allowance.records -= len(new)
        allowance.bytes -= sum([len(record) for _, record in new])
        return new

    def give_up(self, *, now_ns: int) -> list[tuple[int, Run[T]]]:
        """Remove and return, by partition, the records that are due after their last retry; they count as acked."""
        if self._rules.max_retries < 0:
            return []
        return [(p, run) for p, owned in self._partitions.items() for run in owned.tracker.give_up(now_ns=now_ns)]

    def give_back(self, delivery: Delivery[T], *, now_ns: int) -> None:
        """Make the record of a unary caller that went away due at once."""
        if (owned := self._partitions.get(delivery.partition)) is not None:
            owned.tracker.give_back(delivery.offset, delivery.offset, now_ns=now_ns)

    def give_back_spans(self, caller: int, spans: Iterable[Span], *, now_ns: int) -> None:
        """Make records that a stream gives back due at once, which counts as a retry."""
        for span in spans:
            if (owned := self._partitions.get(span.partition)) is not None:
                owned.tracker.give_back(span.first, span.last, now_ns=now_ns, caller=caller, counts_as_retry=True)

    def release(self, caller: int, *, now_ns: int) -> None:
        """Make all records of a stream that ended due at once."""
        for owned in self._partitions.values():
            owned.tracker.release(caller, now_ns=now_ns)

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> bool:
        """Ack a record; return whether that changed anything: acks may be repeated.

        A record that was never delivered is skipped once it comes, or with ``delivered_only`` its ack is ignored.

        Raises:
            NotAssigned: The partition is not ours.
            Exhausted: Too many acks of records not delivered.
        """
        owned = self._partitions.get(partition)
        if owned is None:
            raise NotAssigned(_not_assigned(partition))
        if (delivered_only or offset in owned.forgotten) and not owned.tracker.was_delivered(offset):
            return False
        return owned.tracker.ack(offset)

    def ack_spans(self, caller: int, spans: Iterable[Span]) -> tuple[int, list[RefusedAck]]:
        """Ack those of the records that a stream was given; return their number, and the acks of others."""
        count, refused = 0, []
        for span in spans:
            if (owned := self._partitions.get(span.partition)) is None:
                refused.append(RefusedAck(span, Conflict(_not_assigned(span.partition))))
                continue
            done = owned.tracker.ack_range(span.first, span.last, caller=caller)
            count += done.count
            refused.extend(_refusals(span.partition, done))
        return count, refused

    def commits(self) -> dict[int, Commit]:
        """Return by partition the positions not committed yet; call ``committed`` when Kafka has them."""
        positions = {p: owned.tracker.position() for p, owned in self._partitions.items()}
        changed = {p: position for p, position in positions.items() if position != self._partitions[p].committed}
        for partition, position in changed.items():
            self._partitions[partition].sent.add(position)
        return changed

    def committed(self, commits: dict[int, Commit]) -> None:
        """Note the commits that Kafka has confirmed."""
        for partition, position in commits.items():
            if (owned := self._partitions.get(partition)) is not None:
                owned.committed = position
                owned.sent.clear()


def _not_assigned(partition: int) -> str:
    return f"partition {partition} is not assigned to this gateway"


def _refusals(partition: int, done: AckResult) -> Iterator[RefusedAck]:
    for first, end in done.held_by_others:
        yield RefusedAck(Span(partition, first, end - 1), Conflict("these were delivered to another caller"))
    if done.undelivered is not None:
        first, end = done.undelivered
        yield RefusedAck(Span(partition, first, end - 1), InvalidRequest("these were not delivered yet"))
