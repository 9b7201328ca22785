"""Rate limit of an exchange and the bans it announced, shared by all processes of a host.

The state is a token bucket in a file of 40 bytes. Each call reserves the next free moment under a file lock that is
held for some microseconds, and then waits for that moment without the lock. So the calls of all processes leave in the
order of their reservations. A process that dies loses its reservations and leaves no lock. Times are from the monotonic
clock, which all processes of a host share; it restarts with the host, and the state does too.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dexorder_common.clock import Clock
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.metrics import IngestorMetrics

_RECORD = struct.Struct("=8s16sqq")  # magic, boot, free_ns, ban_ns
_FREE_AT, _BAN_AT = 24, 32
_TIME = struct.Struct("=q")
_MAGIC = b"dxbudg01"
_LOCK_SECONDS = 0.05
_LOCK_RETRY_SECONDS = 0.0002


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Token bucket, in ccxt's units of cost.

    Attributes:
        per_second: Units that come back each second.
        burst: Units that can be saved up. A call may leave while any is left, and may overdraw.
    """

    per_second: float
    burst: float = 1.0

    def ns(self, units: float) -> int:
        """Return the time in which ``units`` come back."""
        return int(units / self.per_second * SECOND_NS)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Moment at which a call may leave; void if a ban other than the one until ``ban_ns`` is in force by then."""

    at_ns: int
    ban_ns: int


def reserve(free_ns: int, ban_ns: int, cost: float, limit: RateLimit, *, now_ns: int) -> tuple[int, int]:
    """Return the moment of the next call and the ``free_ns`` after it.

    Args:
        free_ns: Time at which the bucket is, or was, paid off: the earliest moment of the next call.
        ban_ns: End of the last ban.
    """
    at_ns = max(now_ns, free_ns, ban_ns)
    return at_ns, max(free_ns, at_ns - limit.ns(limit.burst)) + limit.ns(cost)


class SharedBucket:
    """Token bucket of one exchange in a file; `open_bucket` opens it."""

    def __init__(self, descriptor: int, limit: RateLimit) -> None:
        self._file = descriptor
        self.limit = limit

    def reserve(self, cost: float, *, now_ns: int) -> Reservation:
        """Reserve the next moment for a call. A reservation cannot be returned."""
        with self._locked():
            free_ns, ban_ns = self._read(now_ns)
            at_ns, free_ns = reserve(free_ns, ban_ns, cost, self.limit, now_ns=now_ns)
            os.pwrite(self._file, _TIME.pack(free_ns), _FREE_AT)
        return Reservation(at_ns, ban_ns)

    def ban_ns(self) -> int:
        """Return the monotonic end of the last ban that any process announced."""
        return int(_TIME.unpack(os.pread(self._file, _TIME.size, _BAN_AT))[0])

    def ban(self, until_ns: int, *, now_ns: int) -> int:
        """Let no process call before ``until_ns``; return by how many nanoseconds this makes the ban longer."""
        with self._locked():
            _, ban_ns = self._read(now_ns)
            if until_ns <= max(ban_ns, now_ns):
                return 0
            os.pwrite(self._file, _TIME.pack(until_ns), _BAN_AT)
        return until_ns - max(ban_ns, now_ns)

    def close(self) -> None:
        """Close the file; the state stays."""
        os.close(self._file)

    def _read(self, now_ns: int) -> tuple[int, int]:
        """Return ``free_ns`` and ``ban_ns``; write a new state first if the file's state is not of this boot."""
        data = os.pread(self._file, _RECORD.size, 0)
        boot = _boot_id()
        if len(data) == _RECORD.size and data.startswith(_MAGIC + boot):
            _, _, free_ns, ban_ns = _RECORD.unpack(data)
            return free_ns, ban_ns
        start = (now_ns - self.limit.ns(self.limit.burst), now_ns)
        os.pwrite(self._file, _RECORD.pack(_MAGIC, boot, *start), 0)
        return start

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the file; proceed without the lock after 50 ms: a frozen holder (SIGSTOP) must not freeze others."""
        lock(self._file)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def lock(file: int) -> bool:
    """Lock an open file; return False if another process has held its lock for 50 ms."""
    for _ in range(int(_LOCK_SECONDS / _LOCK_RETRY_SECONDS)):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOCK_RETRY_SECONDS)
    return False


def open_shared(path: Path) -> int:
    """Open a file that the ingestors of this host share; create it if it does not exist. May raise OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def shared_path(folder: Path, exchange: str, host: str, ending: str = "") -> Path:
    """Return the path of a file that the ingestors of this host share, about an exchange at an API host."""
    return folder / (quote(f"{exchange}@{host}", safe="@") + ending)


