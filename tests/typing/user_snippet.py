"""A user's program, which mypy checks as part of `make check`; it is not run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import assert_type

from dexorder import AsyncClient, Client, HistoryError, HistoryRequest, Notification, Progress, Rows, make_request
from dexorder.client.live import Realtime
from dexorder.client.udfs import Udfs
from dexorder_common.model.coverage import Coverage
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.history import RequestRecord
from dexorder_common.model.triggers import RegisteredTrigger


def blocking() -> None:
    def on_progress(now: Progress) -> None:
        print(now.settled_periods, now.expected_periods)

    with Client("127.0.0.1:50051") as client:
        rows = client.history("BTC/USDT.SIM", "1h", dt.date(2024, 1, 1), "now", on_progress=on_progress)
        assert_type(rows, Rows)
        assert_type(client.history(["BTC/USDT.SIM", "ETH/USDT.SIM"], 3600, "-30d", parallel=4), Rows)
        assert_type(client.notifications("RESPONSE:me", after=Cursor("epoch", 7)), Iterator[Notification])
        assert_type(client.coverage("BTC/USDT.SIM", "1h"), Coverage)
        assert_type(client.list_requests(limit=3), list[RequestRecord])
        request = make_request("mine", "BTC/USDT.SIM", "1h", "2024-01-01")
        assert_type(request, HistoryRequest)
        assert_type(client.submit(request), str)
        assert_type(client.requests.submit(request), str)
        assert_type(client.realtime.list(), Realtime)
        assert_type(client.triggers.list(), list[RegisteredTrigger])
        assert_type(client.rows.stored("BTC/USDT.SIM", "1h", "-1d"), Rows)
        client.series.coverage("BTC/USDT.SIM")  # type: ignore[call-arg]  # period is required
        client.history("BTC/USDT.SIM", "1h")  # type: ignore[call-arg]  # since is required
        client.history(7, "1h", "-1d")  # type: ignore[arg-type]
        client.history("BTC/USDT.SIM", "1h", "-1d", limit="7")  # type: ignore[arg-type]


async def asynchronous() -> None:
    async with AsyncClient() as client:
        assert_type(await client.history("BTC/USDT.SIM", "1h", "-1d"), Rows)
        assert_type(await client.udfs.list(), Udfs)
        assert_type(await client.list_udfs(), Udfs)
        async for notification in client.notifications("REVISED:BTC/USDT.SIM"):
            assert_type(notification, Notification)
    try:
        pass
    except HistoryError as error:
        assert_type(error.record, RequestRecord)
