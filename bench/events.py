"""Benchmark of user events beside raw pyzmq, SQLite, grpcio and aiohttp, in the same run.

    .venv/bin/python -m bench.events [accepts] [fast] [sessions] [restart] [flood] [--small]

One gateway process on loopback without CURVE, containers and clients in processes of their own. Prints Markdown; all
five without a name. ``--small`` only shows that the script works.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.parts import events_processes as processes
from bench.parts import events_raw
from bench.parts.events_load import EVENT_BYTES, Measured
from bench.parts.pixy_processes import Server
from tests.rig import report
from tests.rig.events_gateway import EventsGateway
from tests.rig.report import Row, quantile

MOST_A_COMMIT = events_raw.MOST
SESSIONS = 200
FLOOD_RATE = 10_000
AT_ONCE = 1_000
"""Events per answer of a session that takes several at once."""
AIMS = {1: "", 100: "at least 5,000/s, p99 at most 150 ms", 1_000: "at least 12,000/s"}


@dataclass(frozen=True)
class Plan:
    """Size of a run; numbers of events by events in flight."""

    rounds: int
    accepts: dict[int, int]
    fast: int
    fanned: int
    queued: int
    flood_s: float


FULL = Plan(
    rounds=3, accepts={1: 300, 100: 20_000, 1_000: 50_000}, fast=200_000, fanned=500, queued=100_000, flood_s=6.0
)
SMALL = Plan(rounds=1, accepts={1: 20, 100: 500, 1_000: 2_000}, fast=3_000, fanned=10, queued=2_000, flood_s=1.0)


@dataclass
class Samples:
    """One figure per round; ``lost`` counts events that never arrived, in all rounds."""

    lost: int = 0
    rates: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def add(self, server: Server, before_s: float, count: int, measured: Measured, began_s: float = 0.0) -> None:
        """Add a round of a server whose CPU time was ``before_s``; ``began_s`` where another process began it."""
        self.lost += measured.lost
        self.rates.append((count - measured.lost) / (measured.ended_s - (began_s or measured.began_s)))
        self.cpu_us.append((server.cpu_seconds() - before_s) / count * 1e6)
        if measured.waits:
            self.p99_ms.append(quantile(measured.waits, 0.99) * 1e3)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def text(self) -> str:
        """Return the medians."""
        p99 = f", p99 {statistics.median(self.p99_ms):,.1f} ms" if self.p99_ms else ""
        lost = f", {self.lost:,} lost" if self.lost else ""
        return f"{self.rate:,.0f}/s{p99}, {statistics.median(self.cpu_us):.0f} us{lost}"


def accepts(plan: Plan, folder: Path) -> str:
    """Measure CRITICAL events on 5571 up to their QUEUED ack."""
    rows = []
    with (
        processes.gateway(folder / "accepts") as gateway,
        processes.Raw("router", folder) as router,
        processes.Raw("outbox", folder) as outbox,
        processes.Load() as load,
    ):
        servers = {"ours": Server(gateway.router, gateway.pid), "pyzmq": router.server, "both": outbox.server}
        for window, count in plan.accepts.items():
            samples = {side: Samples() for side in servers}
            for _ in range(plan.rounds):
                for side, server in servers.items():
                    before_s = server.cpu_seconds()
                    measured = load.measure(
                        "accepts", router=server.address, count=count, window=window, name=uuid.uuid4().hex
                    )
                    samples[side].add(server, before_s, count, measured)
            sqlite = statistics.median(
                events_raw.insert_rate(folder / f"{uuid.uuid4().hex}.db", count, min(window, MOST_A_COMMIT))
                for _ in range(plan.rounds)
            )
            ours, pyzmq, both = (samples[side] for side in servers)
            rows.append(
                Row(
                    f"durable accepts, {window:,} in flight",
                    ours.text(),
                    f"pyzmq {pyzmq.text()}; SQLite {sqlite:,.0f}/s; both {both.text()}",
                    " / ".join(f"{ours.rate / other:.2f}" for other in (pyzmq.rate, sqlite, both.rate)),
                    AIMS[window],
                )
            )
    return report.table(
        f"Events of {EVENT_BYTES} bytes to the ack QUEUED: events and the server's CPU an event; limits: a ROUTER that "
        "acks, SQLite (WAL, FULL) in groups of as many, and both in one loop",
        rows,
    )


def fast(plan: Plan, folder: Path) -> str:
    """Measure INFORMATIONAL events on 5570 to one session."""
    ways = {"together": AT_ONCE, "each in an answer of its own": 0}
    ours, pyzmq = {way: Samples() for way in ways}, Samples()
    with (
        processes.gateway(folder / "fast") as gateway,
        processes.Raw("sub", folder) as sub,
        processes.Load() as clients,
        processes.Load() as publisher,
    ):
        server = Server(gateway.sub, gateway.pid)
        for number in range(plan.rounds):
            for way, max_events in ways.items():
                user = f"fast-{number}-{max_events}"
                clients.begin(
                    "fan",
                    kind="grpc",
                    address=gateway.address,
                    token=gateway.keys.token(user, seconds=90_000),
                    sessions=1,
                    events=plan.fast,
                    max_events=max_events,
                )
                assert clients.line() == "open"
                before_s = server.cpu_seconds()
                sent = publisher.measure("publishes", sub=gateway.sub, count=plan.fast, user=user)
                ours[way].add(server, before_s, plan.fast, clients.end(), sent.began_s)
            sub.say(f"{user} {plan.fast}")
            before_s = sub.server.cpu_seconds()
            sent = publisher.measure("publishes", sub=sub.address, count=plan.fast, user=user)
            pyzmq.add(sub.server, before_s, plan.fast, Measured(sent.began_s, float(sub.line())))
    rows = [
        Row(
            f"fast path, one session over gRPC, {way}",
            each.text(),
            pyzmq.text(),
            f"{each.rate / pyzmq.rate:.2f}",
            "at least 50,000/s" if ways[way] else "",
        )
        for way, each in ours.items()
    ]
    return report.table(
        f"Fast path, events of {EVENT_BYTES} bytes until the session has them; limit: a SUB that parses them", rows
    )


def sessions(plan: Plan, folder: Path) -> str:
    """Measure one user's events to many sessions."""
    rows = []
    with processes.gateway(folder / "sessions") as gateway, processes.Load() as clients, processes.Load() as publisher:
        server = Server(gateway.sub, gateway.pid)
        for kind, address in (("grpc", gateway.address), ("web", gateway.web)):
            ours, alone = Samples(), Samples()
            for number in range(plan.rounds):
                user = f"{kind}-{number}"
                token = gateway.keys.token(user, seconds=90_000)
                order = {"kind": kind, "token": token, "sessions": SESSIONS, "events": plan.fanned}
                clients.begin("fan", address=address, **order)
                assert clients.line() == "open"
                before_s = server.cpu_seconds()
                sent = publisher.measure("publishes", sub=gateway.sub, count=plan.fanned, user=user)
                ours.add(server, before_s, SESSIONS * plan.fanned, clients.end(), sent.began_s)
                with processes.Raw(kind, folder) as raw:
                    clients.begin("fan", address=raw.address, **order)
                    assert clients.line() == "open"
                    before_s, began_s = raw.server.cpu_seconds(), time.monotonic()
                    raw.say(str(plan.fanned))
                    alone.add(raw.server, before_s, SESSIONS * plan.fanned, clients.end(), began_s)
            name = {"grpc": "gRPC", "web": "WebSocket"}[kind]
            rows.append(
                Row(
                    f"{SESSIONS} sessions, {name}",
                    ours.text(),
                    alone.text(),
                    f"{ours.rate / alone.rate:.2f}",
                    "at least 10,000/s",
                )
            )
    return report.table(
        f"Deliveries of {plan.fanned} events to {SESSIONS} sessions of a user, the server's CPU a delivery; limits: "
        "grpcio and aiohttp alone with ready messages; all sessions in one client process",
        rows,
    )


