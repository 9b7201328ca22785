"""CPU of the trigger engine for one closed candle of every ticker.

    .venv/bin/python -m bench.cep [--triggers 1000 10000] [--tickers 20]

Ten kinds of triggers in equal numbers, each with thresholds of its own. After 25 candles of every ticker one more is
fed, three times, and the CPU time of the process is measured; a pair is a trigger and a ticker. The limit in the same
run: the same number of calls of a Python function that compares one value.
"""

from __future__ import annotations

import argparse
import random
import time
from bisect import bisect_left

from dexorder_cep import CompiledTrigger, Engine, compile_trigger
from tests.rig import report

MINUTE_NS = 60_000_000_000
WARM_CANDLES = 25
ROUNDS = 3
PAIRS_AIM = 20_000
Row = tuple[int, float, float, float, float, float, float, int]


def pattern(rows: str, define: str, measures: str = "LAST(A.close) AS a", within: str = "") -> str:
    """Return a query with MATCH_RECOGNIZE."""
    return (
        f"SELECT * FROM ohlc MATCH_RECOGNIZE (PARTITION BY ticker ORDER BY ts MEASURES {measures} "
        f"AFTER MATCH SKIP PAST LAST ROW PATTERN ({rows}) {within} DEFINE {define})"
    )


OVER = "OVER (PARTITION BY ticker ORDER BY ts ROWS BETWEEN 19 PRECEDING AND CURRENT ROW)"
WINDOW = "TABLE(TUMBLE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '15' MINUTE))"
KINDS = {
    "threshold": "SELECT * FROM ohlc WHERE close > {high}",
    "two conditions": "SELECT * FROM ohlc WHERE close < {low} AND volume > 5 * (high - low)",
    "three rises": pattern(
        "A B C", "A AS A.close > {low}, B AS B.close > A.close, C AS C.close > B.close AND C.volume > A.volume"
    ),
    "breakout": pattern("A B", "A AS A.close < {high}, B AS B.close > {high}"),
    "dip and rise": pattern(
        "A D+ C",
        "A AS A.close > {mid}, D AS D.close < LAST(D.close, 1) OR (LAST(D.close, 1) IS NULL AND D.close < A.close), "
        "C AS C.close > LAST(D.close)",
    ),
    "dip within 10 minutes": pattern(
        "A D+ C",
        "A AS A.close > {mid}, D AS D.close < A.close, C AS C.close > A.close",
        within="WITHIN INTERVAL '10' MINUTE",
    ),
    "volume spike": pattern("A{{5}} B", "B AS B.volume > 3 * AVG(A.volume) AND B.close > {low}"),
    "above the average of 20": pattern("A{{20}} B", "B AS B.close > AVG(A.close) + {step}"),
    "moving average": f"SELECT ticker FROM (SELECT ticker, close, AVG(close) {OVER} AS ma FROM ohlc) "
    "WHERE close > ma + {step}",
    "15 minute window": f"SELECT ticker, window_end, MAX(high) AS h FROM {WINDOW} "
    "GROUP BY ticker, window_start, window_end HAVING MAX(high) - MIN(low) > {step}",
}


def compiled(kind: str, rng: random.Random) -> CompiledTrigger:
    """Return a trigger of a kind with its own thresholds."""
    text = KINDS[kind].format(
        high=round(rng.uniform(104, 112), 3),
        mid=round(rng.uniform(97, 103), 3),
        low=round(rng.uniform(88, 96), 3),
        step=round(rng.uniform(1, 4), 3),
    )
    return compile_trigger(text, {})


def candles(rng: random.Random, count: int) -> list[Row]:
    """Return a random walk."""
    close, found = 100.0, list[Row]()
    for n in range(count):
        opened, close = close, max(1.0, close + rng.gauss(0, 0.8))
        high, low = max(opened, close) + rng.random(), min(opened, close) - rng.random()
        volume = rng.expovariate(0.1)
        found.append((n * MINUTE_NS, opened, high, low, close, volume, volume * close, rng.randint(0, 100)))
    return found


