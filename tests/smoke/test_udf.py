"""A moving average of live trades through the whole chain, while the Spark driver is killed."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dexorder import Client
from dexorder.rows.catalog import open_catalog
from dexorder_common.lake.tables import udf_table
from dexorder_common.model.times import from_datetime
from tests.rig.suite import Suite

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]

TICKER = "BTC/USDT.SIM"
SIZE = 5


def udf_rows(client: Client) -> list[dict[str, Any]]:
    """Return the rows of the UDF, by sequence."""
    name, properties = client.catalog()
    table = udf_table("mean").load(open_catalog(name, properties))
    rows = table.scan().to_arrow().to_pylist() if table else []
    return sorted(rows, key=lambda row: int(row["sequence"]))


@pytest.mark.nightly
def test_a_moving_average_of_live_trades_is_that_of_the_table(smoke_suite: Suite) -> None:
    suite, since_ns = smoke_suite, time.time_ns()
    with Client(suite.relay, patience_seconds=60) as client:
        words = (
            f"start mean --program average --table ticks --ticker {TICKER} --option size={SIZE} --option field=price"
        )
        started = suite.dexorder("udf", *words.split(), "--timeout", "120", "--json")
        assert json.loads(started.stdout)["udf"]["state"] == "RUNNING", started
        name = client.start_realtime(TICKER)
        for rows in (10, 30):
            wait_for(client, rows)
            suite.kill("spark")
            suite.wait_ready()
        wait_for(client, 50)
        client.stop_realtime(name)
        settled = -1
        while settled != (settled := len(udf_rows(client))):
            time.sleep(8)
        client.stop_udf("mean")
        found = udf_rows(client)
        trades = client.trades(TICKER, since_ns // 10**9 - 600).to_pylist()
    trades.sort(key=lambda trade: int(trade["trade_id"]))
    assert [row["sequence"] for row in found] == list(range(len(found)))
    fed = trades[len(trades) - len(found) - SIZE + 1 :]
    prices = [trade["price"] for trade in fed]
    expected = [
        (from_datetime(trade["time"]), pytest.approx(sum(prices[number : number + SIZE]) / SIZE))
        for number, trade in enumerate(fed[SIZE - 1 :])
    ]
    assert [(from_datetime(row["time"]), dict(row["doubles"])["mean"]) for row in found] == expected


def wait_for(client: Client, rows: int) -> None:
    deadline = time.monotonic() + 240
    while len(udf_rows(client)) < rows:
        assert time.monotonic() < deadline, client.list_udfs()
        time.sleep(1)
