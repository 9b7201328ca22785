"""Gateways of one group: a hundred joins and leaves, one of two killed fifty times, Kafka away for a minute."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak import gateway_life
from tests.soak.controlled_kafka import ControlledKafka
from tests.soak.fleet import SESSION_TIMEOUT_MS, Fleet
from tests.soak.gateway_life import Outage
from tests.soak.numbered import Repeats
from tests.soak.report import say, spread

CHANGES = int(os.environ.get("DEXORDER_SOAK_GATEWAY_CHANGES", "100"))
KILLS = int(os.environ.get("DEXORDER_SOAK_GATEWAY_KILLS", "50"))
SECONDS = float(os.environ.get("DEXORDER_SOAK_GATEWAY_OUTAGE_SECONDS", "60"))
REPEATS = ["repeats of unacked", "of acked too late to be committed", "of acked and committed"]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(CHANGES * 30 + KILLS * 60 + SECONDS * 2 + 900)]


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledKafka]:
    kafka = ControlledKafka(tmp_path_factory.mktemp("broker"))
    yield kafka
    kafka.thaw()
    kafka.broker.stop()


def figures(repeats: Repeats) -> list[int]:
    return [repeats.unacked, repeats.acked_too_late, len(repeats.wrong)]


def test_joins_and_leaves_skip_nothing(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with Fleet(broker.address, tmp_path) as fleet:
        done = gateway_life.joins_and_leaves(fleet, CHANGES)
        fleet.finish()
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.items())
    repeats = fleet.ledger.repeats()
    say(
        f"{CHANGES} joins and leaves of two to four gateways under load",
        ["joins and leaves", "records", "skipped", *REPEATS],
        [kinds, f"{len(fleet.ledger.written):,}", 0, *figures(repeats)],
        since_s=started_s,
    )
    assert repeats.acked_too_late == 0, "nobody was killed"


def test_kills_of_one_of_two_skip_nothing(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with Fleet(broker.address, tmp_path) as fleet:
        seconds = gateway_life.kills(fleet, KILLS)
        fleet.finish()
    say(
        f"SIGKILL of one of two gateways under load; session_timeout_ms {SESSION_TIMEOUT_MS:,}",
        ["kills", "records", "skipped", *REPEATS, "the other has read all of before"],
        [KILLS, f"{len(fleet.ledger.written):,}", 0, *figures(fleet.ledger.repeats()), spread(seconds)],
        since_s=started_s,
    )


def test_outages_lose_nothing_that_was_acknowledged(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    rows, beyond = [], {}
    for how, (stop, start) in broker.modes.items():
        with Fleet(broker.address, tmp_path / how, writes=False) as fleet, gateway_life.writing(fleet) as writers:
            seen = gateway_life.outage(fleet, writers, stop=stop, start=start, seconds=SECONDS)
            writers.stop()
            fleet.finish()
        rows.append([how, *row(seen), *lost(fleet, writers), *figures(fleet.ledger.repeats())])
        beyond[how] = seen.beyond_limits()
    say(
        f"Kafka stopped for {SECONDS:.0f} s under load, two gateways",
        ["how", "NOT_SERVING after (s)", "SERVING after Kafka is back (s)", "all written and read again (s)",
         "calls refused", "sync OK", "lost", "async OK", "lost", *REPEATS],
        *rows,
        since_s=started_s,
    )  # fmt: skip
    assert not any(beyond.values()), beyond


def row(seen: Outage) -> list[str]:
    return [f"{seen.not_serving:.1f}", f"{seen.serving:.1f}", f"{seen.again:.1f}", f"{seen.refused:,}"]


def lost(fleet: Fleet, writers: gateway_life.Writers) -> list[str]:
    cells = []
    for async_mode in (False, True):
        accepted = writers.accepted(async_mode=async_mode)
        cells += [f"{len(accepted):,}", f"{len(accepted - fleet.ledger.reads.keys()):,}"]
    return cells
