"""Rows of a UDF as events of a user, through a real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from dexorder_common.model.udf import UdfOutput
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from dexorder_spark.udf.rows import rows_of
from dexorder_spark.udf.sinks import Refused, Sinks
from dexorder_udf.points import Point
from tests.integration.events.rig import Rig

NOW_NS = 1_700_000_000 * 10**9


def rows(count: int) -> list[dict[str, Any]]:
    tags = {"ticker": "BTC/USDT.SIM"}
    return rows_of([Point(NOW_NS + n, tags, {"mean": float(n)}, "ohlc", ("ticker",)) for n in range(count)], 0)


async def send(rig: Rig, user: str, name: str, found: Sequence[dict[str, Any]]) -> list[Refused]:
    sinks = Sinks(name, UdfOutput(user_id=user, title="Average"), rig.gateway.address)
    try:
        return await asyncio.to_thread(sinks.send, found)
    finally:
        sinks.close()


async def test_each_row_reaches_the_user_once_though_it_is_sent_again(rig: Rig) -> None:
    user, name = rig.user(), rig.name().replace("-", "_")
    async with rig.session(user) as session:
        await send(rig, user, name, rows(2))
        await send(rig, user, name, rows(3))  # as after a crash
        heard = [(await session.next()).event for _ in range(3)]
        await session.hears_nothing()
    assert [each.event_id for each in heard] == [f"udf-{name}-{n}" for n in range(3)]
    assert {(each.event_type, each.delivery.priority) for each in heard} == {(given.ALERT_TRIGGERED, given.NORMAL)}
    assert json.loads(heard[2].payload) == {
        "alert_id": f"udf:{name}",
        "symbol": "BTC/USDT.SIM",
        "condition": "Average: mean 2.0",
        "timestamp": str(NOW_NS // 10**6),
    }


async def test_events_of_a_user_that_cannot_be_are_refused_and_stop_nothing(rig: Rig) -> None:
    refused = await send(rig, "x" * 2_000, "average", rows(3))
    assert [each.row["sequence"] for each in refused] == [0, 1, 2]
    assert "user_id" in refused[0].reason
