"""Faults of an exchange: each lasts for a time, strikes one market or all and some replicas, and may come with others.

They describe exchanges, not the suite: feeds that fall silent, replicas that fall behind, answers from a cache, trades
that are published late, corrected or numbered from the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tests.simulation.loop import SECOND_NS


class FaultKind(StrEnum):
    """What fails."""

    SILENT = "the socket sends nothing"
    CUT = "sockets are closed and refused"
    DOUBLED = "messages come twice"
    SHUFFLED = "messages are late by up to 3 s, in any order"
    BEHIND = "REST is behind"
    CACHED = "REST repeats one answer"
    LACKS = "REST lacks the trades of a span"
    REFUSED = "REST refuses"
    EMPTY = "REST answers without trades"
    LATE = "trades are published late by both"
    CORRECTED = "the socket's prices are corrected later"
    REVISED = "prices are corrected after REST has shown the first ones"
    RESTARTED = "numbers begin again"
    JUMPED = "a million numbers are left out"
    DELISTED = "the market is traded no more, and unknown to REST from the end of the fault on"


@dataclass(frozen=True)
class Fault:
    """A fault from ``start_ns`` to ``end_ns``, by the exchange's clock.

    Attributes:
        delay_ns: How far REST is behind, or trades are late, or when they are corrected after its end.
        span: Start and end of the trades that REST lacks.
        replicas: Those of REST that it strikes.
    """

    kind: FaultKind
    start_ns: int
    end_ns: int
    delay_ns: int = 0
    span: tuple[int, int] = (0, 0)
    replicas: frozenset[int] = frozenset()

    def strikes(self, now_ns: int, replica: int | None = None) -> bool:
        """Return whether it is in force."""
        return self.start_ns <= now_ns < self.end_ns and (replica is None or replica in self.replicas)

    def text(self, origin_ns: int) -> str:
        """Return it as a line of the story."""
        seconds = [f"{(t - origin_ns) / SECOND_NS:.1f}" for t in (self.start_ns, self.end_ns)]
        more = f", by {self.delay_ns / SECOND_NS:.1f} s" if self.delay_ns else ""
        more += f", replicas {sorted(self.replicas)}" if self.replicas else ""
        return f"from {seconds[0]} to {seconds[1]}: {self.kind}{more}"


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one run, by kind."""

    faults: tuple[Fault, ...] = ()

    def of(self, *kinds: FaultKind) -> list[Fault]:
        """Return the faults of some kinds."""
        return [each for each in self.faults if each.kind in kinds]

    def now(self, kind: FaultKind, now_ns: int, replica: int | None = None) -> Fault | None:
        """Return a fault of a kind that is in force."""
        return next((each for each in self.faults if each.kind is kind and each.strikes(now_ns, replica)), None)

    @property
    def delisting(self) -> Fault | None:
        """The end of the market, if it has one."""
        return min(self.of(FaultKind.DELISTED), key=lambda each: each.start_ns, default=None)

    @property
    def end_ns(self) -> int:
        """Time at which the last fault ends."""
        return max((each.end_ns for each in self.faults), default=0)


@dataclass(frozen=True)
class FaultProfile:
    """A kind of exchange on a bad day: which faults it has, how long they last and how they go together.

    Attributes:
        kinds: Faults that may be drawn, by themselves.
        outages: Largest number of outages: the socket is silent or cut, and REST fails with it.
        seconds: Shortest and longest time of a fault.
        delay_seconds: How far REST is behind, or trades are late.
        rest_fails: Probability that a replica of REST loses its feed together with the socket.
        rest_kinds: How REST fails then.
        rest_seconds: How much longer than the socket's failure it lasts.
        corrected: Probability that the trades of the last seconds before an outage are corrected after it.
        replicas: Number of replicas of REST.
    """

    kinds: tuple[FaultKind, ...] = ()
    count: int = 2
    outages: int = 0
    outage_kinds: tuple[FaultKind, ...] = (FaultKind.SILENT, FaultKind.CUT)
    seconds: tuple[float, float] = (0.2, 120.0)
    delay_seconds: tuple[float, float] = (5.0, 60.0)
    rest_fails: float = 0.0
    rest_kinds: tuple[FaultKind, ...] = (FaultKind.BEHIND,)
    rest_seconds: tuple[float, float] = (5.0, 150.0)
    corrected: float = 0.0
    replicas: int = 1


