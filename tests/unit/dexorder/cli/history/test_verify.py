import json
from functools import partial
from typing import Any

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.market.v1.ohlcv_pb2 import OHLCV
from dexorder_protos.dexorder.relay.v1 import common_pb2 as common_pb
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as history_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from tests.fakes.candle_table import HOUR_NS, START, TICKER
from tests.fakes.relay_server import FakeRelay, Notify, ended
from tests.rig.command import dexorder
from tests.series_messages import series


def hours(start: int, end: int) -> common_pb.TimeRange:
    return common_pb.TimeRange(start_ns=START + start * HOUR_NS, end_ns=START + end * HOUR_NS)


def answers(**result: Any) -> list[coverage_pb.VerifyCoverageResponse]:
    whole: dict[str, Any] = {"checked": hours(0, 30), "rows": 30, "row_periods": 30, **result}
    return [
        coverage_pb.VerifyCoverageResponse(progress=coverage_pb.VerifyProgress(windows=1)),
        coverage_pb.VerifyCoverageResponse(result=coverage_pb.VerifyResult(**whole)),
    ]


def repaired(fake: FakeRelay) -> None:
    """A relay that finds four hours lost, and whose two requests fetch them."""
    ids = ["verify-x-0001", "verify-x-0002"]
    fake.verified = answers(
        lost=[hours(2, 5), hours(9, 10)], lost_periods=4, repair_request_ids=ids, repaired_periods=4
    )
    fake.submitted = [ingest_pb2.SubmitHistoricalRequest(request_id=each, ticker=TICKER) for each in ids]


run = partial(dexorder, "verify", TICKER, "1h")


def test_table_and_coverage_agree(fake: FakeRelay) -> None:
    fake.verified = answers(unclaimed_periods=3)
    result = run("--since", "2024-01-01")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-2] == f"{TICKER} 1h: table and coverage agree", "unclaimed rows are not a fault"
    assert fake.asked == [coverage_pb.VerifyCoverageRequest(series=series(TICKER, 3_600), start_ns=START, values=True)]
    result = run("--offline")
    assert result.stdout.splitlines()[-1] == f"{TICKER} 1h: values not compared with the exchange"
    assert not fake.asked[-1].values


def test_each_fault_is_reported(fake: FakeRelay) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"lost": [hours(2, 5)], "lost_periods": 3}, "lost 2024-01-01T02:00:00Z 2024-01-01T05:00:00Z 3", "--repair"),
        ({"unexpected": [hours(1, 2)], "unexpected_periods": 1}, "unexpected 2024-01-01T01:00:00Z", "--repair"),
        (
            {"duplicates": [hours(1, 2)], "surplus_rows": 3},
            "duplicate 2024-01-01T01:00:00Z",
            "3 rows must not be there; repair the table with --repair",
        ),
        ({"off_grid": [hours(1, 2)], "off_grid_rows": 1}, "off the grid 2024-01-01T01:00:00Z", "1 rows must not be"),
    ]
    for found, line, advice in cases:
        fake.verified = answers(**found)
        result = run()
        assert result.exit_code == 1
        lines = [" ".join(each.split()) for each in result.stdout.splitlines()]
        assert any(each.startswith(line) for each in lines), lines
        assert advice in lines[-2]


def test_exit_code_depends_on_the_repairs(fake: FakeRelay) -> None:
    repaired(fake)
    result = run("--repair")
    assert result.exit_code == 0, result.stderr
    assert fake.asked == [operator_pb.RepairCoverageRequest(series=series(TICKER, 3_600), values=True)]
    assert "4 rows are lost; 2 requests fetch ranges again" in result.stderr
    assert "verify-x-0002 OK" in result.stdout and "table and coverage agree" in result.stdout
    fake.ends = ended(Notify.ERROR, error_message="the exchange refused")
    result = run("--repair")
    assert result.exit_code == 1
    assert "verify-x-0001 ERROR" in result.stdout and "the exchange refused" in result.stdout


def test_removed_rows_must_be_all_that_must_not_be_there(fake: FakeRelay) -> None:
    wrong = {"surplus_rows": 2, "off_grid_rows": 1, "unexpected_periods": 1}
    fake.verified = answers(**wrong, removed_rows=4)
    result = run("--repair")
    assert result.exit_code == 0 and "4 rows removed that the table must not have" in result.stderr
    assert "4 of 4 unexpected, surplus and off-grid rows" in result.stdout
    fake.verified = answers(**wrong, removed_rows=3)
    result = run("--repair")
    assert result.exit_code == 1 and "the repair is not complete; repair again" in result.stdout


def test_json_is_one_object(fake: FakeRelay) -> None:
    repaired(fake)
    result = run("--repair", "--json", "--quiet")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and result.stderr == "" and found["well"]
    assert [each["status"] for each in found["repairs"]] == ["OK", "OK"]
    assert (found["lost_periods"], found["lost"][0]["since"]) == (4, "2024-01-01T02:00:00Z")


