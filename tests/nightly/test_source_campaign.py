"""Kills, cuts, restarts and lost offsets between Kafka and Iceberg; the whole tables are compared after each.

`kill -9` of udsource and of the driver fifty times each, and as many streams cut in the middle of a message; both
processes killed at once, Kafka restarted, the group's offsets lost a few times each. Another test kills the driver
fifty times while a second driver and a foreign writer fill the same table. A third kills the udsource of a plain
reader fifty times between read and ack.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.plain_reads import PlainReads
from tests.nightly.source_faults import driver_deaths, groups
from tests.nightly.source_rig import Rig
from tests.rig.report import print_campaign

KILLS = int(os.environ.get("DEXORDER_SOAK_SOURCE_KILLS", "50"))
# The limit ends a campaign that hangs; it does not measure the duration of one.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(KILLS * 300 + 1_800)]


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledKafka]:
    kafka = ControlledKafka(tmp_path_factory.mktemp("broker"))
    yield kafka
    kafka.broker.stop()


@pytest.mark.parametrize("crowded", [False, True], ids=["one driver", "two drivers and a foreign writer"])
def test_no_death_between_kafka_and_iceberg_loses_or_duplicates_a_row(
    broker: ControlledKafka, tmp_path: Path, crowded: bool
) -> None:
    started_s = time.monotonic()
    cases = driver_deaths() if crowded else groups()
    order = [
        case for share, tallies in cases for case in itertools.islice(itertools.cycle(tallies), max(1, KILLS // share))
    ]
    random.shuffle(order)
    try:
        with Rig(broker, tmp_path, maintenance_seconds=5.0, crowded=crowded) as rig:
            for number, case in enumerate(order, 1):
                print(f"{number} of {len(order)}: {case.name}", flush=True)
                case.go(rig)
    finally:
        print_campaign(
            f"Faults between Kafka and Iceberg, {'two drivers and a foreign writer' if crowded else 'one driver'}",
            ["fault", "times", "rows in the table at the end", "lost", "duplicated", "wrong"],
            *(
                [case.name, case.times, f"{case.rows:,}", case.lost, case.doubled, case.wrong]
                for _, tallies in cases
                for case in tallies
                if case.times
            ),
            since_s=started_s,
        )


def test_a_plain_reader_misses_nothing_when_udsource_is_killed(broker: ControlledKafka, tmp_path: Path) -> None:
    started_s = time.monotonic()
    with PlainReads(broker.address, tmp_path) as reads:
        asyncio.run(lives(reads))
    print_campaign(
        "udsource killed between read and ack of a plain reader",
        ["kills", "records", "missed", "repeats of unacked", "of acked and not committed", "of committed"],
        [KILLS, f"{reads.written:,}", 0, f"{reads.unacked:,}", f"{reads.uncommitted:,}", 0],
        since_s=started_s,
    )


async def lives(reads: PlainReads) -> None:
    for number in range(KILLS):
        await reads.live_and_die(commits=number % 2 == 0)
    await reads.live_and_end()
