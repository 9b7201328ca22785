"""Datasets: each once, whoever holds it, and the form of a series on the wire."""

from __future__ import annotations

import copy
import pickle

import pytest

from dexorder_common.lake.tables import MARKET_TABLES, table_of
from dexorder_common.model.datasets import (
    CANDLES,
    DATASETS,
    FUNDING,
    TICKERS,
    TRADES,
    Dataset,
    JobType,
    dataset_named,
    topics,
)
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Series
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb

TICKER = "BTC/USDT:USDT.SIM"


def test_names_topics_and_tables_are_distinct_and_each_dataset_has_its_table() -> None:
    for names in ([each.name for each in DATASETS], list(topics()), [each.table for each in DATASETS]):
        assert len({*names}) == len(DATASETS)
    assert [table.name for table in MARKET_TABLES] == [each.table for each in DATASETS]
    for each in DATASETS:
        assert dataset_named(each.name) is each
        assert {*each.series_columns} <= {*table_of(each).key}
        assert each.time_column in table_of(each).arrow.names
    with pytest.raises(InvalidRequest, match="dataset 'books' is not one of candles, trades, tickers, funding"):
        dataset_named("books")


@pytest.mark.parametrize("dataset", DATASETS, ids=str)
def test_a_dataset_is_the_same_value_in_another_process(dataset: Dataset) -> None:
    assert pickle.loads(pickle.dumps(dataset)) is copy.deepcopy(dataset) is dataset


def test_job_types_are_those_of_the_protocol() -> None:
    assert {each.name: each.value for each in JobType} == dict(pb.DataRequest.RequestType.items())


@pytest.mark.parametrize(
    ("series", "wire"),
    [
        (Series(TICKER, 60), {"ticker": TICKER, "period_seconds": 60}),
        (Series(TICKER, dataset=TRADES), {"ticker": TICKER, "period_seconds": 0}),
        (Series.whole_exchange("SIM", TICKERS), {"ticker": "*.SIM", "period_seconds": 0}),
        (Series(TICKER, dataset=FUNDING), {"ticker": TICKER, "period_seconds": 0, "dataset": "funding"}),
    ],
)
def test_a_series_has_the_form_of_the_given_protocol_unless_only_its_name_tells_it(
    series: Series, wire: dict[str, object]
) -> None:
    assert series.encode() == wire
    assert Series.decode(**wire) == series  # type: ignore[arg-type]


def test_a_period_goes_with_datasets_that_have_one() -> None:
    for period, name in ((60, "funding"), (0, "candles")):
        with pytest.raises(InvalidRequest, match=f"period_seconds {period} does not go with dataset {name}"):
            Series.decode(TICKER, period, name)
    assert Series.decode(TICKER, 60, "candles") == Series(TICKER, 60, CANDLES)
