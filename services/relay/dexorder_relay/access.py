"""Access rights and quotas of callers. Pure. ``None`` as the caller means that identity is off.

A request belongs to its client_id. For anyone else except admins it does not exist: a request of another client and one
that never existed get the same NOT_FOUND, so that answers do not reveal which ids are taken.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from dexorder_common.model.errors import Exhausted, InvalidRequest, NotAllowed, NotFound
from dexorder_common.model.history import HistoryRequest, RequestRecord
from dexorder_common.model.realtime import Subscription
from dexorder_common.model.times import SECOND_NS
from dexorder_common.model.triggers import Trigger
from dexorder_common.rpc.identity import Caller, Role

ROLES = {
    "dexorder.relay.v1.HistoryService": (Role.CLIENT, Role.ADMIN),
    "dexorder.relay.v1.CoverageService": (Role.CLIENT, Role.ADMIN),
    "dexorder.relay.v1.RealtimeService": (Role.CLIENT, Role.ADMIN),
    "dexorder.relay.v1.TriggerService": (Role.CLIENT, Role.ADMIN),
    "dexorder.relay.v1.RowsService": (Role.CLIENT, Role.ADMIN),
    "dexorder.relay.v1.OperatorService": (Role.ADMIN,),
    "dexorder.relay.v1.IngestorService": (Role.INGESTOR,),
    "dexorder.relay.v1.PipelineService": (Role.PIPELINE,),
    "dexorder.udf.v1.UdfRegistryService": (Role.CLIENT, Role.ADMIN),
}
"""Roles that may call each service, with identity on."""
MINUTE_NS, DAY_NS = 60 * SECOND_NS, 86_400 * SECOND_NS


def unknown_request(request_id: str) -> NotFound:
    """Return the error for a request that does not exist, or not for this caller."""
    return NotFound(f"request_id {request_id[:64]!r} is not known")


T = TypeVar("T", HistoryRequest, Subscription, Trigger)


def signed(caller: Caller | None, request: T) -> T:
    """Return the request with the caller's own client_id; InvalidRequest if it names another client."""
    if caller is None:
        return request
    if request.client_id and request.client_id != caller.client_id:
        raise InvalidRequest(f"client_id {request.client_id[:64]!r} is not the caller's, {caller.client_id!r}")
    return dataclasses.replace(request, client_id=caller.client_id)


def is_admin(caller: Caller | None) -> bool:
    """Return whether the caller is an admin, or identity is off."""
    return caller is None or caller.role is Role.ADMIN


def check_admin(caller: Caller | None, action: str) -> None:
    """Raise NotAllowed unless the caller is an admin, or identity is off."""
    if caller is not None and not is_admin(caller):
        raise NotAllowed(f"client_id {caller.client_id!r} may not {action}: its role is {caller.role.value}, not admin")


def check_user(caller: Caller | None, field: str, user_id: str) -> None:
    """Raise NotAllowed unless the caller may send to a user; an empty one is nobody."""
    if caller is not None:
        _check_named(caller, "users", caller.users, field, user_id)


def check_topic(caller: Caller | None, field: str, topic: str) -> None:
    """Raise NotAllowed unless the caller may write to a topic; an empty one is none."""
    if caller is not None:
        _check_named(caller, "topics", caller.topics, field, topic)


def _check_named(caller: Caller, key: str, allowed: frozenset[str], field: str, name: str) -> None:
    if name and not is_admin(caller) and "*" not in allowed and name not in allowed:
        raise NotAllowed(
            f"{field} {name[:64]!r} is not one of the {key} of client_id {caller.client_id!r}; an operator adds it "
            f"to {key} of its entry in the callers file"
        )


def owns(caller: Caller | None, client_id: str) -> bool:
    """Return whether the caller may see and change a client's data."""
    return caller is None or is_admin(caller) or client_id == caller.client_id


def sees(caller: Caller | None, request: HistoryRequest) -> bool:
    """Return whether the caller may see a request: its own, or one of the relay itself, which names no client."""
    return owns(caller, request.client_id) or (request.again and not request.client_id)


def seen(caller: Caller | None, record: RequestRecord) -> RequestRecord:
    """Return the record; NotFound if it is another client's."""
    if not sees(caller, record.request):
        raise unknown_request(record.request_id)
    return record


