"""Ends of requests, as a client gets them."""

from __future__ import annotations

from dataclasses import dataclass

from dexorder import errors
from dexorder_common.model.history import Notification, RequestRecord, RequestStatus

_RAISES = {
    RequestStatus.NOT_FOUND: errors.HistoryNotFound,
    RequestStatus.ERROR: errors.HistoryFailed,
    RequestStatus.TIMEOUT: errors.HistoryTimedOut,
}


@dataclass(frozen=True)
class Ended:
    """A request that has ended, with any status."""

    record: RequestRecord
    notification: Notification


def history_error(record: RequestRecord) -> errors.HistoryError:
    """Return the error for a record whose status is not OK."""
    assert record.status is not None and record.status is not RequestStatus.OK
    return _RAISES[record.status](f"request {record.request_id} ended {record.status}: {record.reason()}", record)