def flood(plan: Plan, folder: Path) -> str:
    """Measure the acks of one container alone and beside another one that sends 10,000 events a second."""
    rows = []
    ratios: dict[str, list[float]] = {}
    kept: dict[str, list[float]] = {}
    p99s: dict[str, tuple[list[float], list[float]]] = {}
    with (
        processes.gateway(folder / "flood", quotas={}) as gateway,
        processes.Raw("outbox", folder) as outbox,
        processes.Load() as honest,
        processes.Load() as flooder,
    ):
        for _ in range(plan.rounds):
            for side, address in (("ours", gateway.router), ("both", outbox.address)):
                name = uuid.uuid4().hex
                order = {"router": address, "seconds": plan.flood_s}
                quiet = quantile(honest.measure("paced", name=f"q-{name}", **order).waits, 0.99)
                flooder.begin("floods", name=f"f-{name}", rate=FLOOD_RATE, router=address, seconds=plan.flood_s + 1)
                assert flooder.line() == "open"
                time.sleep(0.5)
                beside = quantile(honest.measure("paced", name=f"p-{name}", **order).waits, 0.99)
                refused = flooder.end().lost
                ratios.setdefault(side, []).append(beside / quiet)
                kept.setdefault(side, []).append(1 - refused / (FLOOD_RATE * (plan.flood_s + 1)))
                for values, value in zip(p99s.setdefault(side, ([], [])), (quiet, beside), strict=True):
                    values.append(value * 1e3)
    texts = {
        side: f"p99 {statistics.median(quiet):.1f}, beside it {statistics.median(beside):.1f} ms; ratio"
        f" {statistics.median(ratios[side]):.2f}; {statistics.median(kept[side]):.0%} of the flood accepted"
        for side, (quiet, beside) in p99s.items()
    }
    ratio = f"{statistics.median(ratios['ours']) / statistics.median(ratios['both']):.2f}"
    rows.append(
        Row(f"beside {FLOOD_RATE:,}/s", texts["ours"], texts["both"], ratio, "p99 at most 2 times the quiet one")
    )
    return report.table(
        "Acks of one container while another one floods, at the default quotas; limit: a ROUTER with SQLite, which"
        " refuses nothing",
        rows,
    )


