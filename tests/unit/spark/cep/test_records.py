"""Which records reach the triggers: closed realtime candles and trades of watched series, each once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.source.v1 import source_pb2
from dexorder_spark.cep.records import rows_of, without_repeated
from dexorder_spark.records.selection import Record, select
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import DAY, MINUTE_NS, TICKER, control, page
from tests.rig.dispatches import dispatch_id, issued, realtime_dispatch_id

NOW_NS = DAY + 10 * MINUTE_NS
REALTIME = realtime_dispatch_id(1, TICKER)


def record(**changes: Any) -> Record:
    """Return a record of two closed candles of a realtime dispatch, with other headers."""
    headers = replace(control(0, 2), dispatch_id=REALTIME)
    payload, _ = page(headers)
    return Record(CANDLES, replace(headers, **changes), payload, NOW_NS)


def rows(each: Record) -> list[tuple[object, ...]] | None:
    return rows_of(each, issued([each.headers.dispatch_id]), now_ns=NOW_NS)


def test_closed_candles_of_a_realtime_dispatch_are_rows_by_open_time() -> None:
    found = rows(record())
    assert found is not None
    assert found[0] == (DAY, 100.0, 102.0, 99.0, 101.0, 3.5, 350.0, 7)
    assert [row[0] for row in found] == [DAY, DAY + MINUTE_NS]


def test_history_revisions_and_records_that_do_not_count_are_no_rows() -> None:
    assert rows(record(dispatch_id=dispatch_id(1, TICKER))) is None
    assert rows(record(amends=True)) is None
    assert rows(record(dispatch_id="7-" + "0" * 16)) is None
    assert rows(record(dispatch_id=realtime_dispatch_id(1, "ETH/USDT.SIM"))) is None
    assert rows_of(record(), issued([REALTIME]), now_ns=DAY - 10 * MINUTE_NS) is None
    assert rows(Record(CANDLES, replace(record().headers, dispatch_id="7-" + "0" * 16), b"\xff", NOW_NS)) is None
    with pytest.raises(InvalidRequest, match=r"a record of candles of BTC.* can't be read"):
        rows(Record(CANDLES, record().headers, b"\xff", NOW_NS))


def test_only_watched_series_are_decoded_and_malformed_headers_are_left_to_the_table() -> None:
    good = record().headers.encode()
    results = [
        source_pb2.ReadResponse.Result(payload=b"1", headers=good),
        source_pb2.ReadResponse.Result(payload=b"2", headers=good | {"dx-period-s": "300"}),
        source_pb2.ReadResponse.Result(payload=b"3", headers=good | {"dx-kind": "final"}),
        source_pb2.ReadResponse.Result(payload=b"4", headers={}),
    ]
    assert [each.payload for each in select(CANDLES, results, {Series(TICKER, 60)}.__contains__)] == [b"1"]


def test_a_trade_that_comes_again_is_left_out_and_old_ids_are_forgotten() -> None:
    recent: dict[str, int] = {}
    first, second = (DAY, "1", 5.0, 1.0, "buy"), (DAY, "2", 5.0, 1.0, None)
    assert without_repeated([first, second], recent) == [first, second]
    assert without_repeated([second], recent) == []
    later = (DAY + 2 * SECOND_NS, "3", 5.0, 1.0, "buy")
    assert without_repeated([later], recent) == [later]
    assert recent == {"3": DAY + 2 * SECOND_NS}
