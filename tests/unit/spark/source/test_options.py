import pytest

from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.source.options import SourceOptions


def test_defaults_need_only_the_address() -> None:
    assert SourceOptions.parse({"address": "h:1"}) == SourceOptions(
        "h:1", None, None, "latest", False, 60, "auto", 256 * 1024 * 1024, 500
    )


@pytest.mark.parametrize(
    ("given", "ack", "start"),
    [
        ({}, False, "earliest"),
        ({"group": "a"}, True, "committed"),
        ({"group": "a", "ack": "false"}, False, "earliest"),
        ({"ack": "true"}, True, "committed"),
        ({"startingOffsets": "committed"}, False, "committed"),
        ({"group": "a", "startingOffsets": "latest"}, True, "latest"),
    ],
)
def test_a_group_is_acked_and_continued(given: dict[str, str], ack: bool, start: str) -> None:
    options = SourceOptions.parse({"address": "h:1"} | given)
    assert (options.ack, options.start) == (ack, start)


def test_names_are_read_in_any_case() -> None:
    options = SourceOptions.parse(
        {
            "ADDRESS": "h:1",
            "MaxRecordsPerBatch": "5",
            "drain": "True",
            "startingoffsets": '{"0": 7}',
            "REPLAY": "Never",
            "maxbytesperbatch": "9",
            "READTIMEOUTMS": "8",
        }
    )
    assert (options.max_records, options.drain, options.starting) == (5, True, {0: 7})
    assert (options.replay, options.max_bytes, options.read_timeout_ms) == ("never", 9, 8)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("address", ""),
        ("maxRecordsPerBatch", "0"),
        ("maxRecordsPerBatch", "many"),
        ("maxRecordsPerBatch", "-5"),
        ("drain", "yes"),
        ("startingOffsets", "newest"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"0": -1}'),
        ("startingOffsets", '{"a": 1}'),
        ("endingOffsets", "committed"),
        ("retrySeconds", "soon"),
        ("replay", "perhaps"),
        ("maxBytesPerBatch", "0"),
        ("readTimeoutMs", "1.5"),
        ("group", ""),
        ("group", "a b"),
        ("failOnDataLoss", "maybe"),
    ],
)
def test_a_bad_value_is_refused_by_name(option: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        SourceOptions.parse({"address": "h:1"} | {option: value})