def restart(plan: Plan, folder: Path) -> str:
    """Measure the time from the process start to the first new event's ack, with many queued."""
    with processes.Load() as load:
        empty_s = started(processes.gateway(folder / "empty"), load)
        gateway = processes.gateway(folder / "full")
        with gateway:
            load.measure("accepts", router=gateway.router, count=plan.queued, window=1_000, name="queued")
        full_s = statistics.median(started(gateway, load) for _ in range(plan.rounds))
    row = Row(
        f"restart after a kill with {plan.queued:,} queued",
        f"{full_s:.2f} s",
        f"{empty_s:.2f} s with none queued; {read_seconds(folder / 'full' / 'events.db'):.2f} s to read the rows",
        f"{full_s / empty_s:.2f}",
        "ready in at most 5 s",
    )
    return report.table("From the start of the process to the ack of a new event; limit: SQLite alone", [row])


def started(gateway: EventsGateway, load: processes.Load) -> float:
    """Start a gateway, have one event accepted, and kill it."""
    started_s = time.perf_counter()
    with gateway:
        load.measure("accepts", router=gateway.router, count=1, window=1, name=uuid.uuid4().hex)
        return time.perf_counter() - started_s


def read_seconds(path: Path) -> float:
    """Return all rows of the events."""
    import sqlite3

    raw = sqlite3.connect(path)
    started_s = time.perf_counter()
    raw.execute("SELECT * FROM events").fetchall()
    seconds = time.perf_counter() - started_s
    raw.close()
    return seconds


PARTS: dict[str, Callable[[Plan, Path], str]] = {
    "accepts": accepts,
    "fast": fast,
    "sessions": sessions,
    "restart": restart,
    "flood": flood,
}


def main() -> int:
    """Run the benchmarks and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which of them; all by default")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    plan = SMALL if options.small else FULL
    print(report.heading("User events beside their limits"), flush=True)
    print(f"Medians of {plan.rounds} rounds in which ours and the limits take turns.\n", flush=True)
    for name in options.parts or list(PARTS):
        with tempfile.TemporaryDirectory() as folder:
            print(PARTS[name](plan, Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