def test_empty_series_and_an_answer_without_result(fake: FakeRelay) -> None:
    fake.verified = [coverage_pb.VerifyCoverageResponse(result=coverage_pb.VerifyResult())]
    fake.markets["SIM"] = history_pb.ListInstrumentsResponse(instruments=[history_pb.Instrument(ticker=TICKER)])
    result = run()
    assert (result.exit_code, result.stdout) == (0, f"{TICKER} 1h: neither the table nor its coverage has any rows\n")
    fake.verified = fake.verified[:0]
    result = run()
    assert result.exit_code == 1 and "without a result" in result.stderr


def test_a_misspelt_ticker_is_refused(fake: FakeRelay) -> None:
    fake.verified = [coverage_pb.VerifyCoverageResponse(result=coverage_pb.VerifyResult())]
    fake.markets["SIM"] = history_pb.ListInstrumentsResponse(
        instruments=[history_pb.Instrument(ticker="OTHER/USDT.SIM")]
    )
    result = run("--json")
    unknown = f"'{TICKER}' is not a market of SIM (see `dexorder markets SIM`), and no data of it is stored"
    error = {"kind": "RequestRefused", "message": unknown, "exit_code": 2}
    assert (result.exit_code, json.loads(result.stdout)) == (2, {"error": error})
    assert result.stderr == f"dexorder: {unknown}\n"
    fake.markets.clear()
    result = run()
    assert result.exit_code == 1 and "venue 'SIM' is unknown" in result.stderr
    fake.verified = answers()
    assert run().exit_code == 0, "what is stored is verified, whether or not the exchange still has the market"


def candle(close: float) -> OHLCV:
    return OHLCV(open_time_ns=START, open=1.0, high=9.0, low=0.5, close=close, volume=7.0)


def compared(**fields: Any) -> coverage_pb.ValueComparison:
    return coverage_pb.ValueComparison(
        **{"cell_seconds": [86_400, 7_200], "compared_periods": 24, "calls": 3, **fields}
    )


DIFFERING: dict[str, Any] = {
    "differing": [coverage_pb.ValueDifference(cell=hours(0, 24), exchange=candle(2.0), table=candle(3.0))],
    "differing_cells": 1,
    "differing_periods": 24,
}


def test_values_that_agree_and_what_was_not_compared(fake: FakeRelay) -> None:
    fake.verified = answers(values=compared(uncompared=[hours(24, 30)], uncompared_periods=6))
    result = run()
    lines = [" ".join(each.split()) for each in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert "values 24 periods compared with the exchange's 1d and 2h candles, 3 calls" in lines
    assert "2024-01-02T00:00:00Z 2024-01-02T06:00:00Z 6" in lines
    text = "24 periods agree with the exchange's 1d and 2h candles, 6 periods were not compared"
    assert lines[-1] == f"{TICKER} 1h: {text}"


def test_differences_are_told_with_both_values(fake: FakeRelay) -> None:
    fake.verified = answers(values=compared(**DIFFERING))
    result = run()
    assert result.exit_code == 1
    assert "close 3.0, 2.0 at the exchange" in result.stdout
    assert "24 periods differ from the exchange; repair the table with --repair" in result.stdout
    found = json.loads(run("--json").stdout)
    assert not found["well"] and found["values"]["differing"][0]["table"]["close"] == 3.0


def test_differences_that_a_repair_leaves_are_the_exchanges(fake: FakeRelay) -> None:
    fake.submitted = [ingest_pb2.SubmitHistoricalRequest(request_id="verify-x-0001", ticker=TICKER)]
    repaired = compared(**DIFFERING, repaired_periods=24)
    fake.verified = answers(values=repaired, values_after_repair=compared(), repair_request_ids=["verify-x-0001"])
    result = run("--repair")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith("24 periods agree with the exchange's 1d and 2h candles")
    fake.verified[-1].result.values_after_repair.CopyFrom(compared(**DIFFERING))
    result = run("--repair")
    assert result.exit_code == 0
    assert "1 cell still different after the repair" in result.stdout and "contradict each other" in result.stdout
    assert any(each.rstrip().endswith("still") for each in result.stdout.splitlines())
    fake.verified[-1].result.values.repaired_periods = 0
    result = run("--repair")
    assert result.exit_code == 1 and "did not fetch them all again" in result.stdout


def test_values_that_could_not_be_compared_are_no_agreement(fake: FakeRelay) -> None:
    fake.verified = answers(values=coverage_pb.ValueComparison(uncompared_periods=30))
    result = run()
    assert result.exit_code == 0, "there is nothing to compare with"
    assert result.stdout.splitlines()[-1].endswith(
        "values not compared: the exchange has no coarser candles of 1h that check them"
    )
    errors = ["1d candles: SIM is away"]
    fake.verified = answers(values=compared(compared_periods=0, uncompared_periods=30, errors=errors))
    result = run()
    assert result.exit_code == 1
    assert "not compared: 1d candles: SIM is away" in result.stdout
    assert "the values could not all be compared" in result.stdout
