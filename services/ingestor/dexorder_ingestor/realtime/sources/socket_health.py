"""Health of a socket: how long it has been alive, when its silence is worth a query, whether it is deaf. Pure.

Silence raises no error, neither in a quiet market nor on a dead socket, and ccxt.pro never returns again after one
malformed frame. So silence is measured against the rate of messages so far. An answer without news lengthens it. A
socket is deaf if REST has news of its silence, and it stays silent for some more seconds.
"""

from __future__ import annotations

from dexorder_common.model.times import SECOND_NS

_GAPS = 20
"""Mean times between two messages in a silence that is worth a query."""
_GRACE_NS = 3 * SECOND_NS
"""Time between news of REST and the moment at which a socket that is still silent counts as deaf."""
_SHORTEST_NS, _LONGEST_NS = SECOND_NS, 30 * SECOND_NS
"""Silences that are worth a query."""
_WEIGHT = 0.1
"""Weight of the newest time between two messages in their mean."""


class SocketHealth:
    """Silence of one market's socket. Times are of the monotonic clock."""

    def __init__(self, *, now_ns: int) -> None:
        self._mean_ns = 0.0
        self._heard_ns: int | None = None
        self._from_ns = now_ns
        self._factor = 1
        self._suspect_ns: int | None = None

    @property
    def silence_ns(self) -> int:
        """Length of a silence that is worth a query."""
        ns = max(_SHORTEST_NS, _GAPS * self._mean_ns) * self._factor
        return int(min(_LONGEST_NS, ns))

    @property
    def ends_ns(self) -> int:
        """Time at which the current silence is worth a query."""
        return self._from_ns + self.silence_ns

    def heard(self, *, now_ns: int) -> None:
        """Count a message."""
        if self._heard_ns is not None:
            self._mean_ns += _WEIGHT * (now_ns - self._heard_ns - self._mean_ns)
        self._heard_ns = self._from_ns = now_ns
        self._factor = 1
        self._suspect_ns = None

    def checked(self, *, now_ns: int, news: bool) -> None:
        """Count an answer of REST about the silence: ``news`` are trades that the socket had not sent."""
        self._from_ns = now_ns
        self._factor = 1 if news else min(self._factor * 2, _LONGEST_NS)

    def restart(self, *, now_ns: int) -> None:
        """Start again because the connection is lost."""
        self._heard_ns = self._suspect_ns = None
        self._from_ns = now_ns
        self._factor = 1

    def suspect(self, *, now_ns: int) -> None:
        """Note that REST has trades that the socket had not sent."""
        if self._suspect_ns is None:
            self._suspect_ns = now_ns

    def is_deaf(self, *, now_ns: int) -> bool:
        """Return whether the socket has to be opened again; True once for each time."""
        if self._suspect_ns is None or now_ns < self._suspect_ns + _GRACE_NS:
            return False
        self._suspect_ns = None
        return True

    def wake_ns(self, due_ns: int) -> int:
        """Return ``due_ns``, or the time at which `is_deaf` may become true, if that is earlier."""
        return due_ns if self._suspect_ns is None else min(due_ns, self._suspect_ns + _GRACE_NS)


class AliveSocket:
    """Time for which a socket has been alive without a break. Times are of the monotonic clock."""

    def __init__(self, longest_silence_ns: int) -> None:
        self._longest_silence_ns = longest_silence_ns
        self.from_ns: int | None = None
        """None if it is not known to be alive."""
        self.until_ns = -1

    @property
    def length_ns(self) -> int:
        """How long it has been alive."""
        return 0 if self.from_ns is None else self.until_ns - self.from_ns

    def proven(self, at_ns: int) -> None:
        """Note that something came at a time; the order of the calls does not matter."""
        if at_ns <= self.until_ns:
            return
        if self.from_ns is None or at_ns > self.until_ns + self._longest_silence_ns:
            self.from_ns = at_ns
        self.until_ns = at_ns

    def lost(self, *, now_ns: int) -> None:
        """Note that the connection is lost; earlier signs of life no longer count."""
        self.from_ns, self.until_ns = None, now_ns
