"""Details of failed calls: the field that a text begins with."""

from __future__ import annotations

import pytest
from google.rpc import status_pb2

from dexorder_common.model.errors import Code
from dexorder_common.rpc.error_details import encode_details, field_names, reason_of, violated_field
from dexorder_protos.dexorder.events.v1 import event_service_pb2
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from tests.error_kinds import KINDS

NAMES = frozenset({"end_time", "offsets", "params"})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("end_time 5 is not after start_time 9", "end_time"),
        ("end_time: 5 is late", "end_time"),
        ("offsets[3].metadata 'x' has a NUL", "offsets[3].metadata"),
        ("params.periods is empty", "params.periods"),
        ("params", None),
        ("the epoch is of another log", None),
        ("limit 0 requests no candle", None),
        ("end_times 5", None),
        ("", None),
    ],
)
def test_the_field_is_the_first_word_if_the_request_has_it(text: str, field: str | None) -> None:
    assert violated_field(text, NAMES) == field


def test_fields_of_messages_within_messages_count_once() -> None:
    names = field_names(ingest_pb2.SubmitHistoricalRequest.DESCRIPTOR)
    assert {"request_id", "ticker", "start_time", "end_time", "period_seconds"} <= names
    assert "quiet_hours" in field_names(event_service_pb2.SetContactsRequest.DESCRIPTOR)


def test_reasons_are_the_names_of_errors() -> None:
    reasons = {reason_of(kind("")) for kind in KINDS}
    assert {"INVALID_REQUEST", "NOT_FOUND", "UNAVAILABLE", "NOT_ALLOWED"} <= reasons
    assert reason_of(ValueError("secret")) == "INTERNAL"
    assert reason_of(NotImplementedError()) == "UNIMPLEMENTED"


def test_details_stay_below_the_size_of_headers() -> None:
    text = "end_time " + "\U0001f600" * 5_000
    found = encode_details(Code.INVALID_ARGUMENT, text, reason="X", method="a/B", retry_ms=None, names=NAMES)
    assert len(found) < 6_000
    assert status_pb2.Status.FromString(found).message == text[:512]
