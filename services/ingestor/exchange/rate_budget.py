"""One rate budget for all processes of a host that ask the same exchange, and the bans it has announced to any of them.

A budget is a file of 40 bytes. Each call takes its *turn*, a moment in time, under a file lock held for some
microseconds, and then waits for it without the lock: turns are served in the order they were taken, whoever took them.
A process that dies loses the turns it held and leaves no lock; times are of the monotonic clock, which all processes of
a host share and which starts anew with the host, as the state does then.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from services.common.model.times import SECOND_NS

_RECORD = struct.Struct("=8s16sqq")  # magic, boot, free_ns, ban_ns
_FREE_AT, _BAN_AT = 24, 32
_TIME = struct.Struct("=q")
_MAGIC = b"dxbudg01"
_LOCK_SECONDS = 0.05
_MODE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket, in ccxt's units of cost.

    Attributes:
        per_second: Units that come back each second.
        burst: Units that can be saved up; a call goes while any is left, and may overdraw.
    """

    per_second: float
    burst: float = 1.0

    def ns(self, units: float) -> int:
        """Time in which so many units come back."""
        return int(units / self.per_second * SECOND_NS)


@dataclass(frozen=True, slots=True)
class Reservation:
    """When a call may be made; void if another ban is in force by then."""

    at_ns: int
    ban_ns: int


def take(free_ns: int, ban_ns: int, cost: float, rate: RateLimit, *, now_ns: int) -> tuple[int, int]:
    """The next turn and the bucket after it.

    Args:
        free_ns: When the bucket is, or was, paid off: the earliest moment of the next turn.
        ban_ns: End of the last ban.
    Returns:
        The moment of the turn, the new ``free_ns``.
    """
    at_ns = max(now_ns, free_ns, ban_ns)
    return at_ns, max(free_ns, at_ns - rate.ns(rate.burst)) + rate.ns(cost)


class SharedBucket:
    """The budget of one exchange, in a file; `open_budget` makes one."""

    def __init__(self, descriptor: int, rate: RateLimit) -> None:
        self._file = descriptor
        self.rate = rate

    def take(self, cost: float, *, now_ns: int) -> Reservation:
        """Take the next turn for a call; nothing can give it back."""
        with self._locked():
            free_ns, ban_ns = self._read(now_ns)
            at_ns, free_ns = take(free_ns, ban_ns, cost, self.rate, now_ns=now_ns)
            os.pwrite(self._file, _TIME.pack(free_ns), _FREE_AT)
        return Reservation(at_ns, ban_ns)

    def ban_ns(self) -> int:
        """Monotonic end of the last ban any process was told of."""
        return int(_TIME.unpack(os.pread(self._file, _TIME.size, _BAN_AT))[0])

    def ban(self, until_ns: int, *, now_ns: int) -> int:
        """Let no process ask before a moment; by how many nanoseconds that makes the ban longer."""
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
        """When the bucket is free and when the ban ends; written anew where there is nothing of this boot."""
        data = os.pread(self._file, _RECORD.size, 0)
        boot = _boot()
        if len(data) == _RECORD.size and data.startswith(_MAGIC + boot):
            _, _, free_ns, ban_ns = _RECORD.unpack(data)
            return free_ns, ban_ns
        start = (now_ns - self.rate.ns(self.rate.burst), now_ns)
        os.pwrite(self._file, _RECORD.pack(_MAGIC, boot, *start), 0)
        return start

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file; after 50 ms go on without it, for a frozen holder (SIGSTOP) must not freeze others."""
        for _ in range(int(_LOCK_SECONDS / 0.0002)):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.0002)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def open_bucket(folder: Path, exchange: str, host: str, rate: RateLimit, *, now_ns: int) -> SharedBucket:
    """The host's budget for an exchange (ccxt's id) at an API host; made if there is none.

    Raises:
        OSError: The folder can't be used.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    budget = SharedBucket(os.open(folder / quote(f"{exchange}@{host}", safe="@"), _MODE, 0o600), rate)
    try:
        budget.ban(0, now_ns=now_ns)  # shows now, not at the first call, whether it can be locked and written
    except OSError:
        budget.close()
        raise
    return budget


@functools.cache
def _boot() -> bytes:
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):  # not Linux: the start of the monotonic clock, roughly
        return struct.pack("=qq", 0, round((time.time() - time.monotonic()) / 600))
