"""Campaign: the triggers' process is killed at random and at the three points of a batch, over many triggers.

A run without kills, in this process, says which events there must be. Every one must come, by its id once and with the
same content each time, and no other.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from dexorder_common.lake.market_rows import Row
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as pb
from dexorder_spark.cep.evaluator import Evaluator, RegistrationChanges
from dexorder_spark.cep.relay import decode_change
from tests.fakes.trigger_rig import MINUTE_NS, Rig, TriggerRelay, candles_of, rig

TICKERS = ("BTC/USDT.SIM", "ETH/USDT.SIM", "SOL/USDT.SIM")
POINTS = ("die_before_journal", "die_after_journal", "die_during_publish")
PATTERN = """SELECT * FROM ohlc MATCH_RECOGNIZE (
  PARTITION BY ticker ORDER BY ts
  MEASURES A.`close` AS first_close, LAST(B.`close`) AS low, C.`close` AS last_close
  ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
  PATTERN (A B+ C) WITHIN INTERVAL '30' MINUTE
  DEFINE A AS A.`close` > {level}, B AS B.`close` < A.`close`, C AS C.`close` > A.`close`)"""


@dataclass(frozen=True)
class Outcome:
    """Result of a campaign."""

    kills: int
    events: int
    deliveries: int
    lost: int
    new: int
    changed: int

    def __str__(self) -> str:
        return (
            f"{self.kills} kills; {self.events:,} events, {self.deliveries:,} deliveries; "
            f"{self.lost} lost, {self.new} new, {self.changed} with another content"
        )


def campaign(folder: Path, *, triggers: int, kills: int, minutes: int, seed: int) -> Outcome:
    """Run with random kills and, every fourth time, one at a point of a batch; then to the end without."""
    chance = random.Random(seed)
    walks = {ticker: candles_of(ticker, minutes, seed=seed) for ticker in TICKERS}
    done = 0
    with rig(folder) as running:
        register(running.relay, triggers)
        running.start()
        running.wait_applied(triggers, 300)
        produced = 0
        while done < kills:
            until = min(minutes, 1 + (done + 1) * minutes // kills)
            produce(running, walks, produced, until)
            produced = until
            if done % 4 == 3:
                point = POINTS[done // 4 % len(POINTS)]
                process = running.start(f"{point}:{chance.randint(1, 2)}", processes=chance.randint(1, 3))
                assert process.wait(600) == -signal.SIGKILL
            else:
                if running.process is None:
                    running.start(processes=chance.randint(1, 3))
                _until_busy(running, chance)
                running.kill()
            done += 1
        produce(running, walks, produced, minutes)
        running.start()
        wanted = expected(running.relay, walks)
        running.wait(lambda: running.relay.events.keys() >= wanted.keys(), 900)
        time.sleep(2)  # for what must not come
        running.kill()
        found = running.relay.events
        changed = running.relay.renamed | {name for name in wanted.keys() & found if wanted[name] != found[name]}
        lost, new = wanted.keys() - found, found.keys() - wanted
        return Outcome(done, len(found), running.relay.deliveries.total(), len(lost), len(new), len(changed))


def _until_busy(running: Rig, chance: random.Random) -> None:
    """Wait until the process reports, or for a part of its start, then a random part of a batch."""
    before = running.relay.deliveries.total()
    deadline = time.monotonic() + (chance.uniform(0.2, 3) if chance.random() < 0.2 else 60)
    while running.relay.deliveries.total() == before and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.2))


def register(relay: TriggerRelay, count: int) -> None:
    """Register plain conditions, each fourth one a pattern, at levels around the walks."""
    for number in range(count):
        level = 80 + number % 40
        if number % 4 == 3:
            relay.register(f"t{number}", PATTERN.format(level=level), TICKERS)
        else:
            sql = f"SELECT ticker, `close`, volume FROM ohlc WHERE `close` > {level}"
            relay.register(f"t{number}", sql, TICKERS, fire="level" if number % 4 == 0 else "edge")


def produce(running: Rig, walks: dict[str, list[Candle]], first: int, last: int) -> None:
    """Append the candles of minutes [first, last), one a record."""
    for minute in range(first, last):
        for ticker, candles in walks.items():
            running.produce(ticker, candles[minute : minute + 1])


def expected(relay: TriggerRelay, walks: dict[str, list[Candle]]) -> dict[str, bytes]:
    """Return the events of a run that nobody disturbs, by id."""
    evaluator = Evaluator()
    changes = [decode_change(each) for each in relay.changes]
    evaluator.apply(RegistrationChanges(changes, Cursor("rig", len(changes))))
    for ticker, candles in walks.items():
        for each in candles:
            row: Row = tuple(each)
            span = TimeRange(each.open_ns, each.open_ns + MINUTE_NS)
            evaluator.feed(Series(ticker, 60), [row], span, span.end_ns)
    events = (pb.ReportedTriggerEvent.FromString(data) for data in evaluator.finish({}).events)
    return {each.event_id: each.SerializeToString(deterministic=True) for each in events}


def check(outcome: Outcome) -> None:
    print(outcome)
    assert (outcome.lost, outcome.new, outcome.changed) == (0, 0, 0)
    assert outcome.deliveries > outcome.events, "nothing was published again: the kills hit nothing"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_eight_kills_over_100_triggers_lose_and_double_nothing(tmp_path: Path) -> None:
    check(campaign(tmp_path, triggers=100, kills=8, minutes=60, seed=1))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_fifty_kills_over_1000_triggers_lose_and_double_nothing(tmp_path: Path) -> None:
    check(campaign(tmp_path, triggers=1_000, kills=50, minutes=200, seed=2))
