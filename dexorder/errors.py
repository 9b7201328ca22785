"""Errors of the client, the publisher of events and the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dexorder import Rows
    from dexorder_common.model.errors import Code
    from dexorder_common.model.history import RequestRecord


class DexorderError(Exception):
    """Base of all errors raised on purpose; the message is one sentence."""


class SetupError(Exception):
    """Something that the suite needs is missing or wrong; the message is one sentence and says what to do."""


class RelayUnreachable(DexorderError):
    """The relay did not answer in time; the state of the request is unknown."""


class NotSupported(DexorderError):
    """The relay's version does not have a call, dataset or capability; the message has both versions."""


class TableUnavailable(DexorderError):
    """The relay can't read or write one of the tables now; the message names it and the cause."""


class Refused(DexorderError):
    """A value is invalid; the message names its field. The command exits with 2."""


class RequestRefused(Refused):
    """The relay refuses the request; the message names the field."""


class QuotaReached(RequestRefused):
    """The caller has too many unfinished requests; the same one may be accepted after some have ended."""


class ReceiptFailed(DexorderError):
    """A receipt can't be made of the range, or its document was changed after it was made; the message says why."""


class ExportFailed(DexorderError):
    """The rows can't be written in the format of another program; the message says why."""


class RequestUnknown(DexorderError):
    """No request has this id."""


class VenueUnknown(DexorderError):
    """No ingestor has reported instruments of this venue."""


class NotAllowed(DexorderError):
    """The relay does not know the caller, or the request belongs to another."""


class WaitEnded(DexorderError):
    """The caller's own timeout passed; the request continues."""


class RunUnknown(DexorderError):
    """No unfinished run with this id is recorded on this machine."""


class CatalogError(DexorderError):
    """The catalog or the table can't be read from here."""


class MaintenanceFailed(DexorderError):
    """Spark's driver can't maintain the tables now, or does not know the table."""


class SuiteFailed(DexorderError):
    """The local suite can't start or run."""


class UdfServeError(DexorderError):
    """A user-defined function can't be served, for example because the socket's path is in use."""


class HistoryError(DexorderError):
    """The request ended without all of its rows; ``record.missing`` has the exact ranges, the first 10,000."""

    def __init__(self, message: str, record: RequestRecord) -> None:
        super().__init__(message)
        self.record = record


class HistoryNotFound(HistoryError):
    """The whole range is verified to be empty."""


class HistoryFailed(HistoryError):
    """ERROR: the exchange refused, ranges are missing, or the request was cancelled."""


class HistoryTimedOut(HistoryError):
    """TIMEOUT: the relay saw no progress for too long."""


class ManyFailed(DexorderError):
    """The history of some of the tickers is incomplete.

    Attributes:
        errors: The error of each of these tickers.
        rows: Rows of the other tickers; None without any.
    """

    def __init__(self, failed: Mapping[str, DexorderError], rows: Rows | None) -> None:
        shown = "; ".join(f"{ticker}: {error}" for ticker, error in list(failed.items())[:3])
        more = f"; and {len(failed) - 3:,} more" if len(failed) > 3 else ""
        count = f"{len(failed):,} tickers have" if len(failed) > 1 else "1 ticker has"
        super().__init__(f"{count} no complete history: {shown}{more}")
        self.errors = failed
        self.rows = rows


class HistoryMismatch(HistoryError):
    """The table's row count differs from the announced one."""


class EventRefused(Refused):
    """The event's payload, size or fields are invalid; the event was not stored."""


class OutboxFull(DexorderError):
    """The outbox has its maximum number of events."""


class OutboxFailed(DexorderError):
    """The outbox can't be read or written, or another process uses it; the event was not stored."""


class EventUnknown(DexorderError):
    """The event is neither pending nor among the recent outcomes."""


class PublisherClosed(DexorderError):
    """The publisher is closed."""


class GatewayRefused(DexorderError):
    """The gateway refused the call."""

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class GatewayUnreachable(GatewayRefused):
    """The gateway does not answer."""
