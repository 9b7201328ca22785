"""Trades replayed while sockets fail, and while parts are killed or Kafka is stopped: the tables equal the files.

`DEXORDER_SOAK_TRADES` names files of trades with consecutive ids, ``FILE=SYMBOL`` with commas between; by default they
are written from the synthetic markets.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.nightly import realtime_seam, trade_replay
from tests.nightly.synthetic_trades import write_trades
from tests.nightly.trade_replay import Every, Recording, Replay
from tests.rig.report import print_campaign

FILES = os.environ.get("DEXORDER_SOAK_TRADES", "")
SPEED = float(os.environ.get("DEXORDER_SOAK_TRADES_SPEED", "360"))
STRIKES = int(os.environ.get("DEXORDER_SOAK_TRADES_STRIKES", "100"))
KILLS = int(os.environ.get("DEXORDER_SOAK_TRADES_KILLS", "5"))
OUTAGE_SECONDS = float(os.environ.get("DEXORDER_SOAK_KAFKA_SECONDS", "60"))
INGESTOR_SECONDS = 10.0
HOURS = 60
MARKETS = int(os.environ.get("DEXORDER_SOAK_SEAM_MARKETS", "20"))
SEAM_SECONDS = float(os.environ.get("DEXORDER_SOAK_SEAM_SECONDS", "420"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(7_200)]


def faults(replay: Replay, name: str) -> list[Every]:
    """Return what happens besides the faults of sockets."""
    if name == "ingestor":
        return [trade_replay.kills(replay, ("ingestor",), max(1, int(replay.seconds / INGESTOR_SECONDS)))]
    if name == "parts":
        return [trade_replay.kills(replay, trade_replay.KILLED, KILLS)]
    return [trade_replay.outage(replay, OUTAGE_SECONDS)] if name == "kafka" else []


@pytest.mark.parametrize("name", ["sockets", "ingestor", "parts", "kafka"])
def test_tables_equal_the_recorded_trades(name: str, tmp_path: Path) -> None:
    if FILES:
        given = (each.rpartition("=") for each in FILES.split(","))
        recordings = [Recording(Path(file), symbol) for file, _, symbol in given]
    else:
        recordings = [Recording(write_trades(tmp_path / "trades.parquet", "XMR/USD", hours=HOURS), "XMR/USD")]
    began_s = time.monotonic()
    with trade_replay.replaying(tmp_path / "suite", recordings, SPEED) as replay:
        replay.start()
        running = [trade_replay.strikes(replay, STRIKES), *faults(replay, name)]
        for each in running:
            each.start()
        time.sleep(replay.seconds)
        done = [each.finish() for each in running]
        replay.suite.wait_ready()
        settled_s = replay.wait_until_stored()
        found = replay.check()
        stats: dict[str, object] = {}
        with suppress(OSError):
            stats = replay.exchange("/sim/stats").get("faults", {})
    print_campaign(
        f"Trades replayed at {SPEED:g} times their speed, {name}: 0 lost, 0 doubled, 0 candles differ",
        ["market", "trades", "candles", "faults of all sockets", f"{name}", "stored after the end"],
        *(
            [each.symbol, f"{trades:,}", f"{total:,}", done[0], sum(done[1:]), f"{settled_s:.1f} s"]
            for each, trades, total in found
        ),
        since_s=began_s,
    )
    print(f"Faults of messages and sockets: {stats}")


def test_history_and_realtime_meet_without_a_missing_or_doubled_candle(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with realtime_seam.running(tmp_path / "suite", MARKETS) as seam:
        seam.start()
        time.sleep(SEAM_SECONDS)
        found = seam.check()
    print_campaign(
        f"History and realtime of {MARKETS} markets at once: 0 candles missing, doubled or different",
        ["period", "candles of history", "candles of realtime"],
        *([period, f"{before:,}", f"{after:,}"] for period, (before, after) in found.items()),
        since_s=began_s,
    )
