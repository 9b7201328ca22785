"""What one consumer of a group may hand out next: its partitions in turn, due records before new ones. Pure.

The owner guards it with a lock: fetched records come from Kafka's thread, requests from the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic

from services.common.model.errors import Conflict, InvalidRequest
from services.gateway.kafkapixy.ack_tracker import AckResult, AckRules, AckTracker
from services.gateway.kafkapixy.pending_runs import Run, T, Unacked
from services.gateway.kafkapixy.start_position import Commit, StartPosition
from services.gateway.kafkapixy.types import Buffer, Delivery, Demand, NotAssigned, Progress, RefusedAck, Span


@dataclass(slots=True)
class _Partition(Generic[T]):
    tracker: AckTracker[T]
    fetched: deque[tuple[int, T]] = field(default_factory=deque)
    fetched_bytes: int = 0
    committed: Commit | None = None
    sent: set[Commit] = field(default_factory=set)  # and not answered, or not well: Kafka may have any of these
    forgotten: set[int] = field(default_factory=set)

    def pop(self, records: int, size: int) -> list[tuple[int, T]]:
        """Fetched records, until there are so many of them or so many bytes."""
        taken = []
        while self.fetched and records > 0 and size > 0:
            item = self.fetched.popleft()
            taken.append(item)
            records -= 1
            size -= len(item[1])
            self.fetched_bytes -= len(item[1])
        return taken


@dataclass(frozen=True, slots=True)
class _Lost:
    """Where a partition was left that went without a last commit; ``commits`` are those Kafka may have of us."""

    start: StartPosition
    commits: frozenset[Commit | None]


class DeliveryQueue(Generic[T]):
    """The partitions of one group and topic that this process reads.

    Attributes:
        buffer: How much may be fetched ahead; may change.
    """

    def __init__(self, rules: AckRules, *, buffer: Buffer) -> None:
        self._rules = rules
        self.buffer = buffer
        self._partitions: dict[int, _Partition[T]] = {}
        self._turn: deque[int] = deque()
        self._lost: dict[int, _Lost] = {}

    def start(self, partition: int, start: StartPosition, *, end: int) -> StartPosition:
        """Where to begin a partition that comes back after it was lost: where it was left, if nobody was there since.

        Args:
            start: What Kafka has committed.
            end: The log's end.
        """
        lost = self._lost.pop(partition, None)
        if lost is None or not start.committed or lost.start.offset > end:
            return start
        committed = AckTracker[T](start.offset, self._rules, start.acked).position()
        return lost.start if committed in lost.commits else start

    def assign(self, partition: int, start: StartPosition) -> None:
        """Begin to offer a partition's records."""
        owned = _Partition[T](AckTracker(start.offset, self._rules, start.acked))
        if start.committed:
            owned.committed = owned.tracker.position()
        if partition not in self._partitions:
            self._turn.append(partition)
        self._partitions[partition] = owned

    def restart(self, partition: int, start: StartPosition) -> None:
        """Go on elsewhere, where the group's commit was set to.

        What was offered before is forgotten. Its acks may still come; they must not pass for acks of the records that
        will be offered anew.
        """
        before = self._partitions[partition]
        self.assign(partition, start)
        self._partitions[partition].forgotten = before.forgotten.union(before.tracker.pending_offsets)

    def revoke(self, partition: int) -> Commit | None:
        """Forget a partition; what is still to be committed for it."""
        owned = self._partitions.pop(partition, None)
        if owned is None:
            return None
        self._turn.remove(partition)
        position = owned.tracker.position()
        return None if position == owned.committed else position

    def lose(self, partition: int) -> None:
        """Forget a partition that is gone already, so nothing can be committed for it; see ``start``."""
        owned = self._partitions.get(partition)
        if owned is not None:
            left = StartPosition(owned.tracker.lowest_unacked, tuple(owned.tracker.acked_above()))
            self._lost[partition] = _Lost(left, frozenset({owned.committed, *owned.sent}))
            self.revoke(partition)

    @property
    def partitions(self) -> list[int]:
        """Partitions assigned."""
        return list(self._partitions)

    @property
    def pending(self) -> int:
        """Records offered and not acked."""
        return sum(owned.tracker.pending for owned in self._partitions.values())

    @property
    def last_ack_deadline_ns(self) -> int:
        """When the last pending record runs out, in ns of the caller's clock; 0 when none is pending."""
        return max((owned.tracker.last_ack_deadline_ns for owned in self._partitions.values()), default=0)

    def last_ack_deadline_of(self, caller: int) -> int:
        """When the last record that a caller has runs out, likewise."""
        return max((owned.tracker.last_ack_deadline_of(caller) for owned in self._partitions.values()), default=0)

    def progress(self) -> dict[int, Progress]:
        """How far each partition is."""
        trackers = ((p, owned.tracker) for p, owned in self._partitions.items())
        return {p: Progress(tracker.pending, tracker.lowest_unacked, tracker.next_offset) for p, tracker in trackers}

    def held(self, caller: int) -> Unacked:
        """How much a caller has and did not ack."""
        parts = [owned.tracker.held(caller) for owned in self._partitions.values()]
        return Unacked(sum(part.records for part in parts), sum(part.bytes for part in parts))

    # ---- fetched ahead

    def fetched(self, partition: int, records: list[tuple[int, T]]) -> None:
        """Keep offsets and records until it is their turn; dropped if the partition is not assigned any more."""
        if (owned := self._partitions.get(partition)) is not None:
            owned.fetched.extend(records)
            owned.fetched_bytes += sum([len(record) for _, record in records])

    @property
    def holds_back(self) -> bool:
        """Whether records are there that nobody was given yet; after ``take`` found none: because of its limits."""
        return any(owned.fetched for owned in self._partitions.values())

    def full_partitions(self) -> dict[int, int]:
        """Partitions with a full buffer, and how many records are in it."""
        most = self.buffer
        lengths = ((p, len(owned.fetched), owned.fetched_bytes) for p, owned in self._partitions.items())
        return {p: count for p, count, size in lengths if count >= most.records or size >= most.bytes}

    def partitions_to_pause(self, full: Mapping[int, int], fetching: Collection[int]) -> list[int]:
        """Which of the full partitions must not be fetched for now.

        A pause is no small thing: what Kafka's client has ready is thrown away, and going on takes a fetch's time. So
        not those that callers empty, only more slowly than Kafka fills them, unless others wait to be fetched.

        Args:
            full: As ``overfull`` said a while ago.
            fetching: The others that are fetched.
        """
        if any(self.has_room(partition) for partition in fetching):
            return list(full)
        parts = self._partitions
        return [p for p, before in full.items() if p in parts and len(parts[p].fetched) >= before]

    def has_room(self, partition: int) -> bool:
        """Whether fetching the partition may go on after it was full."""
        owned = self._partitions.get(partition)
        if owned is None:
            return True
        return len(owned.fetched) <= self.buffer.records // 2 and owned.fetched_bytes <= self.buffer.bytes // 2

    # ---- handed out

    def take(self, ask: Demand, *, now_ns: int) -> list[Delivery[T]]:
        """What to deliver next; nothing when there is none or too much is unacked."""
        found: list[Delivery[T]] = []
        left, fresh = ask.records, _Allowance(ask, self.held(ask.caller)) if ask.max_unacked is not None else None
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            self._turn.rotate(-1)
            owned = self._partitions[partition]
            while left and (run := owned.tracker.redeliver(left, now_ns=now_ns, caller=ask.caller)) is not None:
                found.append(Delivery(partition, run.records, run.again))
                left -= len(run.records)
            while left and (new := self._new(owned, left, fresh)):
                run = owned.tracker.offer(new, now_ns=now_ns, caller=ask.caller)
                if run is not None:
                    found.append(Delivery(partition, run.records))
                    left -= len(run.records)
            if not left:
                break
        return found

    def _new(self, owned: _Partition[T], most: int, fresh: _Allowance | None) -> list[tuple[int, T]]:
        if fresh is None:
            return [] if owned.tracker.full else owned.pop(1, 1)  # one at a time: the next may be too many
        new = owned.pop(min(most, fresh.records), fresh.bytes)
        fresh.records -= len(new)
        fresh.bytes -= sum([len(record) for _, record in new])
        return new

    def give_up(self, *, now_ns: int) -> list[tuple[int, Run[T]]]:
        """Partition and records of those whose retries are used up; they count as acked."""
        if self._rules.max_retries < 0:
            return []
        return [(p, run) for p, owned in self._partitions.items() for run in owned.tracker.give_up(now_ns=now_ns)]

    def give_back(self, delivery: Delivery[T], *, now_ns: int) -> None:
        """The unary caller is gone: its record is due at once."""
        if (owned := self._partitions.get(delivery.partition)) is not None:
            owned.tracker.give_back(delivery.offset, delivery.offset, now_ns=now_ns)

    def give_back_spans(self, caller: int, spans: Iterable[Span], *, now_ns: int) -> None:
        """A stream will not deal with these: they are due at once, which counts as a retry."""
        for span in spans:
            if (owned := self._partitions.get(span.partition)) is not None:
                owned.tracker.give_back(span.first, span.last, now_ns=now_ns, caller=caller, counts=True)

    def release(self, caller: int, *, now_ns: int) -> None:
        """A stream is gone: all it had is due at once."""
        for owned in self._partitions.values():
            owned.tracker.release(caller, now_ns=now_ns)

    # ---- acked

    def ack(self, partition: int, offset: int, *, delivered_only: bool = False) -> bool:
        """Ack a record.

        Args:
            offered_only: Leave alone what was never offered, instead of skipping it once it comes.
        Returns:
            Whether that changed anything; an ack may come twice.
        Raises:
            NotAssigned: The partition is not ours.
            Exhausted: Too many acks of records not offered.
        """
        owned = self._partitions.get(partition)
        if owned is None:
            raise NotAssigned(f"partition {partition} is not assigned to this gateway")
        if (delivered_only or offset in owned.forgotten) and not owned.tracker.offered(offset):
            return False
        return owned.tracker.ack(offset)

    def ack_spans(self, caller: int, spans: Iterable[Span]) -> tuple[int, list[RefusedAck]]:
        """Ack those of these records that a stream was given.

        Returns:
            How many that were, and the acks that were not its own to make.
        """
        count, refused = 0, []
        for span in spans:
            if (owned := self._partitions.get(span.partition)) is None:
                refused.append(
                    RefusedAck(span, Conflict(f"partition {span.partition} is not assigned to this gateway"))
                )
                continue
            done = owned.tracker.ack_range(span.first, span.last, caller=caller)
            count += done.count
            refused.extend(_refusals(span.partition, done))
        return count, refused

    def commits(self) -> dict[int, Commit]:
        """What is not committed yet, a partition; call ``committed`` when Kafka has it."""
        positions = {p: owned.tracker.position() for p, owned in self._partitions.items()}
        changed = {p: position for p, position in positions.items() if position != self._partitions[p].committed}
        for partition, position in changed.items():
            self._partitions[partition].sent.add(position)
        return changed

    def committed(self, commits: dict[int, Commit]) -> None:
        """Kafka has these."""
        for partition, position in commits.items():
            if (owned := self._partitions.get(partition)) is not None:
                owned.committed = position
                owned.sent.clear()


class _Allowance:
    """How much new a stream may still be given."""

    def __init__(self, ask: Demand, held: Unacked) -> None:
        most = ask.max_unacked or Unacked()
        self.records = most.records - held.records
        self.bytes = min(ask.bytes, most.bytes - held.bytes)


def _refusals(partition: int, done: AckResult) -> Iterator[RefusedAck]:
    for first, end in done.elsewhere:
        yield RefusedAck(Span(partition, first, end - 1), Conflict("another caller was given these"))
    if done.early is not None:
        first, end = done.early
        yield RefusedAck(Span(partition, first, end - 1), InvalidRequest("nobody was given these yet"))
