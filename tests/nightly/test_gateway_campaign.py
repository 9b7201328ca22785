"""Gateways of one group: a hundred joins and leaves, fifty kills of one of two, outages of Kafka for a minute."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly import gateway_life
from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.fleet import SESSION_TIMEOUT_MS, Fleet
from tests.nightly.gateway_life import Outage
from tests.nightly.numbered import Ledger
from tests.rig.report import median_and_worst, print_campaign

CHANGES = int(os.environ.get("DEXORDER_SOAK_GATEWAY_CHANGES", "100"))
KILLS = int(os.environ.get("DEXORDER_SOAK_GATEWAY_KILLS", "50"))
SECONDS = float(os.environ.get("DEXORDER_SOAK_GATEWAY_OUTAGE_SECONDS", "60"))
FIGURES = ["records", "skipped", "repeats of unacked", "of acked too late to be committed", "of acked and committed"]
PATIENT = {"subscription_timeout_seconds": 2 * SECONDS}
"""On a busy machine callers may pause for seconds; that must not end a subscription during an outage."""
pytestmark = [pytest.mark.soak, pytest.mark.timeout(CHANGES * 30 + KILLS * 60 + SECONDS * 2 + 900)]


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledKafka]:
    kafka = ControlledKafka(tmp_path_factory.mktemp("broker"))
    yield kafka
    kafka.thaw()
    kafka.broker.stop()


def figures(ledger: Ledger) -> list[object]:
    repeats = ledger.repeats()
    return [
        f"{len(ledger.written):,}",
        len(ledger.skipped()),
        repeats.unacked,
        repeats.acked_too_late,
        len(repeats.wrong),
    ]


def test_joins_and_leaves_skip_nothing(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with Fleet(broker.address, tmp_path) as fleet:
        done = gateway_life.joins_and_leaves(fleet, CHANGES)
        fleet.wind_up()
    print_campaign(
        f"{CHANGES} joins and leaves of two to four gateways under load",
        ["joins and leaves", *FIGURES],
        [", ".join(f"{count} {kind}" for kind, count in done.items()), *figures(fleet.ledger)],
        since_s=started_s,
    )
    fleet.check()


def test_kills_of_one_of_two_skip_nothing(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with Fleet(broker.address, tmp_path) as fleet:
        seconds = gateway_life.kills(fleet, KILLS)
        fleet.wind_up()
    print_campaign(
        f"SIGKILL of one of two gateways under load; session_timeout_ms {SESSION_TIMEOUT_MS:,}",
        ["kills", *FIGURES, "the other has read all earlier records"],
        [KILLS, *figures(fleet.ledger), median_and_worst(seconds)],
        since_s=started_s,
    )
    fleet.check()


def test_outages_lose_no_accepted_record(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    fleets = {how: Fleet(broker.address, tmp_path / how, writes=False, **PATIENT) for how in broker.modes}
    rows, beyond = [], {}
    for how, (stop, start) in broker.modes.items():
        with fleets[how] as fleet, gateway_life.writing(fleet) as writers:
            seen = gateway_life.outage(fleet, writers, stop=stop, start=start, seconds=SECONDS)
            writers.stop()
            fleet.wind_up()
        rows.append([how, *row(seen), *accepted(fleet, writers), *figures(fleet.ledger)])
        beyond[how] = seen.beyond_limits()
    print_campaign(
        f"Kafka stopped for {SECONDS:.0f} s under load, two gateways",
        [
            "how",
            "NOT_SERVING after (s)",
            "SERVING after Kafka is back (s)",
            "all written and read again (s)",
            "calls refused",
            "sync OK",
            "of these lost",
            "async OK",
            "of these lost",
            *FIGURES,
        ],
        *rows,
        since_s=started_s,
    )
    for fleet in fleets.values():
        fleet.check()
    assert not any(beyond.values()), beyond


def row(seen: Outage) -> list[str]:
    return [f"{seen.not_serving:.1f}", f"{seen.serving:.1f}", f"{seen.again:.1f}", f"{seen.refused:,}"]


def accepted(fleet: Fleet, writers: gateway_life.Writers) -> list[str]:
    cells = []
    for async_mode in (False, True):
        numbers = writers.accepted(async_mode=async_mode)
        cells += [f"{len(numbers):,}", f"{len(numbers - fleet.ledger.reads.keys()):,}"]
    return cells