def measure(kinds: list[str], triggers: int, tickers: int) -> tuple[float, float, float, int]:
    """Return the seconds to compile, CPU of a candle (median, worst), and the number of events."""
    rng = random.Random(25)
    begun = time.process_time()
    made = [compiled(kinds[n % len(kinds)], rng) for n in range(triggers)]
    compiling = time.process_time() - begun
    engine = Engine()
    for n, trigger in enumerate(made):
        engine.add(f"t{n}", 1, trigger, 0)
    walks = {f"T{n}/USDT.SIM": candles(rng, WARM_CANDLES + ROUNDS) for n in range(tickers)}
    for ticker, rows in walks.items():
        engine.feed_candles(ticker, 60, rows[:WARM_CANDLES])
    spent, events = list[float](), 0
    for n in range(WARM_CANDLES, WARM_CANDLES + ROUNDS):
        begun = time.process_time()
        for ticker, rows in walks.items():
            events += len(engine.feed_candles(ticker, 60, [rows[n]]))
        spent.append(time.process_time() - begun)
    return compiling, sorted(spent)[len(spent) // 2], max(spent), events


def measure_alerts(count: int) -> tuple[float, float, int]:
    """Return the CPU seconds of a row that changes no alert of a market and of one that changes a few, and these."""
    engine = Engine()
    for n in range(count):
        engine.add(f"t{n}", 1, compile_trigger(f"close > {50 + 100 * n / count}", {}), 0, ["X/USDT.SIM"])
    step = 100 / count
    quiet, changing, events = list[float](), list[float](), 0
    closes = [*[100.0 + step / 4, 100.0 + step / 2] * 100, *[100.0 + 10 * step, 100.0] * 100]
    for minute, close in enumerate(closes):
        row = (minute * MINUTE_NS, close, close, close, close, 1.0, 1.0, 1)
        begun = time.process_time()
        found = len(engine.feed_candles("X/USDT.SIM", 60, [row]))
        if minute >= 2:
            (quiet if minute < len(closes) // 2 else changing).append(time.process_time() - begun)
            events = max(events, found)
    return sorted(quiet)[len(quiet) // 2], sorted(changing)[len(changing) // 2], events


def search(count: int) -> float:
    """Return the CPU seconds of one binary search among as many thresholds."""
    thresholds = [50 + 100 * n / count for n in range(count)]
    begun = time.process_time()
    for _ in range(1_000):
        bisect_left(thresholds, 100.0)
    return (time.process_time() - begun) / 1_000


def limit(pairs: int) -> float:
    """Return the CPU seconds of one call of a small function for each pair."""
    test = eval("lambda r, T: r[4] > 104.5")  # as a condition is compiled
    row = candles(random.Random(1), 1)[0]
    begun = time.process_time()
    for _ in range(pairs):
        test(row, "X")
    return time.process_time() - begun


def main() -> None:
    """Print a table for the mixture and one for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triggers", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--tickers", type=int, default=20)
    parser.add_argument("--alerts", type=int, default=50_000)
    arguments = parser.parse_args()
    rows = []
    for triggers in arguments.triggers:
        compiling, median, worst, events = measure(list(KINDS), triggers, arguments.tickers)
        pairs = triggers * arguments.tickers
        alone = limit(pairs)
        rows.append(
            report.Row(
                f"{triggers:,} triggers of {len(KINDS)} kinds, {arguments.tickers} tickers, one candle",
                f"{median:.3f} s, worst {worst:.3f} s: {median / pairs * 1e6:.1f} us a pair; {events} events",
                f"{alone:.4f} s",
                f"{median / alone:.0f}",
                f"at most {0.3 * pairs / PAIRS_AIM:.1f} s",
            )
        )
        rows.append(report.Row("their compilation", f"{compiling / triggers * 1e3:.2f} ms a trigger", "", "", ""))
    print(report.table("CPU of a candle; limit: a Python function with one comparison for each pair", rows))
    each = []
    for kind in KINDS:
        _, median, worst, events = measure([kind], 200, arguments.tickers)
        pairs = 200 * arguments.tickers
        each.append(
            report.Row(kind, f"{median / pairs * 1e6:.2f} us a pair, worst {worst / pairs * 1e6:.2f}", "", "", "")
        )
    print(report.table("Each kind alone, 200 triggers", each))
    quiet, changing, events = measure_alerts(arguments.alerts)
    alone = search(arguments.alerts)
    rows = [
        report.Row(
            "a row that changes none", f"{quiet * 1e6:.1f} us", f"{alone * 1e6:.1f} us", f"{quiet / alone:.0f}", ""
        ),
        report.Row(f"a row on which {events} fire", f"{changing * 1e6:.1f} us", f"{alone * 1e6:.1f} us", "", ""),
    ]
    print(report.table(f"{arguments.alerts:,} alerts `close > x` on one market; limit: a binary search", rows))


if __name__ == "__main__":
    main()
