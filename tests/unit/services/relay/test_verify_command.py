"""``dexorder verify`` and ``history`` against a real relay and a real table."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dexorder.cli.app import app
from dexorder.supervisor.state import PartState, SuiteState, write_state
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from tests.unit.services.relay.harness import EARLIER, Suite, page, suite
from tests.unit.services.relay.requests.test_outcome import write_off_grid


async def run(*arguments: str) -> Result:
    """Run a command in a thread, as it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def dexorder(s: Suite, *arguments: str) -> Result:
    return await run(*arguments, "--relay", s.running.address)


async def damaged(s: Suite) -> None:
    """Claim minutes 0 to 10, 8 to 10 as empty. The table has 2 and 9 twice, lacks 5 and has a row off the grid."""
    snapshot_id = s.pipeline.write([0, 1, 2, 2, 3, 4, 6, 7, 9, 9])
    await s.pipeline.report(snapshot_id=snapshot_id, pages=[page(EARLIER, 0, 10, empty=[(8, 10)])])
    write_off_grid(s, 6)


async def test_repair_mends_every_kind_of_fault_and_history_then_ends_ok(tmp_path: Path) -> None:
    span = ("BTC/USDT.SIM", "1m", "--since", "2024-01-01", "--until", "2024-01-01T00:10")
    async with suite(tmp_path) as s:
        ingestor = await s.offering()
        await damaged(s)
        found = await dexorder(s, "history", *span)
        assert found.exit_code == 1 and "rows that it must not have: 2 duplicate, 1 in ranges verified" in found.stderr
        found = await dexorder(s, "verify", *span[:2], "--offline")
        assert found.exit_code == 1 and "4 rows must not be there; repair the table with --repair" in found.stdout
        repair = asyncio.create_task(dexorder(s, "verify", *span[:2], "--repair", "--offline"))
        await ingestor.work(s.pipeline, dispatches=1, holes=[9])
        done = await repair
        assert done.exit_code == 0, done.output
        assert "4 rows removed that the table must not have" in done.stderr
        await s.queued("lost", 5, 6)  # retracted by the first history
        await ingestor.work(s.pipeline, dispatches=1)
        again = await dexorder(s, "history", *span, "--json")
        assert again.exit_code == 0 and '"row_count": 8' in again.stdout, again.output
        assert (await dexorder(s, "verify", *span[:2], "--offline")).exit_code == 0


@pytest.mark.parametrize("arguments", [("verify",), ("verify", "--repair"), ("coverage", "--detail")])
async def test_an_unreadable_table_is_named_with_its_cause(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    async with suite(tmp_path) as s:
        await damaged(s)
        for file in (tmp_path / "warehouse").rglob("*.metadata.json"):
            file.unlink()
        command, *options = arguments
        found = await dexorder(s, command, "BTC/USDT.SIM", "1m", *options)
        table = "trading.coverage" if command == "coverage" else "trading.ohlc"
        assert found.exit_code == 1
        assert f"the relay answered: {table} can't be read: " in found.stderr and "metadata.json" in found.stderr


async def test_status_says_which_table_requests_wait_for(tmp_path: Path) -> None:
    async with suite(tmp_path, count_attempts=1) as s:
        await damaged(s)
        for file in (tmp_path / "warehouse").rglob("*.parquet"):
            file.unlink()
        part = PartState(s.running.address, f"grpc://{s.running.address}", pid=os.getpid())
        write_state(tmp_path, SuiteState(os.getpid(), "now", s.running.address, {"relay": part}))
        status = ("status", "--json", "--dir", str(tmp_path))
        assert json.loads((await run(*status)).stdout)["parts"]["relay"]["detail"] == ""
        await s.queued("r", 0, 10)
        async for answer in s.relay.history.WatchProgress(rpb.WatchProgressRequest(request_id="r"), timeout=30):
            if answer.progress.waiting:
                break
        relay = json.loads((await run(*status)).stdout)["parts"]["relay"]
        assert relay["ready"] and relay["detail"].startswith("1 requests wait: trading.ohlc can't be read: ")
        shown = await dexorder(s, "requests", "show", "r")
        assert "waiting: trading.ohlc can't be read: " in shown.stdout
        assert "10/10, waiting" in (await dexorder(s, "requests", "list")).stdout
