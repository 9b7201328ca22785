"""Decoding of raw records into rows of a table and control rows. Runs in Spark's workers.

A malformed record never stops the others: every value of a control row is checked before it is put there, and any other
exception refuses the record that caused it. A page is either good as a whole or refused as a whole, with the reason.

Kinds of decoded rows:

    page      ``control``: headers of a good page, its number of rows, and their first and last time
    final     ``control``: headers of a final record, and its result
    refused   ``control``: the reason and the headers, as far as they are known
    file      ``file``: a data file with rows of good pages (``files``)
    letters   ``file``: a data file with refused records (``dead_letters``)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from dexorder_common.kafka.joined_record import is_joined
from dexorder_common.kafka.page_record import parse_response
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_spark.pipeline.controls import (
    DECODED,
    FINAL_KIND,
    MAX_REASON_LENGTH,
    NO_RULES,
    REFUSED_KIND,
    ControlRow,
    Rules,
    control_of,
    decode_page,
    reason_of,
    well_formed,
)
from dexorder_spark.pipeline.joined import decode_joined
from dexorder_spark.records.admission import RecordRefusal
from dexorder_spark.source.records import RAW
from dexorder_spark.tables.table import PageTable

Take: TypeAlias = Callable[[pa.RecordBatch], None]
"""Takes the rows of a page, at least one."""
Refuse: TypeAlias = Callable[[Mapping[str, Any], str], None]
"""Takes a refused record in the columns of ``RAW``, and the reason."""


def decode_batches(
    table: PageTable,
    batches: Iterable[pa.RecordBatch],
    take: Take,
    refuse: Refuse,
    rules: Rules = NO_RULES,
    *,
    take_many: Take | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the control rows of batches of ``RAW`` as batches of ``DECODED``.

    Pass the rows of good pages to ``take``, and refused records, each once, to ``refuse``.

    Args:
        take_many: Takes the rows of many pages of a joined record, in no order.
    """
    for batch in batches:
        rows = []
        for record in batch.select(RAW.names).to_pylist():
            found = _decode(table, record, take, take_many or take, rules)
            if reasons := [row["control"]["reason"] for row in found if row["kind"] == REFUSED_KIND]:
                refuse(record, _one_reason(reasons))
            rows += [row | {"partition": record["partition"], "offset": record["offset"]} for row in found]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def _decode(table: PageTable, record: dict[str, Any], take: Take, take_many: Take, rules: Rules) -> list[ControlRow]:
    if is_joined(dict(record["headers"] or ())):
        return decode_joined(table, record, take, take_many, rules)
    return decode_record(table, record, take, rules)


def _one_reason(reasons: Sequence[str]) -> str:
    """Return the reason of a record in which some pages are refused."""
    if len(reasons) == 1:
        return reasons[0]
    return f"{len(reasons)} of the joined records are refused, the first one: {reasons[0]}"[:MAX_REASON_LENGTH]


def decode_record(table: PageTable, record: dict[str, Any], take: Take, rules: Rules = NO_RULES) -> list[ControlRow]:
    """Return the control rows (kind, control) of a record; pass the rows of a good page to ``take``.

    Any exception that a record's bytes cause refuses that record; raised, it would fail the batch at every attempt.
    """
    refusal = rules.refusals.get((record.get("partition", -1), record.get("offset", -1)))
    try:
        headers = well_formed(table, PageHeaders.parse(dict(record["headers"] or ())), refusal, rules)
    except Exception as error:
        return [{"kind": REFUSED_KIND, "control": {"reason": reason_of(error)}}]
    control = control_of(headers)
    if headers.kind is Kind.FINAL:
        return _final(record["payload"], control, refusal)
    if refusal:
        return [{"kind": REFUSED_KIND, "control": control | {"reason": reason_of(InvalidRequest(refusal.reason))}}]
    return [decode_page(table, headers, record["payload"], control, take)]


def _final(payload: bytes, control: dict[str, Any], refusal: RecordRefusal | None) -> list[ControlRow]:
    try:
        if refusal:
            raise InvalidRequest(refusal.reason)
        response = parse_response(payload)
        message = response.error_message if response.HasField("error_message") else None
        result = {"status": response.status, "error_message": message, "total_records": response.total_records}
        return [{"kind": FINAL_KIND, "control": control | result}]
    except Exception as error:
        reason = reason_of(error)
        message = f"the final record is refused: {reason}"
        result = {"status": pb.DataResponse.ERROR, "error_message": message, "total_records": 0}
        return [
            {"kind": FINAL_KIND, "control": control | result},
            # Without a dispatch_id because it is not a page of the dispatch.
            {"kind": REFUSED_KIND, "control": {"reason": reason}},
        ]
