"""Control rows of decoded records, and the rules that each page has to keep. ``decode`` has the kinds of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dexorder_common.lake.arrow_types import spark_ddl
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.proof import NO_PROOF, encode_proofs
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_spark.records.admission import Place, RecordRefusal
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
    pa.field("part", pa.int32()),  # number of the page in a joined record; null in any other
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

ControlRow: TypeAlias = dict[str, Any]
"""A row of ``DECODED`` without partition and offset."""


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


def well_formed(table: PageTable, headers: PageHeaders, refusal: RecordRefusal | None, rules: Rules) -> PageHeaders:
    """Return the headers of a record, not fetched in the future.

    Raises:
        InvalidRequest: They cannot belong to a record of the table, or to a record that must be reported to the relay.
    """
    if headers.fetched_ns > rules.now_ns:
        headers = replace(headers, fetched_ns=rules.now_ns)
    Instrument.parse(headers.ticker)
    number_of(headers.dispatch_id)
    if headers.kind is not table.kind and not (headers.kind is Kind.FINAL and table.has_finals):
        raise InvalidRequest(f"header dx-kind {headers.kind.value!r} does not belong to topic {table.topic}")
    table.check(headers)
    if refusal and not refusal.is_issued:
        raise InvalidRequest(refusal.reason)
    return headers


def decode_page(
    table: PageTable,
    headers: PageHeaders,
    payload: bytes,
    control: dict[str, Any],
    take: Callable[[pa.RecordBatch], None],
) -> ControlRow:
    """Return the row of a page; pass its rows to ``take`` if it is good."""
    try:
        rows = table.decode(headers, payload)
    except Exception as error:
        return {"kind": REFUSED_KIND, "control": control | {"reason": reason_of(error)}}
    if not rows.num_rows:
        return {"kind": PAGE_KIND, "control": control | {"rows": 0}}
    take(rows)
    times: Any = pc.min_max(rows.column(table.time_column).view(pa.int64())).as_py()
    return {"kind": PAGE_KIND, "control": control | counted(rows.num_rows, times["min"], times["max"])}


def counted(rows: int, first_us: int, last_us: int) -> dict[str, int]:
    """Return the control values that the rows of a page give."""
    return {"rows": rows, "first_us": first_us, "last_us": last_us}


def reason_of(error: Exception) -> str:
    """Return the reason for which a record or page is refused."""
    text = str(error) if isinstance(error, InvalidRequest) else f"{type(error).__name__}: {error}"
    return text[:MAX_REASON_LENGTH].encode(errors="backslashreplace").decode()  # it may quote half a surrogate pair


def control_of(headers: PageHeaders) -> dict[str, Any]:
    """Return the control values that headers give."""
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
