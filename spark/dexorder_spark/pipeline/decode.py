"""Decoding of raw records into rows of a table and control rows. Runs in Spark's workers.

A malformed record never stops the others: every value of a control row is checked before it is put there, and whatever
else a record causes refuses that record. A page is either good as a whole or refused as a whole, with the reason.

Kinds of decoded rows:

    page      ``control``: headers of a good page, its number of rows, and their first and last time
    final     ``control``: headers of a final record, and its result
    refused   ``control``: the reason and the headers, as far as they are known
    file      ``file``: a data file with rows of good pages (``files``)
    letters   ``file``: a data file with refused records (``dead_letters``)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.kafka.page_record import parse_response
from dexorder_common.lake.arrow_types import spark_ddl
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.proof import NO_PROOF, encode_proofs
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_spark.records.admission import Place, RecordRefusal
from dexorder_spark.source.records import RAW
from dexorder_spark.tables.table import PageTable

PAGE_KIND = "page"
FINAL_KIND = "final"
REFUSED_KIND = "refused"
FILE_KIND = "file"
LETTERS_KIND = "letters"
MAX_REASON_LENGTH = 1_000
_CONTROL: list[pa.Field[Any]] = [
    pa.field("dispatch_id", pa.string()),
    pa.field("ticker", pa.string()),
    pa.field("period_seconds", pa.int32()),
    pa.field("start_ns", pa.int64()),
    pa.field("end_ns", pa.int64()),
    pa.field("fetched_ns", pa.int64()),
    pa.field("empty", pa.list_(pa.int64())),  # start, end, start, end, ... in nanoseconds
    pa.field("rows", pa.int32()),
    pa.field("first_us", pa.int64()),  # of the rows; null without any
    pa.field("last_us", pa.int64()),
    pa.field("evidence", pa.string()),
    pa.field("status", pa.int32()),
    pa.field("error_message", pa.string()),
    pa.field("total_records", pa.int64()),
    pa.field("reason", pa.string()),
]
_DECODED: list[pa.Field[Any]] = [
    pa.field("kind", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("control", pa.struct(_CONTROL)),
    pa.field("file", pa.binary()),
]
DECODED = pa.schema(_DECODED)
DECODED_DDL = spark_ddl(DECODED)

Take: TypeAlias = Callable[[pa.RecordBatch], None]
"""Takes the rows of a page, at least one."""
Refuse: TypeAlias = Callable[[Mapping[str, Any], str], None]
"""Takes a refused record in the columns of ``RAW``, and the reason."""


@dataclass(frozen=True)
class Rules:
    """Knowledge of the driver about a batch that is decoded.

    Attributes:
        now_ns: The driver's time; no fetch is later.
        refusals: Records that do not count, which an earlier decoding of the batch has found.
    """

    now_ns: int = MAX_TIME_NS
    refusals: Mapping[Place, RecordRefusal] = field(default_factory=dict)


NO_RULES = Rules()


def decode_batches(
    table: PageTable, batches: Iterable[pa.RecordBatch], take: Take, refuse: Refuse, rules: Rules = NO_RULES
) -> Iterator[pa.RecordBatch]:
    """Yield the control rows of batches of ``RAW`` as batches of ``DECODED``.

    Pass the rows of good pages to ``take``, and refused records to ``refuse``.
    """
    for batch in batches:
        rows = []
        for record in batch.select(RAW.names).to_pylist():
            for row in decode_record(table, record, take, rules):
                if row["kind"] == REFUSED_KIND:
                    refuse(record, row["control"]["reason"])
                rows.append(row | {"partition": record["partition"], "offset": record["offset"]})
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def decode_record(
    table: PageTable, record: dict[str, Any], take: Take, rules: Rules = NO_RULES
) -> list[dict[str, Any]]:
    """Return the control rows (kind, control) of a record; pass the rows of a good page to ``take``.

    Any exception that a record's bytes cause refuses that record; raised, it would fail the batch at every attempt.
    """
    refusal = rules.refusals.get((record.get("partition", -1), record.get("offset", -1)))
    try:
        headers = PageHeaders.parse(dict(record["headers"] or ()))
        headers = replace(headers, fetched_ns=min(headers.fetched_ns, rules.now_ns))
        Instrument.parse(headers.ticker)
        number_of(headers.dispatch_id)
        if headers.kind is not table.kind and not (headers.kind is Kind.FINAL and table.has_finals):
            raise InvalidRequest(f"header dx-kind {headers.kind.value!r} does not belong to topic {table.topic}")
        table.check(headers)
        if refusal and not refusal.is_issued:
            raise InvalidRequest(refusal.reason)
    except Exception as error:
        return [{"kind": REFUSED_KIND, "control": {"reason": _reason(error)}}]
    control = _control(headers)
    try:
        if refusal:
            raise InvalidRequest(refusal.reason)
        if headers.kind is Kind.FINAL:
            response = parse_response(record["payload"])
            message = response.error_message if response.HasField("error_message") else None
            result = {"status": response.status, "error_message": message, "total_records": response.total_records}
            return [{"kind": FINAL_KIND, "control": control | result}]
        rows = table.decode(headers, record["payload"])
    except Exception as error:
        reason = _reason(error)
        if headers.kind is not Kind.FINAL:
            return [{"kind": REFUSED_KIND, "control": control | {"reason": reason}}]
        message = f"the final record is refused: {reason}"
        result = {"status": pb.DataResponse.ERROR, "error_message": message, "total_records": 0}
        return [
            {"kind": FINAL_KIND, "control": control | result},
            # Without a dispatch_id because it is not a page of the dispatch.
            {"kind": REFUSED_KIND, "control": {"reason": reason}},
        ]
    if not rows.num_rows:
        return [{"kind": PAGE_KIND, "control": control | {"rows": 0}}]
    take(rows)
    times: Any = pc.min_max(rows.column(table.time_column).view(pa.int64())).as_py()
    found = {"rows": rows.num_rows, "first_us": times["min"], "last_us": times["max"]}
    return [{"kind": PAGE_KIND, "control": control | found}]


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, InvalidRequest) else f"{type(error).__name__}: {error}"
    return text[:MAX_REASON_LENGTH].encode(errors="backslashreplace").decode()  # it may quote half a surrogate pair


def _control(headers: PageHeaders) -> dict[str, Any]:
    return {
        "dispatch_id": headers.dispatch_id,
        "ticker": headers.ticker,
        "period_seconds": headers.period_seconds,
        "start_ns": headers.span.start_ns,
        "end_ns": headers.span.end_ns,
        "fetched_ns": headers.fetched_ns,
        "empty": [time_ns for part in headers.empty for time_ns in (part.start_ns, part.end_ns)],
        "evidence": encode_proofs(headers.proofs) if headers.proofs else NO_PROOF,
    }
