"""Between Kafka and Iceberg everything is killed, cut, restarted and put back; each time the whole tables are compared.

`kill -9` of udsource fifty times, of the driver fifty times, as many streams cut in the middle of a message; both at
once, Kafka restarted, fresh and older checkpoints a few times each. And a plain reader of source.v1 beside it, whose
udsource is killed fifty times between read and ack.
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

from tests.soak.controlled_kafka import ControlledKafka
from tests.soak.plain_reads import PlainReads
from tests.soak.report import say
from tests.soak.source_faults import groups
from tests.soak.source_rig import Rig

KILLS = int(os.environ.get("DEXORDER_SOAK_SOURCE_KILLS", "50"))
# The limit ends a campaign that hangs; it is no measure of how long one takes.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(KILLS * 300 + 1_800)]


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledKafka]:
    kafka = ControlledKafka(tmp_path_factory.mktemp("broker"))
    yield kafka
    kafka.broker.stop()


def test_nothing_that_dies_between_kafka_and_iceberg_loses_or_doubles_a_row(
    broker: ControlledKafka, tmp_path: Path
) -> None:
    started_s = time.monotonic()
    cases = groups()
    turns = [
        case for share, tallies in cases for case in itertools.islice(itertools.cycle(tallies), max(1, KILLS // share))
    ]
    random.shuffle(turns)
    try:
        with Rig(broker, tmp_path, maintenance_seconds=5.0) as rig:
            for number, case in enumerate(turns, 1):
                print(f"{number} of {len(turns)}: {case.name}", flush=True)
                case.go(rig)
    finally:
        say(
            "Killed, cut and put back between Kafka and Iceberg",
            ["what dies", "times", "rows in the table at the last", "lost", "doubled", "wrong"],
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
    say(
        "udsource killed between read and ack of a plain reader",
        ["kills", "records", "missed", "repeats of unacked", "of acked and not committed", "of committed"],
        [KILLS, f"{reads.written:,}", 0, f"{reads.unacked:,}", f"{reads.uncommitted:,}", 0],
        since_s=started_s,
    )


async def lives(reads: PlainReads) -> None:
    for number in range(KILLS):
        await reads.live_and_die(commits=number % 2 == 0)
    await reads.live_and_end()
