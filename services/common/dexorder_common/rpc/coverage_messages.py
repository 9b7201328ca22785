"""Conversion of coverage and its verification between ``dexorder_common/model`` and the relay's messages."""

from __future__ import annotations

from dexorder_common.model.coverage import (
    CoverageKind,
    CoveragePage,
    CoverageRange,
    VerificationProgress,
    VerificationResult,
)
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.values import ValueComparison, ValueDifference
from dexorder_common.rpc.common_messages import decode_ranges, encode_ranges
from dexorder_common.rpc.history_messages import decode_progress, encode_progress, fields_of
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb

_PROVISIONAL = {
    CoverageKind.EMPTY: CoverageKind.PROVISIONAL,
    CoverageKind.ROWS: CoverageKind.PROVISIONAL_ROWS,
}
_WINDOWS = set(coverage_pb.VerifyProgress.DESCRIPTOR.fields_by_name) - {"request"}
_RANGES = ("lost", "unexpected", "duplicates", "off_grid")
_COMPARISONS = ("values", "values_after_repair")
_COUNTS = set(coverage_pb.VerifyResult.DESCRIPTOR.fields_by_name) - {
    "checked",
    "repair_request_ids",
    *_RANGES,
    *_COMPARISONS,
}
_COMPARED = set(coverage_pb.ValueComparison.DESCRIPTOR.fields_by_name) - {
    *("cell_seconds", "differing", "uncompared", "errors", "request_ids")
}


def encode_coverage_range(found: CoverageRange) -> coverage_pb.CoverageRange:
    """Return a range of one kind."""
    kind = {kind: final for final, kind in _PROVISIONAL.items()}.get(found.kind, found.kind)
    return coverage_pb.CoverageRange(
        start_ns=found.span.start_ns,
        end_ns=found.span.end_ns,
        kind=coverage_pb.CoverageKind.Value(f"COVERAGE_KIND_{kind.name}"),
        provisional=kind is not found.kind,
    )


def decode_coverage_range(message: coverage_pb.CoverageRange) -> CoverageRange:
    """Return a range of one kind."""
    name = coverage_pb.CoverageKind.Name(message.kind).removeprefix("COVERAGE_KIND_")
    kind = _PROVISIONAL[CoverageKind[name]] if message.provisional else CoverageKind[name]
    return CoverageRange(TimeRange(message.start_ns, message.end_ns), kind)


def encode_coverage_page(page: CoveragePage) -> coverage_pb.CoveragePage:
    """Return a row of the coverage table and the parts of it that no longer count."""
    return coverage_pb.CoveragePage(
        start_ns=page.span.start_ns,
        end_ns=page.span.end_ns,
        rows=page.rows,
        empty=encode_ranges(page.empty),
        evidence=page.evidence,
        fetched_ns=page.fetched_ns,
        committed_ns=page.committed_ns,
        retracted=encode_ranges(page.retracted),
    )


def decode_coverage_page(message: coverage_pb.CoveragePage) -> CoveragePage:
    """Return a row of the coverage table and the parts of it that no longer count."""
    return CoveragePage(
        TimeRange(message.start_ns, message.end_ns),
        message.rows,
        decode_ranges(message.empty),
        message.evidence,
        message.fetched_ns,
        message.committed_ns,
        decode_ranges(message.retracted),
    )


def encode_verification_progress(progress: VerificationProgress) -> coverage_pb.VerifyProgress:
    """Return the progress of a verification."""
    request = encode_progress(progress.request) if progress.request else None
    return coverage_pb.VerifyProgress(**fields_of(progress, _WINDOWS), request=request)


def decode_verification_progress(message: coverage_pb.VerifyProgress) -> VerificationProgress:
    """Return the progress of a verification."""
    request = (
        decode_progress(history_pb.REQUEST_STATE_RUNNING, message.request) if message.HasField("request") else None
    )
    return VerificationProgress(**fields_of(message, _WINDOWS), request=request)


def encode_verification(result: VerificationResult) -> coverage_pb.VerifyResult:
    """Return the result of a verification."""
    return coverage_pb.VerifyResult(
        **fields_of(result, _COUNTS),
        **{name: encode_ranges(getattr(result, name)) for name in _RANGES},  # type: ignore[arg-type]
        checked=encode_ranges([result.checked])[0] if result.checked else None,
        repair_request_ids=result.repairs,
        values=_encode_values(result.values),
        values_after_repair=_encode_values(result.values_after_repair),
    )


def _encode_values(found: ValueComparison | None) -> coverage_pb.ValueComparison | None:
    if found is None:
        return None
    return coverage_pb.ValueComparison(
        **fields_of(found, _COMPARED),
        cell_seconds=found.cell_seconds,
        differing=[
            coverage_pb.ValueDifference(
                cell=encode_ranges([each.span])[0],
                exchange=_encode_candle(each.exchange),
                table=_encode_candle(each.table),
            )
            for each in found.differing
        ],
        uncompared=encode_ranges(found.uncompared),
        errors=found.errors,
        request_ids=found.requests,
    )


def _encode_candle(candle: Candle | None) -> ohlcv_pb2.OHLCV | None:
    if candle is None:
        return None
    open_ns, open_, high, low, close, volume = candle[:6]
    return ohlcv_pb2.OHLCV(open_time_ns=open_ns, open=open_, high=high, low=low, close=close, volume=volume)


def decode_verification(series: Series, message: coverage_pb.VerifyResult) -> VerificationResult:
    """Return the result of a verification."""
    return VerificationResult(
        ticker=series.ticker,
        period_seconds=series.period_seconds,
        **fields_of(message, _COUNTS),
        **{name: decode_ranges(getattr(message, name)) for name in _RANGES},  # type: ignore[arg-type]
        checked=decode_ranges([message.checked])[0] if message.HasField("checked") else None,
        repairs=tuple(message.repair_request_ids),
        **{name: _decode_values(getattr(message, name)) for name in _COMPARISONS if message.HasField(name)},  # type: ignore[arg-type]
    )


def _decode_values(message: coverage_pb.ValueComparison) -> ValueComparison:
    differing = (
        ValueDifference(
            TimeRange(each.cell.start_ns, each.cell.end_ns),
            _decode_candle(each.exchange) if each.HasField("exchange") else None,
            _decode_candle(each.table) if each.HasField("table") else None,
        )
        for each in message.differing
    )
    return ValueComparison(
        **fields_of(message, _COMPARED),
        cell_seconds=tuple(message.cell_seconds),
        differing=tuple(differing),
        uncompared=decode_ranges(message.uncompared),
        errors=tuple(message.errors),
        requests=tuple(message.request_ids),
    )


def _decode_candle(message: ohlcv_pb2.OHLCV) -> Candle:
    return Candle(message.open_time_ns, message.open, message.high, message.low, message.close, message.volume)
