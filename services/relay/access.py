"""Who may see and do what, and how much of it. Pure; ``None`` as the caller means that no identity is asked for.

A request belongs to its client_id. To anyone else, admins apart, it is as if it did not exist: what is another's and
what was never there get the same NOT_FOUND, so that nobody learns which ids are taken.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from services.common.model.errors import Exhausted, InvalidRequest, NotFound
from services.common.model.history import Record, Submission
from services.common.model.periods import count_periods
from services.common.model.times import SECOND_NS
from services.common.rpc.identity import Caller, Role

ROLES = {
    "dexorder.relay.v1.RelayService": (Role.CLIENT, Role.ADMIN),
    "dexorder.relay.v1.IngestorService": (Role.INGESTOR,),
    "dexorder.relay.v1.PipelineService": (Role.PIPELINE,),
}
"""Which roles may call which service, with identity on."""
MINUTE_NS = 60 * SECOND_NS


def unknown_request(request_id: str) -> NotFound:
    """The one answer for a request that is not there, or not there for this caller."""
    return NotFound(f"request_id {request_id[:64]!r} is not known")


def signed(caller: Caller | None, submission: Submission) -> Submission:
    """The submission under the caller's own client_id, whatever was left out.

    Raises:
        InvalidRequest: It names another client.
    """
    if caller is None:
        return submission
    if submission.client_id and submission.client_id != caller.client_id:
        raise InvalidRequest(f"client_id {submission.client_id[:64]!r} is not the caller's, {caller.client_id!r}")
    return dataclasses.replace(submission, client_id=caller.client_id)


def sees(caller: Caller | None, submission: Submission) -> bool:
    """Whether a request is there for this caller."""
    return caller is None or caller.role is Role.ADMIN or submission.client_id == caller.client_id


def seen(caller: Caller | None, record: Record) -> Record:
    """The record.

    Raises:
        NotFound: It is another's.
    """
    if not sees(caller, record.submission):
        raise unknown_request(record.submission.request_id)
    return record


def listed(caller: Caller | None, client_id: str) -> str:
    """The client whose requests a list or a topic is about; empty for all.

    Raises:
        NotFound: It is another's.
    """
    if caller is None or caller.role is Role.ADMIN:
        return client_id
    if client_id not in ("", caller.client_id):
        raise NotFound(f"client_id {client_id[:64]!r} is not known")
    return caller.client_id


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Most of each that one client may have; see the settings ``quota_*``."""

    unfinished_requests: int
    submissions_per_minute: int
    unfinished_periods: int
    open_streams: int


class Quotas:
    """What each client uses, against its limits. Without a caller nothing is limited."""

    def __init__(self, limits: Limits, on_refused: Callable[[str, str], None]) -> None:
        """Nothing is in use.

        Args:
            limits: Of a caller that has none of its own.
            on_refused: Told client_id and quota at each refusal.
        """
        self._limits = limits
        self._on_refused = on_refused
        self._unfinished: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._periods: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._paid_until_ns: dict[str, int] = {}

    def enter(self, submission: Submission) -> None:
        """A request has been accepted, or was read back at start."""
        if submission.client_id:
            self._unfinished[submission.client_id][submission.request_id] = _periods(submission)
            self._periods[submission.client_id] += _periods(submission)

    def leave(self, submission: Submission) -> None:
        """A request has ended."""
        if submission.client_id:
            own = self._unfinished[submission.client_id]
            self._periods[submission.client_id] -= own.pop(submission.request_id, 0)
            if not own:
                del self._unfinished[submission.client_id], self._periods[submission.client_id]

    def submit(self, caller: Caller | None, *, now_ns: int) -> None:
        """Count an attempt to submit; each is worth its part of a minute, and a minute's worth may come at once.

        Raises:
            Exhausted: Too many; says when the next one is taken.
        """
        if caller is None:
            return
        limit = self._of(caller).submissions_per_minute
        paid_until_ns = max(self._paid_until_ns.get(caller.client_id, now_ns), now_ns) + MINUTE_NS // limit
        wait_ns = paid_until_ns - now_ns - MINUTE_NS
        if wait_ns > 0:
            seconds = wait_ns / SECOND_NS
            hint = f"the next one is taken in {seconds:.3f} s"
            raise self._refused(caller, "submissions_per_minute", limit + 1, limit, hint, seconds)
        self._paid_until_ns[caller.client_id] = paid_until_ns

    def admit(self, caller: Caller | None, submission: Submission) -> None:
        """Check that there is room for one more request; before it is accepted.

        Raises:
            Exhausted: There is none; says what makes room.
            InvalidRequest: It is too long to be admitted ever.
        """
        if caller is None:
            return
        limits, later = self._of(caller), "submit it again when one that is unfinished has ended"
        requests = len(self._unfinished.get(caller.client_id, ())) + 1
        if requests > limits.unfinished_requests:
            raise self._refused(caller, "unfinished_requests", requests, limits.unfinished_requests, later)
        own = _periods(submission)
        if own > limits.unfinished_periods:  # no time makes room for it, so a caller must not wait for that
            raise InvalidRequest(
                f"the range has {own} periods, {limits.unfinished_periods} are allowed for client_id "
                f"{caller.client_id!r}; ask for a shorter one"
            )
        periods = self._periods[caller.client_id] + own
        if periods > limits.unfinished_periods:
            raise self._refused(caller, "unfinished_periods", periods, limits.unfinished_periods, later)

    @contextmanager
    def stream(self, caller: Caller | None) -> Iterator[None]:
        """A stream is open for as long as the block runs.

        Raises:
            Exhausted: The caller has too many.
        """
        if caller is None:
            yield
            return
        limit, streams = self._of(caller).open_streams, self._streams[caller.client_id] + 1
        if streams > limit:
            raise self._refused(caller, "open_streams", streams, limit, "open it again when another one has ended")
        self._streams[caller.client_id] = streams
        try:
            yield
        finally:
            self._streams[caller.client_id] -= 1

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


def _periods(submission: Submission) -> int:
    periods = count_periods(submission.span, submission.period_seconds)
    return periods if submission.limit is None else min(periods, submission.limit)
