"""Decoding of joined records: what ``decode`` does, for many small pages at once. Runs in Spark's workers.

Their rows become columns together. If that fails, each page is decoded alone, so that only those at fault are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dexorder_common.kafka.joined_record import headers_of, split_records
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import PageHeaders
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb
from dexorder_spark.pipeline.controls import (
    PAGE_KIND,
    REFUSED_KIND,
    ControlRow,
    Rules,
    control_of,
    counted,
    decode_page,
    reason_of,
    well_formed,
)
from dexorder_spark.tables.table import PageTable

Take = Callable[[pa.RecordBatch], None]


def decode_joined(
    table: PageTable, record: dict[str, Any], take: Take, take_many: Take, rules: Rules
) -> list[ControlRow]:
    """Return the control rows of a joined record. Pass the rows of one good page to ``take``, of many to ``take_many``.

    A page that is refused has a row that names it; a record that cannot be read at all has one row.
    """
    try:
        if table.decode_joined is None:
            raise InvalidRequest(f"topic {table.topic} does not take joined records")
        parts = split_records(dict(record["headers"] or ()), record["payload"])
    except Exception as error:
        return [{"kind": REFUSED_KIND, "control": {"reason": reason_of(error)}}]
    rows: list[ControlRow] = []
    good: list[tuple[PageHeaders, bytes, dict[str, Any]]] = []
    for number, part in enumerate(parts):
        place = (record["partition"], record["offset"], number)
        found = _checked(table, part, place, rules)
        if isinstance(found, PageHeaders):
            good.append((found, part.value, control_of(found) | {"part": number}))
        else:
            rows.append(found)
    return rows + _decode_all(table, good, take, take_many)


def _checked(table: PageTable, part: pb.JoinedRecord, place: tuple[int, ...], rules: Rules) -> PageHeaders | ControlRow:
    """Return the headers of a page, or the row that refuses it."""
    named, refusal = {"part": place[-1]}, rules.refusals.get(place)
    try:
        headers = well_formed(table, headers_of(part), refusal, rules)
    except Exception as error:
        return {"kind": REFUSED_KIND, "control": named | {"reason": reason_of(error)}}
    if refusal:
        return {"kind": REFUSED_KIND, "control": control_of(headers) | named | {"reason": refusal.reason}}
    return headers


def _decode_all(
    table: PageTable, good: Sequence[tuple[PageHeaders, bytes, dict[str, Any]]], take: Take, take_many: Take
) -> list[ControlRow]:
    assert table.decode_joined is not None
    if not good:
        return []
    try:
        rows, counts = table.decode_joined([each[0] for each in good], [each[1] for each in good])
    except Exception:
        return [decode_page(table, headers, payload, control, take) for headers, payload, control in good]
    if rows.num_rows:
        take_many(rows)
    times = rows.column(table.time_column).view(pa.int64()).to_numpy()
    return [
        {"kind": PAGE_KIND, "control": control | found}
        for (_, _, control), found in zip(good, _summaries(times, counts), strict=True)
    ]


def _summaries(times_us: Any, counts: Any) -> Iterator[dict[str, Any]]:
    ends = np.cumsum(counts)
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        part = times_us[end - count : end]
        yield counted(count, int(part.min()), int(part.max())) if count else {"rows": 0}
