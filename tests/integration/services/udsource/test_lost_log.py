"""A partition whose leader lost records of the same topic, as after an unclean election, under queries of Spark."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dexorder_common.model.errors import Unavailable
from dexorder_spark.source.client import SourceBroken, SourceClient
from dexorder_spark.source.options import SourceOptions
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.server import serve
from tests.integration.services.common.kafka.group_reader import create_placed, write
from tests.rig.processes import until
from tests.two_brokers import TwoBrokers
from tests.unit.spark.source.engine import Checkpoint, Engine, Row

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
Poll = Callable[..., Any]


@asynccontextmanager
async def source_of(brokers: TwoBrokers, topic: str) -> AsyncIterator[str]:
    """Run udsource and return its address."""
    settings = UdsourceSettings(
        kafka=brokers.bootstrap,
        topic=topic,
        group=topic,
        listen="127.0.0.1:0",
        metrics_listen="",
        socket=None,
        poll_seconds=0.2,
    )
    async with serve(settings) as running:
        yield running.address


def lose(brokers: TwoBrokers, topic: str, count: int) -> None:
    """Empty the log of partition 1, which is the second broker's, and write records.

    Called in the main thread, although it blocks: a broker ends with the thread that started it.
    """
    brokers.kill_second()
    shutil.rmtree(brokers.second_data / f"{topic}-1")
    brokers.start_second()
    write(brokers.bootstrap, topic, 1, count)


def wait_for_ends(address: str, ends: dict[int, int]) -> None:
    """Wait until the source knows the ends of the logs: its connections may still be those to the broker of before."""
    client = SourceClient(address)

    def has_ends() -> bool:
        try:
            return client.state().ends == ends
        except Unavailable:  # a broker that has just started may be slow to answer
            return False

    until(has_ends)


def run(address: str, checkpoint: Checkpoint, **options: Any) -> list[Row]:
    rows: list[Row] = []
    Engine(SourceOptions(address, retry_seconds=30, **options), checkpoint, rows.extend).run_to_idle()
    return rows


def places(rows: list[Row]) -> set[tuple[int, int]]:
    return {(row["partition"], row["offset"]) for row in rows}


def all_of(*counts: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition, count in enumerate(counts) for offset in range(count)}


@pytest.mark.parametrize(
    "count", [pytest.param(50, id="shorter"), pytest.param(300, id="longer", marks=pytest.mark.nightly)]
)
async def test_log_that_lost_records_fails_a_query_or_is_read_from_its_beginning(
    two_brokers: TwoBrokers, count: int
) -> None:
    topic = create_placed(two_brokers.bootstrap, f"spark-lost-{count}", [1, 2])
    for partition in range(2):
        write(two_brokers.bootstrap, topic, partition, 100)
    checkpoint = Checkpoint()
    async with source_of(two_brokers, topic) as address:
        assert places(await asyncio.to_thread(run, address, checkpoint)) == all_of(100, 100)
        lose(two_brokers, topic, count)
        await asyncio.to_thread(wait_for_ends, address, {0: 100, 1: count})
        reason = "truncation detected" if count > 100 else "partition 1 ends at offset 50, before offset 100"
        with pytest.raises(SourceBroken, match=f"{reason}.*failOnDataLoss=false"):
            await asyncio.to_thread(run, address, checkpoint)
        rows = await asyncio.to_thread(run, address, checkpoint, fail_on_data_loss=False)
        assert places(rows) == {(1, offset) for offset in range(count)}, "the other partition is not read again"
        assert await asyncio.to_thread(run, address, checkpoint) == []


async def test_query_that_starts_at_a_commit_notices_that_the_log_was_lost(two_brokers: TwoBrokers) -> None:
    topic = create_placed(two_brokers.bootstrap, "spark-lost-commit", [1, 2])
    write(two_brokers.bootstrap, topic, 1, 100)
    async with source_of(two_brokers, topic) as address:
        await asyncio.to_thread(run, address, Checkpoint(), group="g", ack=True)
        lose(two_brokers, topic, 300)
        await asyncio.to_thread(wait_for_ends, address, {0: 0, 1: 300})
        with pytest.raises(SourceBroken, match="truncation detected"):
            await asyncio.to_thread(run, address, Checkpoint(), group="g", ack=True)
        rows = await asyncio.to_thread(run, address, Checkpoint(), group="g", ack=True, fail_on_data_loss=False)
        assert places(rows) == all_of(0, 300)


@pytest.mark.smoke  # two brokers
async def test_leaders_that_change_and_lose_nothing_do_not_stop_a_query(two_brokers: TwoBrokers) -> None:
    topic = create_placed(two_brokers.bootstrap, "spark-lost-nothing", [1, 2])
    checkpoint = Checkpoint()
    async with source_of(two_brokers, topic) as address:
        for number in (1, 2):
            if number > 1:
                two_brokers.kill_second()
                two_brokers.start_second()
            write(two_brokers.bootstrap, topic, 1, 100)
            await asyncio.to_thread(wait_for_ends, address, {0: 0, 1: 100 * number})
            rows = await asyncio.to_thread(run, address, checkpoint, max_records=30)
            assert [row["offset"] for row in rows] == list(range(100 * number - 100, 100 * number))
    assert checkpoint.offsets[-1]["epochs"]["1"] > checkpoint.offsets[0]["epochs"]["1"]
