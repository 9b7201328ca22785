import pytest

from services.common.model.errors import InvalidRequest
from spark.source.options import SourceOptions


def test_defaults_need_only_the_address() -> None:
    assert SourceOptions.parse({"address": "h:1"}) == SourceOptions(
        "h:1", 600, "committed", "latest", False, 60, "auto", 256 * 1024 * 1024, 500
    )


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
    ],
)
def test_a_bad_value_is_refused_by_name(option: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=option):
        SourceOptions.parse({"address": "h:1"} | {option: value})