NO_FAULTS = FaultProfile()


def draw_faults(profile: FaultProfile, random: Random, start_ns: int, end_ns: int) -> FaultPlan:
    """Draw the faults of one run; all begin after ``start_ns`` and end before ``end_ns``."""
    faults: list[Fault] = []
    for _ in range(random.randint(1, profile.count) if profile.kinds else 0):
        kind = random.choice(profile.kinds)
        faults.append(_draw(kind, profile, random, *_window(profile, random, start_ns, end_ns)))
    for _ in range(random.randint(1, profile.outages) if profile.outages else 0):
        faults += _outage(profile, random, *_window(profile, random, start_ns, end_ns), last_ns=end_ns)
    return FaultPlan(tuple(sorted(faults, key=lambda each: (each.start_ns, each.kind))))


def _window(profile: FaultProfile, random: Random, start_ns: int, end_ns: int) -> tuple[int, int]:
    """Draw the time of a fault. Short ones are as likely as long ones: its length is even in the logarithm."""
    shortest, longest = profile.seconds
    length_ns = int(shortest * (longest / shortest) ** random.random() * SECOND_NS)
    length_ns = min(length_ns, end_ns - start_ns - 1)
    begin_ns = random.randrange(start_ns, end_ns - length_ns)
    return begin_ns, begin_ns + length_ns


def _draw(kind: FaultKind, profile: FaultProfile, random: Random, start_ns: int, end_ns: int) -> Fault:
    delay_ns = int(random.uniform(*profile.delay_seconds) * SECOND_NS)
    has_delay = kind in (FaultKind.BEHIND, FaultKind.LATE, FaultKind.REVISED)
    if kind is FaultKind.LATE:  # some trades, not all
        end_ns = min(end_ns, start_ns + 20 * SECOND_NS)
    span = (start_ns, end_ns) if kind is FaultKind.LACKS else (0, 0)
    is_rest = kind in (FaultKind.BEHIND, FaultKind.CACHED, FaultKind.LACKS, FaultKind.REFUSED, FaultKind.EMPTY)
    replicas = _some(range(profile.replicas), random) if is_rest else frozenset[int]()
    return Fault(kind, start_ns, end_ns, delay_ns if has_delay else 0, span, replicas)


def _outage(profile: FaultProfile, random: Random, start_ns: int, end_ns: int, *, last_ns: int) -> Iterable[Fault]:
    """Yield a fault of the socket, and that of the replicas that have lost their feed with it, which lasts longer."""
    yield Fault(random.choice(profile.outage_kinds), start_ns, end_ns)
    if random.random() < profile.corrected:
        yield Fault(FaultKind.CORRECTED, start_ns - int(random.uniform(1.0, 20.0) * SECOND_NS), start_ns)
    if random.random() >= profile.rest_fails:
        return
    longer_ns = int(random.uniform(*profile.rest_seconds) * SECOND_NS)
    kind, replicas = random.choice(profile.rest_kinds), _some(range(profile.replicas), random)
    delay_ns = int(random.uniform(*profile.delay_seconds) * SECOND_NS) if kind is FaultKind.BEHIND else 0
    span = (start_ns, end_ns) if kind is FaultKind.LACKS else (0, 0)
    yield Fault(kind, start_ns, min(last_ns, end_ns + longer_ns), delay_ns, span, replicas)


def _some(numbers: range, random: Random) -> frozenset[int]:
    return frozenset(random.sample(numbers, random.randint(1, len(numbers))))
