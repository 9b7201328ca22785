"""Messages about requests: what of a long answer fits into one."""

from __future__ import annotations

from dexorder_common.model.cursor import Cursor
from dexorder_common.model.history import (
    HistoryRequest,
    Notification,
    Outcome,
    Progress,
    RequestRecord,
    RequestState,
    RequestStatus,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.history_messages import decode_record, encode_notification, encode_record
from dexorder_relay.state.request import describe_missing

MINUTE_NS = 60 * SECOND_NS
BEGIN_NS = 28_000_000 * MINUTE_NS


def test_an_answer_names_so_many_ranges_that_it_fits_into_a_message() -> None:
    """An exchange that answers every second query leaves as many ranges missing as it has answered."""
    ranges = tuple(TimeRange(BEGIN_NS + 2 * n * MINUTE_NS, BEGIN_NS + (2 * n + 1) * MINUTE_NS) for n in range(200_000))
    request = HistoryRequest("r", "BTC/USDT.SIM", BEGIN_NS, ranges[-1].end_ns, 60)
    error = describe_missing(ranges)
    outcome = Outcome(RequestStatus.ERROR, error, request.end_ns, 1, missing=ranges, revised=ranges)
    progress = Progress(RequestState.FINISHED, 0, 0, 0, 0, 0, 0, 0, 0)
    message = encode_record(RequestRecord(request, 1, progress, outcome))
    assert message.ByteSize() < 2**20
    found = decode_record(message)
    assert found.missing == ranges[:10_000] and found.outcome is not None and found.outcome.revised == found.missing
    assert "and 199950 more" in found.error_message
    note = encode_notification(Notification("HISTORY_READY:c", Cursor("e", 1), request, outcome, "trading.ohlc"))
    assert note.ByteSize() < 2**20 and len(note.revised) == 10_000
