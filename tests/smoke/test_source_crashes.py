"""Faults between Kafka and Iceberg, each once; tests/nightly/test_source_campaign.py is their campaign.

All tests share one driver, which restarts only where its death is tested. It starts during the test of the plain
reader, which needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder_spark.records.fault import Moment
from tests.nightly import source_faults as faults
from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.plain_reads import PlainReads
from tests.nightly.source_faults import Death
from tests.nightly.source_rig import Rig

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]
NIGHTLY = pytest.mark.nightly
"""One kill of each process runs per commit; the others run in the nightly tier."""


@pytest.fixture(scope="module")
def rig(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("source")
    kafka = ControlledKafka(folder / "kafka")
    try:
        with Rig(kafka, folder) as running:
            yield running
    finally:
        kafka.broker.stop()


async def test_plain_reader_misses_nothing_when_udsource_is_killed(rig: Rig, tmp_path: Path) -> None:
    with PlainReads(rig.kafka.address, tmp_path) as reads:
        await reads.live_and_die(commits=True)
        await reads.live_and_end()
    assert reads.unacked, "records were in flight at the kill"


@pytest.mark.parametrize(
    "death",
    [
        pytest.param(faults.stream_in_a_read, id="a stream cut in a message", marks=NIGHTLY),
        pytest.param(faults.source_in_a_read, id="udsource killed in a read", marks=NIGHTLY),
        pytest.param(faults.source_before_the_ack, id="udsource killed between read and ack"),
        pytest.param(faults.kafka_before_the_ack, id="Kafka restarted", marks=NIGHTLY),
        pytest.param(faults.driver_at(Moment.DECODED), id="the driver killed before its commit", marks=NIGHTLY),
        pytest.param(faults.driver_at(Moment.COMMITTING), id="the driver killed in its commit"),
    ],
)
def test_crash_causes_no_loss_and_no_duplicate(rig: Rig, death: Death) -> None:
    faults.outlive(rig, death).fail_if_wrong()


@NIGHTLY
def test_udsource_and_driver_killed_together_continue_where_the_table_ends(rig: Rig) -> None:
    faults.outlive(rig, faults.both_before_the_ack, forget_commits=True).fail_if_wrong()
