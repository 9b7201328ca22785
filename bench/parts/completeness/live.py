"""Trades in real time while socket and REST of the simulated exchange fail: the whole suite, a bare ccxt.pro loop and
cryptofeed, at the same exchange at the same time.

Each row is a fault and the time after it; trades belong to the row in which they were made. Lost, doubled and wrong
are judged at the end, by the exchange's REST without faults. Every few seconds the suite's coverage is read, then its
table: a trade in a claimed span, which is not called provisional, that the table lacks is claimed but absent. The
others claim nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.parts.completeness.exchange import SimulatedExchange
from bench.parts.realtime_memory import exchanges_file
from dexorder import Client
from dexorder.errors import DexorderError
from dexorder.setup.config import PROJECT_ROOT
from dexorder_common.model.coverage import CoverageKind
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from tests.peers.environment import peer_python
from tests.rig.report import markdown
from tests.rig.suite import Suite, running_suite

ROW = "realtime"
MARKETS = 5
_SAMPLE_SECONDS = 4.0
_SETTLE_SECONDS = 300.0
_CORRECTED_SECONDS = 300.0
"""Candles are compared from a minute after their end on, every three; what that corrects is in the table then."""
_LONGEST_BACK_NS = 3_600 * SECOND_NS
_CLAIMS = (CoverageKind.ROWS, CoverageKind.EMPTY)
Key = tuple[str, str]
Values = tuple[float, float]


class Peer:
    """A process that writes trades to a file; it is started again after a kill."""

    def __init__(self, command: Sequence[str], file: Path, address: str, symbols: Sequence[str]) -> None:
        self._command = [*command, address, str(file), *symbols]
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(self._command, cwd=PROJECT_ROOT, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def trades(self) -> list[tuple[Key, Values]]:
        """Return the trades in the file; a line that a kill has cut counts as none."""
        found = []
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            try:
                symbol, trade_id, price, amount = json.loads(line)
            except ValueError:
                continue
            found.append(((symbol, trade_id), (price, amount)))
        return found


class Sample(NamedTuple):
    """Spans that the suite claims for a market, and the ids that its table had after that."""

    symbol: str
    claimed: list[TimeRange]
    stored: set[str]


@dataclass
class Sampler(threading.Thread):
    """Reads coverage and table from time to time."""

    relay: str
    symbols: Sequence[str]
    start_ns: int
    samples: list[Sample] = field(default_factory=list)
    failures: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        with Client(self.relay, patience_seconds=60) as client:
            while not self.stop.wait(_SAMPLE_SECONDS):
                for symbol in self.symbols:
                    try:
                        self.samples.append(self._sample(client, symbol))
                    except DexorderError:
                        self.failures += 1

    def _sample(self, client: Client, symbol: str) -> Sample:
        ticker = f"{symbol}.SIM"
        known = client.coverage(ticker, 0).known
        rows = client.trades(ticker, self.start_ns, time.time_ns() + _LONGEST_BACK_NS)
        return Sample(symbol, [each.span for each in known if each.kind in _CLAIMS], set(rows["trade_id"].to_pylist()))


class Fault(NamedTuple):
    """A row: a name, and what is done; it returns after the fault."""

    name: str
    do: Callable[[Live], None]


class Live:
    """One run of all rows."""

    def __init__(self, suite: Suite, folder: Path) -> None:
        self.suite = suite
        self.exchange = SimulatedExchange(suite.address("sim"))
        self.symbols = [f"X{number:04}/USDT" for number in range(1, MARKETS + 1)]
        here = Path(__file__).parent
        commands = {
            "bare ccxt.pro loop": [sys.executable, "-m", "bench.parts.completeness.live_ccxt"],
            "cryptofeed": [str(peer_python("cryptofeed")), "-I", str(here / "live_cryptofeed.py")],
        }
        self.peers = {
            name: Peer(command, folder / f"{name.split()[0]}.jsonl", self.exchange.address, self.symbols)
            for name, command in commands.items()
        }
        self.rows: list[tuple[str, TimeRange]] = []

    # --- faults

    def strike(self, kind: str, seconds: float) -> None:
        """Apply a fault to all open sockets."""
        self.suite.exchange("/sim/sockets", {"kind": kind, "hang_s": seconds})

    def rules(self, *rules: dict[str, Any], seconds: float = 0.0) -> None:
        """Replace the rules of the exchange, and wait."""
        self.exchange.set_faults(list(rules))
        time.sleep(seconds)

    def restart(self) -> None:
        """Kill the ingestor and the other processes; start these again when the supervisor has started the ingestor."""
        for peer in self.peers.values():
            peer.kill()
        self.suite.kill_and_wait("ingestor", 120)
        for peer in self.peers.values():
            peer.start()

    # --- the run

    def run(self) -> dict[str, list[Counts]]:
        """Play all faults; return the counts of each row, by who has them."""
        for peer in self.peers.values():
            peer.start()
        start_ns = time.time_ns() - 60 * SECOND_NS
        with Client(self.suite.relay, patience_seconds=60) as client:
            for symbol in self.symbols:
                client.start_realtime(f"{symbol}.SIM", ["1m"])
            self._wait_until_all_run(client)
            sampler = Sampler(self.suite.relay, self.symbols, start_ns)
            sampler.start()
            for fault in FAULTS:
                began_ns = time.time_ns()
                fault.do(self)
                self.rules(seconds=15)
                self.rows.append((fault.name, TimeRange(began_ns, time.time_ns())))
                print(f"realtime: {fault.name}, {time.time_ns() // SECOND_NS}", file=sys.stderr, flush=True)
            truth = self._truth()
            ours = self._stored(client, start_ns, truth)
            sampler.stop.set()
            sampler.join()
        absent = self._absent(truth, sampler.samples)
        print(f"realtime: {len(sampler.samples)} samples, {sampler.failures} failed", file=sys.stderr)
        found = {"dexorder": [self._counts(row, truth, ours, absent) for _, row in self.rows]}
        for name, peer in self.peers.items():
            found[name] = [self._counts(row, truth, peer.trades(), None) for _, row in self.rows]
        return found

    def _wait_until_all_run(self, client: Client) -> None:
        """Wait until every peer has trades of each market, and every job has settled something."""
        deadline, settled_ns = time.monotonic() + _SETTLE_SECONDS, time.time_ns()
        while True:
            followed = [{symbol for (symbol, _), _ in peer.trades()} for peer in self.peers.values()]
            jobs = client.list_realtime().jobs
            is_settled = len(jobs) == MARKETS and all(j.series and j.series[0].settled_ns > settled_ns for j in jobs)
            if is_settled and all(len(each) == MARKETS for each in followed):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not everybody has begun: {[len(each) for each in followed]}, {jobs}")
            time.sleep(0.5)

    def _truth(self) -> dict[Key, tuple[int, Values]]:
        """Return the exchange's trades of the rows, with their times; call it without faults."""
        start_ms, end_ms = (self.rows[0][1].start_ns // 1_000_000, self.rows[-1][1].end_ns // 1_000_000)
        found: dict[Key, tuple[int, Values]] = {}
        for symbol in self.symbols:
            query = f"/api/v3/aggTrades?symbol={symbol.replace('/', '')}&limit=1000"
            page = self.suite.exchange(f"{query}&startTime={start_ms}&endTime={start_ms + 3_500_000}")
            while page and page[0]["T"] <= end_ms:
                for row in page:
                    found[symbol, str(row["a"])] = row["T"] * 1_000_000, (float(row["p"]), float(row["q"]))
                page = self.suite.exchange(f"{query}&fromId={page[-1]['a'] + 1}")
        return {key: each for key, each in found.items() if each[0] // 1_000_000 < end_ms}

    def _stored(self, client: Client, start_ns: int, truth: Iterable[Key]) -> list[tuple[Key, Values]]:
        """Return the rows of the table when it has all trades, or after a time, and values had time to be corrected."""
        wanted, deadline = set(truth), time.monotonic() + _SETTLE_SECONDS
        while True:
            if wanted <= {key for key, _ in self._rows(client, start_ns)} or time.monotonic() > deadline:
                time.sleep(_CORRECTED_SECONDS)
                return self._rows(client, start_ns)
            time.sleep(2)

    def _rows(self, client: Client, start_ns: int) -> list[tuple[Key, Values]]:
        found = []
        for symbol in self.symbols:
            rows = client.trades(f"{symbol}.SIM", start_ns, time.time_ns() + _LONGEST_BACK_NS).to_pylist()
            found += [((symbol, row["trade_id"]), (row["price"], row["amount"])) for row in rows]
        return found

    def _absent(self, truth: dict[Key, tuple[int, Values]], samples: Iterable[Sample]) -> set[Key]:
        by_symbol: dict[str, list[tuple[int, str]]] = {symbol: [] for symbol in self.symbols}
        for (symbol, trade_id), (time_ns, _) in truth.items():
            by_symbol[symbol].append((time_ns, trade_id))
        found = set()
        for sample in samples:
            for time_ns, trade_id in by_symbol[sample.symbol]:
                if trade_id not in sample.stored and any(s.start_ns <= time_ns < s.end_ns for s in sample.claimed):
                    found.add((sample.symbol, trade_id))
        return found

    @staticmethod
    def _counts(
        row: TimeRange,
        truth: dict[Key, tuple[int, Values]],
        recorded: Sequence[tuple[Key, Values]],
        absent: set[Key] | None,
    ) -> Counts:
        inside = {key: values for key, (time_ns, values) in truth.items() if row.start_ns <= time_ns < row.end_ns}
        times = Counter(key for key, _ in recorded if key in inside)
        wrong = {key for key, values in recorded if key in inside and values != inside[key]}
        doubled = sum(count - 1 for count in times.values())
        claimed = None if absent is None else sum(key in inside for key in absent)
        return Counts(len(inside), len(inside) - len(times), doubled, len(wrong), claimed)


class Counts(NamedTuple):
    """Trades of a row; ``claimed`` but absent at a sampled moment, None if nothing is claimed."""

    trades: int
    lost: int
    doubled: int
    wrong: int
    claimed: int | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.wrong or self.claimed)

    def __str__(self) -> str:
        claimed = "-" if self.claimed is None else str(self.claimed)
        return f"{self.lost} / {self.doubled} / {self.wrong} / {claimed}"


_PATHS = ("/api/v3/aggTrades", "/api/v3/klines")
"""Without a path a rule strikes candles alone."""
_BEHIND = [{"kind": "behind", "lag_s": 40, "path": path} for path in _PATHS]
_EDITED = {"kind": "ws_edited", "every": 1}


def _deaf(live: Live) -> None:
    live.strike("ws_freeze", 40)
    time.sleep(45)


def _behind(live: Live) -> None:
    live.rules(*_BEHIND, seconds=60)


def _both(live: Live, *, is_restarted: bool = False) -> None:
    live.rules(*_BEHIND)
    live.strike("ws_freeze", 60)
    time.sleep(30)
    if is_restarted:
        live.restart()
    time.sleep(35)


def _late(live: Live) -> None:
    start_ns = time.time_ns()
    span = [start_ns, start_ns + 5 * SECOND_NS]
    absent = [{"kind": "absent", "span": span, "path": path} for path in _PATHS]
    live.rules({"kind": "ws_drop", "every": 1}, *absent, seconds=5)
    live.rules(*absent, seconds=60)


def _closed(live: Live) -> None:
    for _ in range(15):
        live.strike("ws_close", 0)
        time.sleep(2)


FAULTS = (
    Fault("none", lambda live: time.sleep(10)),
    Fault("sockets send nothing for 40 s, not even pongs", _deaf),
    Fault("REST is 40 s behind for a minute", _behind),
    Fault("both at once", _both),
    Fault("connections closed every 2 s for half a minute", _closed),
    Fault("the process is killed", Live.restart),
    Fault("both at once, and a kill in the middle", partial(_both, is_restarted=True)),
    Fault("trades of 5 s are published a minute late, by REST alone", _late),
    Fault("messages of 10 s have another price than REST", lambda live: live.rules(_EDITED, seconds=10)),
)


def measure(folder: Path) -> tuple[str, bool]:
    """Return the table, and whether the suite has lost, doubled or wrongly claimed nothing."""
    with ExitStack() as stack:
        options = ("--exchanges", exchanges_file(folder))
        suite = stack.enter_context(running_suite(folder / "live", *options, DEXORDER_SIM_MARKETS=str(MARKETS)))
        live = Live(suite, folder)
        for peer in live.peers.values():
            stack.callback(peer.kill)
        found = live.run()
    rows = [
        [name, f"{found['dexorder'][place].trades:,}", *(str(each[place]) for each in found.values())]
        for place, (name, _) in enumerate(live.rows)
    ]
    about = " ".join(line for line in (__doc__ or "").strip().splitlines())
    header = ["fault", "trades", *found]
    text = f"## Realtime\n\n{about}\n\nLost / doubled / wrong / claimed but absent.\n\n{markdown(header, rows)}"
    return text, all(each.is_whole for each in found["dexorder"])
