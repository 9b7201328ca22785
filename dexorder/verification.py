"""What a check of the table against coverage says, as plain values; protobuf stops here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dexorder.coverage import ranges_from
from dexorder.records import RequestRecord, Status, ranges_json
from services.common.model.time_range import TimeRange
from services.common.model.times import iso
from services.gen.dexorder.relay.v1 import relay_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Checking:
    """How far a check is; ``windows`` is 0 until their number is known. What seems lost is looked at again."""

    windows: int
    checked_windows: int
    rows: int
    lost_periods: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found. The lists have at most 10,000 ranges; the counts beside them count all.

    Attributes:
        checked: From the first to the last of what coverage or the table have; None where they have nothing.
        rows: Rows of the market in it.
        row_periods: Periods that coverage claims as rows; ``empty_periods`` those it claims as verified empty.
        lost: Claimed as rows, and the table lacks them.
        unexpected: Claimed as empty, and the table has a row.
        duplicates: Periods with more than one row; ``surplus_rows`` would have to go.
        off_grid_rows: Rows whose open_time is no candle's.
        unclaimed_periods: With a row that coverage does not claim; no fault.
        repairs: Requests that fetch what is lost again, submitted by this check; ``repaired_periods`` of it.
    """

    ticker: str
    period_seconds: int
    checked: TimeRange | None
    rows: int
    row_periods: int
    empty_periods: int
    lost: tuple[TimeRange, ...]
    lost_periods: int
    unexpected: tuple[TimeRange, ...]
    unexpected_periods: int
    duplicates: tuple[TimeRange, ...]
    surplus_rows: int
    off_grid_rows: int
    unclaimed_periods: int
    repairs: tuple[str, ...]
    repaired_periods: int

    def well(self, repaired: Sequence[RequestRecord] = ()) -> bool:
        """Whether table and coverage agree now, given how the requests among ``repairs`` have ended."""
        wrong = self.unexpected_periods or self.surplus_rows or self.off_grid_rows
        ended = [each.request_id for each in repaired if each.status in (Status.OK, Status.NOT_FOUND)]
        return not wrong and self.lost_periods == self.repaired_periods and set(ended) == set(self.repairs)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ticker": self.ticker,
            "period_seconds": self.period_seconds,
            "since": iso(self.checked.start_ns) if self.checked else None,
            "until": iso(self.checked.end_ns) if self.checked else None,
            "rows": self.rows,
            "row_periods": self.row_periods,
            "empty_periods": self.empty_periods,
            "lost_periods": self.lost_periods,
            "lost": list(map(ranges_json, self.lost)),
            "unexpected_periods": self.unexpected_periods,
            "unexpected": list(map(ranges_json, self.unexpected)),
            "surplus_rows": self.surplus_rows,
            "duplicates": list(map(ranges_json, self.duplicates)),
            "off_grid_rows": self.off_grid_rows,
            "unclaimed_periods": self.unclaimed_periods,
            "repaired_periods": self.repaired_periods,
        }


def checking_from(message: pb.VerifyProgress) -> Checking:
    """The progress in an answer."""
    return Checking(message.windows, message.checked_windows, message.rows, message.lost_periods)


def verification_from(ticker: str, period_seconds: int, message: pb.VerifyResult) -> Verification:
    """The result in the last answer."""
    return Verification(
        ticker=ticker,
        period_seconds=period_seconds,
        checked=ranges_from([message.checked])[0] if message.HasField("checked") else None,
        rows=message.rows,
        row_periods=message.row_periods,
        empty_periods=message.empty_periods,
        lost=ranges_from(message.lost),
        lost_periods=message.lost_periods,
        unexpected=ranges_from(message.unexpected),
        unexpected_periods=message.unexpected_periods,
        duplicates=ranges_from(message.duplicates),
        surplus_rows=message.surplus_rows,
        off_grid_rows=message.off_grid_rows,
        unclaimed_periods=message.unclaimed_periods,
        repairs=tuple(message.repair_request_ids),
        repaired_periods=message.repaired_periods,
    )
