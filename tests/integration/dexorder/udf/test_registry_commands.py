"""``dexorder udf start|list|logs|stop`` against a real relay and the stages of a driver, which run real agents."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from dexorder_common.clock import SystemClock
from dexorder_relay.server import relay
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.udf.programs import Declared
from dexorder_spark.udf.stages import UdfStages
from tests.fakes.source_server import FakeSource, RunningSource
from tests.rig.command import dexorder
from tests.unit.services.relay.harness import catalog_settings, make_tables, settings
from tests.unit.spark.udf.rig import definition

pytestmark = pytest.mark.timeout(180)


class Command:
    """The command, against one relay."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, *words: str) -> tuple[int, str, str]:
        arguments = ["udf", *words, "--relay", self._address]
        result = await asyncio.to_thread(dexorder, *arguments)
        return result.exit_code, result.stdout, result.stderr

    async def listed(self) -> dict[str, dict[str, Any]]:
        code, out, err = await self("list", "--json")
        assert code == 0, err
        return {each["name"]: each for each in json.loads(out)["udfs"]}

    async def until_output(self, text: str, *words: str) -> str:
        """Run it until it prints a text; return the output."""
        for _ in range(300):
            _, out, _ = await self(*words)
            if text in out:
                return out
            await asyncio.sleep(0.2)
        raise AssertionError(f"{words}: {out}")


@pytest_asyncio.fixture
async def command(tmp_path: Path) -> AsyncIterator[Command]:
    """Run a relay, a source without records, and the stages with two entries of the Spark host's file."""
    catalog, stop = catalog_settings(tmp_path), threading.Event()
    make_tables(catalog.load())
    topic = FakeSource(partitions=1)
    source = RunningSource(FakeSource(partitions=1), topics={"dexorder.ticks": topic})
    declared = {
        "sums": Declared(definition(name="sums"), starts=False),
        "refuses": Declared(definition(name="refuses", options={"feld": ("x",)}), starts=False),
    }
    async with relay(settings(tmp_path), catalog, SystemClock()) as running:
        driver = SparkSettings(source=source.address, relay=running.address, batch_seconds=0, listen="127.0.0.1:0")
        thread = threading.Thread(target=UdfStages(driver, catalog, declared, WriterLocks(), stop).run)
        thread.start()
        try:
            with capture_logs():  # relay and driver run in this process, whose stdout is the command's
                yield Command(running.address)
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, 30)
    source.stop()


async def test_a_udf_is_started_listed_followed_and_stopped(command: Command) -> None:
    start = ("start", "mine", "--program", "sums", "--table", "ticks", "--ticker", "BTC/USDT.SIM", "--timeout", "60")
    assert await command(*start) == (0, "mine runs; its output is in trading.udf_mine\n", "")
    mine = (await command.listed())["mine"]
    assert (mine["state"], mine["rows"], mine["restarts"]) == ("RUNNING", 0, 0)
    assert (mine["program"], mine["table"], mine["declared"]) == ("sums", "trading.udf_mine", False)
    assert (mine["input"]["table"], mine["input"]["tickers"]) == ("ticks", ["BTC/USDT.SIM"])
    code, out, _ = await command("list")
    assert code == 0 and out.split()[:2] == ["udf", "state"] and "mine" in out and "running" in out

    logs = await command.until_output("field is price", "logs", "mine")
    assert logs.splitlines()[0].endswith("field is price")

    code, _, err = await command(*start, "--option", "field=amount")
    assert code != 0 and "mine" in err and "stop it first" in err
    assert (await command("stop", "mine"))[0] == 0
    await command.until_output("stopped", "list")
    code, out, _ = await command("start", "mine", "--timeout", "60", "--json")  # the definition that is known
    assert code == 0 and json.loads(out)["udf"]["state"] == "RUNNING"


async def test_failures_are_one_line_with_the_udfs_words_and_an_exit_code(command: Command) -> None:
    code, out, err = await command("start", "refuses", "--timeout", "60")
    assert (code, out) == (1, "")
    assert err == 'dexorder: refuses has failed: has no option "feld"; its options: field\n'
    code, _, err = await command("start", "other", "--program", "nothing", "--timeout", "60")
    assert code == 1 and "program 'nothing' is not in DEXORDER_SPARK_UDFS of the Spark host" in err
    code, out, _ = await command("list")
    assert code == 0 and 'has no option "feld"' in " ".join(out.split())


REFUSED = {
    "UDF 'nothing' is not known": ("stop", "nothing"),
    "UDF 'nowhere' is not known": ("logs", "nowhere"),
    "'Wrong'": ("start", "Wrong"),
    "input.table 'books' is not one of ohlc, ticks": ("start", "x", "--table", "books"),
    "since": ("start", "x", "--since", "yesterday-ish"),
    "7m": ("start", "x", "--period", "7m"),
    "/no/such/file.yaml can't be read": ("start", "x", "--file", "/no/such/file.yaml"),
}


async def test_calls_that_are_refused_name_what_is_wrong(command: Command) -> None:
    for text, words in REFUSED.items():
        code, out, err = await command(*words)
        assert code != 0 and out == "", words
        assert text in err and err.startswith("dexorder: ") and len(err.splitlines()) == 1
