"""What the client and the command raise.

DexorderError
├── RelayUnreachable      the relay did not answer in time; nothing is known about the request
├── RequestRefused        the relay will not do it, and says which field is why
│   └── QuotaReached      the caller has too many unfinished requests; later it may do it
├── RequestUnknown        no request has that id
├── VenueUnknown          no ingestor has reported markets of that venue
├── NotAllowed            the relay does not know the caller, or the request is another's
├── WaitEnded             the caller's own timeout passed; the request goes on
├── RunUnknown            no unfinished run of that id is recorded on this machine
├── CatalogError          the catalog or the table can't be read from here
├── MaintenanceFailed     Spark's driver can't look after the tables now, or knows no such table
├── SuiteFailed           the local suite can't start or run
└── HistoryError          the request has ended without all of its rows; ``record`` says what is missing
    ├── HistoryNotFound   all of the range is verified to be empty
    ├── HistoryFailed     ERROR: refused by the exchange, incomplete or cancelled
    ├── HistoryTimedOut   TIMEOUT: the relay saw no progress for too long
    └── HistoryMismatch   the table does not hold as many rows as were announced
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dexorder.records import RequestRecord


class DexorderError(Exception):
    """Base of everything raised on purpose; the message is one sentence."""


class RelayUnreachable(DexorderError):
    """The relay did not answer in time; nothing is known about the request."""


class RequestRefused(DexorderError):
    """The relay will not do it, and says which field is why."""


class QuotaReached(RequestRefused):
    """The caller has too much unfinished; the same submission may be accepted when some of it has ended."""


class RequestUnknown(DexorderError):
    """No request has that id."""


class VenueUnknown(DexorderError):
    """No ingestor has reported markets of that venue."""


class NotAllowed(DexorderError):
    """The relay does not know the caller, or what is asked for is another's."""


class WaitEnded(DexorderError):
    """The caller's own timeout passed; the request goes on."""


class RunUnknown(DexorderError):
    """No unfinished run of that id is recorded on this machine."""


class CatalogError(DexorderError):
    """The catalog or the table can't be read from here."""


class MaintenanceFailed(DexorderError):
    """The tables could not be looked after."""


class SuiteFailed(DexorderError):
    """The local suite can't start or run."""


class HistoryError(DexorderError):
    """The request has ended without all of its rows.

    Attributes:
        record: What the relay keeps of the request; ``record.missing`` has the exact ranges.
    """

    def __init__(self, message: str, record: RequestRecord) -> None:
        super().__init__(message)
        self.record = record


class HistoryNotFound(HistoryError):
    """All of the range is verified to be empty."""


class HistoryFailed(HistoryError):
    """The exchange refused, ranges are missing, or the request was cancelled."""


class HistoryTimedOut(HistoryError):
    """The relay saw no progress for too long."""


class HistoryMismatch(HistoryError):
    """The table does not hold as many rows as were announced."""
