"""Conversion of series, ranges and cursors to and from protobuf messages, for both ends."""

from __future__ import annotations

from collections.abc import Iterable

from dexorder_common.model.cursor import Cursor, StreamStart
from dexorder_common.model.datasets import dataset_named
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import ALL_SYMBOLS, Series
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.relay.v1 import common_pb2 as pb

MAX_SEQUENCE = 2**63 - 1
"""SQLite's largest integer; sequences stay far below."""


def encode_series(series: Series) -> pb.Series:
    """Return the message of a series."""
    message = pb.Series(dataset=series.dataset.name)
    if series.dataset.whole_exchange:
        message.exchange = series.exchange
    else:
        message.ticker = series.ticker
    if series.dataset.has_periods:
        message.period_seconds = series.period_seconds
    return message


def decode_series(message: pb.Series, field: str = "series") -> Series:
    """Return a series, of which ticker and period are not checked.

    Raises:
        InvalidRequest: The dataset is missing or unknown, or subject or period do not go with it.
    """
    if not message.dataset:
        raise InvalidRequest(f"{field}.dataset is missing; candles, for example")
    dataset = dataset_named(message.dataset)
    wanted = "exchange" if dataset.whole_exchange else "ticker"
    if (subject := message.WhichOneof("subject")) not in (wanted, None):
        raise InvalidRequest(f"{field}.{subject} is set; dataset {dataset} takes {field}.{wanted}")
    if message.HasField("period_seconds") != dataset.has_periods:
        rule = "is needed for" if dataset.has_periods else f"{message.period_seconds} does not go with"
        raise InvalidRequest(f"{field}.period_seconds {rule} dataset {dataset}")
    ticker = f"{ALL_SYMBOLS}.{message.exchange}" if dataset.whole_exchange else message.ticker
    return Series(ticker, message.period_seconds, dataset)


def encode_ranges(ranges: Iterable[TimeRange]) -> list[pb.TimeRange]:
    """Return half-open ranges."""
    return [pb.TimeRange(start_ns=each.start_ns, end_ns=each.end_ns) for each in ranges]


def decode_ranges(messages: Iterable[pb.TimeRange]) -> tuple[TimeRange, ...]:
    """Return half-open ranges; InvalidRequest if one is reversed."""
    return tuple(TimeRange(each.start_ns, each.end_ns) for each in messages)


def encode_cursor(cursor: Cursor | None) -> pb.Cursor | None:
    """Return the message of a cursor."""
    return None if cursor is None else pb.Cursor(epoch=cursor.epoch, sequence=cursor.sequence)


def decode_cursor(message: pb.Cursor) -> Cursor:
    """Return a cursor; InvalidRequest without an epoch, which means that it is not from an answer."""
    if not message.epoch:
        raise InvalidRequest("after.epoch is missing; pass the cursor of an answer, or none for all that is stored")
    return Cursor(message.epoch, min(message.sequence, MAX_SEQUENCE))


def encode_start(start: StreamStart) -> pb.StreamStart:
    """Return the message of a stream's start."""
    return pb.StreamStart(cursor=encode_cursor(start.cursor), oldest_sequence=start.oldest_sequence)


def decode_start(message: pb.StreamStart, *, is_reset: bool) -> StreamStart:
    """Return a stream's start."""
    oldest = message.oldest_sequence if message.HasField("oldest_sequence") else None
    return StreamStart(decode_cursor(message.cursor), is_reset, oldest)