def open_bucket(folder: Path, exchange: str, host: str, limit: RateLimit, *, now_ns: int) -> SharedBucket:
    """Open the host's bucket for an exchange (ccxt's id) at an API host; create it if it does not exist.

    Raises:
        OSError: The folder can't be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    bucket = SharedBucket(open_shared(shared_path(folder, exchange, host)), limit)
    try:
        bucket.ban(0, now_ns=now_ns)  # finds out now, not at the first call, whether it can be locked and written
    except OSError:
        bucket.close()
        raise
    return bucket


@functools.cache
def _boot_id() -> bytes:
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):  # not Linux: roughly the start of the monotonic clock
        return struct.pack("=qq", 0, round((time.time() - time.monotonic()) / 600))


@dataclass(eq=False)
class RateLimiter:
    """Throttler of all ccxt clients of a venue: a call waits for its reservation and for the end of a ban."""

    venue: str
    bucket: SharedBucket
    metrics: IngestorMetrics
    clock: Clock
    longest_ban_seconds: float
    sleep: Callable[[float], Awaitable[None]]
    loop: Any = None  # ccxt sets it

    def __post_init__(self) -> None:
        """Start the counter of an alert at 0: Prometheus sees no increase in one that starts with a ban."""
        self.metrics.ban_seconds.labels(self.venue)

    async def __call__(self, cost: Any = None) -> None:
        """Return when the call may leave; check `is_banned` again if anything is awaited before the request leaves.

        Raises:
            ExchangeFailure: A ban lasts longer than ``longest_ban_seconds`` from now.
        """
        started_ns = self.clock.monotonic_ns()
        while not await self._wait_for(self._reserve(1.0 if cost is None else float(cost))):
            pass  # a ban was announced during the wait and voids all earlier reservations
        waited_ns = self.clock.monotonic_ns() - started_ns
        self.metrics.rate_limit_wait_seconds.labels(self.venue).inc(waited_ns / SECOND_NS)

    def ban(self, seconds: float) -> None:
        """Let no process of this host call the exchange for ``seconds``."""
        now_ns = self.clock.monotonic_ns()
        longer_ns = self.bucket.ban(now_ns + int(seconds * SECOND_NS), now_ns=now_ns)
        self.metrics.ban_seconds.labels(self.venue).inc(longer_ns / SECOND_NS)

    def is_banned(self) -> bool:
        """Return whether a ban that any process announced is in force."""
        return self.bucket.ban_ns() > self.clock.monotonic_ns()

    def _reserve(self, cost: float) -> Reservation:
        now_ns = self.clock.monotonic_ns()
        left_ns = self.bucket.ban_ns() - now_ns
        if left_ns > self.longest_ban_seconds * SECOND_NS:
            raise ExchangeFailure(f"{self.venue} bans this address for another {left_ns / SECOND_NS:.0f} s")
        reservation = self.bucket.reserve(cost, now_ns=now_ns)
        if reservation.at_ns > now_ns:
            self.metrics.rate_limit_waits.labels(self.venue).inc()
        return reservation

    async def _wait_for(self, reservation: Reservation) -> bool:
        while (left_ns := reservation.at_ns - self.clock.monotonic_ns()) > 0:
            await self.sleep(left_ns / SECOND_NS)
        return self.bucket.ban_ns() == reservation.ban_ns
