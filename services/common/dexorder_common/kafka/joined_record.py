"""Joined records of topic ``dexorder.ticks``: records of trades of many markets in one Kafka record.

A Kafka record costs each part that handles it about the same, small or large. The records that it joins keep their
headers and values, so each of them still settles a span of one market. docs/protocol.md has the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from google.protobuf.message import DecodeError

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.page import MAX_INT32, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_protos.dexorder.market.v1 import market_pb2 as pb

MAX_JOINED_RECORDS = 5_000
"""Largest number of records in a joined one."""
MAX_JOINED_BYTES = 512 * 1024
"""Size above which a writer stops adding records. Kafka's own limit is 1 MiB by default."""
LANES = 4
"""Keys of an exchange's joined records; a market always has the same one, which keeps its order."""
_KIND, _VERSION = "dx-kind", "dx-version"
_JOINED, _CURRENT_VERSION = "joined", "1"
JOINED_HEADERS: Mapping[str, str] = {_KIND: _JOINED, _VERSION: _CURRENT_VERSION}


class TradesRecord(NamedTuple):
    """Headers and value of a record of trades."""

    headers: PageHeaders
    value: bytes


def lane_of(ticker: str) -> str:
    """Return the key of the joined records with a market."""
    return f"{ticker.rpartition('.')[2]}/{crc32(ticker.encode()) % LANES}"


def join_records(records: Iterable[TradesRecord]) -> bytes:
    """Return the value of a joined record; its headers are `JOINED_HEADERS`."""
    joined = [
        pb.JoinedRecord(
            ticker=headers.ticker,
            job_id=headers.dispatch_id,
            page=headers.page,
            start_ns=headers.span.start_ns,
            end_ns=headers.span.end_ns,
            fetched_ns=headers.fetched_ns,
            trace=headers.trace,
            value=value,
        )
        for headers, value in records
    ]
    return pb.JoinedRecords(records=joined).SerializeToString(deterministic=True)


def is_joined(headers: Mapping[str, str]) -> bool:
    """Return whether a record with these headers is a joined one, of any version."""
    return headers.get(_KIND) == _JOINED


def split_records(headers: Mapping[str, str], value: bytes) -> list[pb.JoinedRecord]:
    """Return the records of a joined one, not yet checked; InvalidRequest if it can't be read as a whole."""
    if (version := headers.get(_VERSION, "")) != _CURRENT_VERSION:
        raise InvalidRequest(f"header {_VERSION} {version[:40]!r} of a joined record is not {_CURRENT_VERSION}")
    try:
        found = list(pb.JoinedRecords.FromString(value).records)
    except DecodeError as error:
        raise InvalidRequest(f"the value of {len(value)} bytes is not a JoinedRecords: {error}") from error
    if len(found) > MAX_JOINED_RECORDS:
        raise InvalidRequest(f"{len(found)} records are joined; at most {MAX_JOINED_RECORDS} are allowed")
    return found


def headers_of(record: pb.JoinedRecord) -> PageHeaders:
    """Return the headers of one record of a joined one; InvalidRequest if they are none."""
    for name, text in (("ticker", record.ticker), ("job_id", record.job_id)):
        if not text:
            raise InvalidRequest(f"{name} of a joined record is missing")
    if record.page > MAX_INT32:
        raise InvalidRequest(f"page {record.page} of a joined record is not a whole number up to {MAX_INT32}")
    for name, time_ns in (("end_ns", record.end_ns), ("fetched_ns", record.fetched_ns)):
        if time_ns > MAX_TIME_NS:
            raise InvalidRequest(f"{name} {time_ns} of a joined record is not a whole number up to {MAX_TIME_NS}")
    span = TimeRange(record.start_ns, record.end_ns)
    return PageHeaders(
        Kind.TRADES, record.ticker, 0, record.job_id, record.page, span, record.fetched_ns, trace=record.trace
    )


def records_in(headers: Mapping[str, str], value: bytes) -> Iterator[TradesRecord]:
    """Yield the records in one of the topics', joined or not; leave out unreadable ones."""
    if not is_joined(headers):
        with suppress(InvalidRequest):
            yield TradesRecord(PageHeaders.parse(headers), value)
        return
    try:
        parts = split_records(headers, value)
    except InvalidRequest:
        return
    for part in parts:
        with suppress(InvalidRequest):
            yield TradesRecord(headers_of(part), part.value)