def check_may_cancel(caller: Caller | None, request: HistoryRequest) -> None:
    """Raise NotAllowed if the caller sees a request that is not its own."""
    if not owns(caller, request.client_id):
        check_admin(caller, f"cancel the relay's own request {request.request_id!r}")


def listed(caller: Caller | None, client_id: str) -> str:
    """Return the client that a list or a topic is restricted to, empty for all; NotFound if it is another client."""
    if caller is None or caller.role is Role.ADMIN:
        return client_id
    if client_id not in ("", caller.client_id):
        raise NotFound(f"client_id {client_id[:64]!r} is not known")
    return caller.client_id


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Quotas of one client; the settings ``quota_*`` describe them."""

    unfinished_requests: int
    submissions_per_minute: int
    unfinished_periods: int
    open_streams: int
    subscriptions: int
    triggers: int
    trigger_bytes: int
    periods_per_day: int
    refreshed_periods_per_day: int
    udfs: int
    receipts: int


class CallerQuotas:
    """Usage of each client against its limits. Calls without a caller are not limited."""

    def __init__(self, limits: Limits, on_refused: Callable[[str, str], None]) -> None:
        """Use ``limits`` for a caller without its own; call ``on_refused`` with client_id and quota at each refusal."""
        self._limits = limits
        self._on_refused = on_refused
        self._unfinished: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._periods: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._trigger_bytes: Counter[str] = Counter()
        self._paid_until_ns: dict[tuple[str, str], int] = {}

    def enter(self, request: HistoryRequest) -> None:
        """Count a request that was accepted, or was read from the store at start."""
        if request.client_id:
            self._unfinished[request.client_id][request.request_id] = request.max_candles
            self._periods[request.client_id] += request.max_candles

    def leave(self, request: HistoryRequest) -> None:
        """Stop counting a request that has ended."""
        if request.client_id:
            own = self._unfinished[request.client_id]
            self._periods[request.client_id] -= own.pop(request.request_id, 0)
            if not own:
                del self._unfinished[request.client_id], self._periods[request.client_id]

    def submit(self, caller: Caller | None, count: int = 1, *, now_ns: int) -> None:
        """Count submissions; each uses its part of a minute, and a minute's worth may come at once.

        Exhausted says when the next one is accepted.
        """
        if caller is not None:
            self._spend(caller, {"submissions_per_minute": count}, MINUTE_NS, now_ns)

    def spend(self, caller: Caller | None, requests: Sequence[HistoryRequest], *, again: bool, now_ns: int) -> None:
        """Count the periods of requests that are accepted; neither their end nor a cancel gives them back.

        Args:
            again: They fetch rows that are in the table already, for a refresh or a repair.

        Raises:
            Exhausted: They are more than is left of a day's; the error says when they are not.
        """
        if caller is not None:
            periods = sum(each.max_candles for each in requests)
            refreshed = {"refreshed_periods_per_day": periods} if again else {}
            self._spend(caller, {"periods_per_day": periods, **refreshed}, DAY_NS, now_ns)

    def _spend(self, caller: Caller, costs: Mapping[str, int], window_ns: int, now_ns: int) -> None:
        """Use parts of quotas, each of which refills evenly over a window and may be used at once; all or none."""
        paid_until_ns = {}
        for quota, cost in costs.items():
            limit: int = getattr(self._of(caller), quota)
            key = (caller.client_id, quota)
            paid_until_ns[key] = max(self._paid_until_ns.get(key, now_ns), now_ns) + window_ns * cost // limit
            wait_ns = paid_until_ns[key] - now_ns - window_ns
            if cost > limit:  # waiting would not help
                raise self._refused(caller, quota, cost, limit, "ask for less")
            if wait_ns > 0:
                seconds = wait_ns / SECOND_NS
                hint = f"the next one is accepted in {seconds:.3f} s"
                raise self._refused(caller, quota, limit + cost, limit, hint, seconds)
        self._paid_until_ns |= paid_until_ns

    def admit(self, caller: Caller | None, request: HistoryRequest) -> None:
        """Check that there is room for one more request, before it is accepted.

        Raises:
            Exhausted: A limit is reached; the message says how to make room.
            InvalidRequest: The request is too long ever to be admitted.
        """
        if caller is None:
            return
        limits, later = self._of(caller), "submit it again when an unfinished one has ended"
        requests = len(self._unfinished.get(caller.client_id, ())) + 1
        if requests > limits.unfinished_requests:
            raise self._refused(caller, "unfinished_requests", requests, limits.unfinished_requests, later)
        own = request.max_candles
        if own > limits.unfinished_periods:  # waiting would not help
            raise InvalidRequest(
                f"the range has {own} periods, {limits.unfinished_periods} are allowed for client_id "
                f"{caller.client_id!r}; request a shorter one"
            )
        periods = self._periods[caller.client_id] + own
        if periods > limits.unfinished_periods:
            raise self._refused(caller, "unfinished_periods", periods, limits.unfinished_periods, later)

    def subscribe(self, caller: Caller | None, subscriptions: int) -> None:
        """Check that the caller, which has some subscriptions, may start one more; Exhausted if not."""
        if caller is not None and subscriptions >= (limit := self._of(caller).subscriptions):
            raise self._refused(caller, "subscriptions", subscriptions + 1, limit, "stop another one first")

    def start_udf(self, caller: Caller | None, udfs: int) -> None:
        """Check that the caller, which has some UDFs, may have one more; Exhausted if not."""
        if caller is not None and udfs >= (limit := self._of(caller).udfs):
            raise self._refused(caller, "udfs", udfs + 1, limit, "stop another one and start it with this definition")

    def make_receipt(self, caller: Caller | None, receipts: int) -> None:
        """Check that the caller, which has some receipts, may have one more; Exhausted if not."""
        if caller is not None and receipts >= (limit := self._of(caller).receipts):
            raise self._refused(caller, "receipts", receipts + 1, limit, "drop another one first")

    def trigger_limit(self, caller: Caller | None) -> int | None:
        """Return the largest number of triggers of the caller; None for no limit."""
        return None if caller is None else self._of(caller).triggers

    def too_many_triggers(self, caller: Caller | None) -> Exhausted:
        """Count and return the refusal of one more trigger."""
        assert caller is not None
        limit = self._of(caller).triggers
        return self._refused(caller, "triggers", limit + 1, limit, "delete another one first")

    def hold_triggers(self, by_client: Mapping[str, int]) -> None:
        """Count the bytes of the triggers that the store has at start."""
        self._trigger_bytes.update(by_client)

    def register_trigger(self, caller: Caller | None, client_id: str, size: int) -> None:
        """Count the bytes of a trigger before it is stored; Exhausted if the caller's triggers have too many."""
        total = self._trigger_bytes[client_id] + size
        if caller is not None and total > (limit := self._of(caller).trigger_bytes):
            raise self._refused(caller, "trigger_bytes", total, limit, "delete another one first")
        self._trigger_bytes[client_id] = total

    def drop_trigger(self, client_id: str, size: int) -> None:
        """Stop counting a trigger that was not stored, or that was deleted."""
        self._trigger_bytes[client_id] -= size
        if not self._trigger_bytes[client_id]:
            del self._trigger_bytes[client_id]

    @contextmanager
    def stream(self, caller: Caller | None, count: int = 1) -> Iterator[None]:
        """Count an open stream, or one as costly as several, while the block runs; Exhausted if there are too many."""
        if caller is None:
            yield
            return
        limit, streams = self._of(caller).open_streams, self._streams[caller.client_id] + count
        if streams > limit:
            raise self._refused(caller, "open_streams", streams, limit, "open it again when another one has ended")
        self._streams[caller.client_id] = streams
        try:
            yield
        finally:
            self._streams[caller.client_id] -= count

    def _of(self, caller: Caller) -> Limits:
        return dataclasses.replace(self._limits, **caller.quota.model_dump(exclude_none=True))

    def _refused(
        self, caller: Caller, quota: str, value: int, limit: int, hint: str, retry_seconds: float | None = None
    ) -> Exhausted:
        self._on_refused(caller.client_id, quota)
        return Exhausted(
            f"{quota} would be {value}, {limit} are allowed for client_id {caller.client_id!r}; {hint}",
            retry_seconds=retry_seconds,
        )
