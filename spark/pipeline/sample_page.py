"""A good page of a series that nobody asks for, to try what every page needs."""

from __future__ import annotations

import pyarrow as pa

from services.common.kafka.page_record import page_value
from services.common.model.dispatch_id import new_dispatch_id
from services.common.model.instrument import Series
from services.common.model.page import Candle, Kind, PageHeaders
from services.common.model.time_range import TimeRange
from spark.source.records import RAW

_MINUTE_NS = 60_000_000_000
_CANDLES = 1_000


def sample_page() -> pa.Table:
    """Return the page in the columns of ``RAW``."""
    span = TimeRange(0, _CANDLES * _MINUTE_NS)
    headers = PageHeaders(Kind.PAGE, *Series("SAMPLE/PAGE.NONE", 60), new_dispatch_id(1, "0" * 16), 0, span, 1)
    record = {
        "payload": page_value("sample", [Candle(i * _MINUTE_NS, 1.0, 2.0, 0.5, 1.5, 1.0) for i in range(_CANDLES)]),
        "key": "sample",
        "headers": list(headers.encode().items()),
        "event_time": 0,
        "partition": 0,
        "offset": 0,
    }
    return pa.Table.from_pylist([record], schema=RAW)
