import json
from typing import Any

from typer.testing import CliRunner, Result

from dexorder.cli.app import app
from services.gen.dexorder.ingest.v1 import ingest_pb2
from services.gen.dexorder.relay.v1 import relay_service_pb2 as pb
from tests.fakes.candle_table import START, TICKER
from tests.fakes.relay_server import FakeRelay, Notify, ended

HOUR_NS = 3_600_000_000_000


def hours(start: int, end: int) -> pb.TimeRange:
    return pb.TimeRange(start_time=START + start * HOUR_NS, end_time=START + end * HOUR_NS)


def answers(**result: Any) -> list[pb.VerifyCoverageResponse]:
    whole: dict[str, Any] = {"checked": hours(0, 30), "rows": 30, "row_periods": 30, **result}
    return [
        pb.VerifyCoverageResponse(progress=pb.VerifyProgress(windows=1)),
        pb.VerifyCoverageResponse(result=pb.VerifyResult(**whole)),
    ]


def repaired(fake: FakeRelay) -> None:
    """A relay that finds four hours lost, and whose two requests fetch them."""
    ids = ["verify-x-0001", "verify-x-0002"]
    fake.verified = answers(
        lost=[hours(2, 5), hours(9, 10)], lost_periods=4, repair_request_ids=ids, repaired_periods=4
    )
    fake.submitted = [ingest_pb2.SubmitHistoricalRequest(request_id=each, ticker=TICKER) for each in ids]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", TICKER, "1h", *arguments])


def test_table_and_coverage_agree(fake: FakeRelay) -> None:
    fake.verified = answers(unclaimed_periods=3)
    result = run("--since", "2024-01-01")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"{TICKER} 1h: table and coverage agree", "unclaimed rows are not a fault"
    assert fake.asked == [pb.VerifyCoverageRequest(ticker=TICKER, period_seconds=3_600, start_time=START)]


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
        assert advice in lines[-1]


def test_exit_code_depends_on_the_repairs(fake: FakeRelay) -> None:
    repaired(fake)
    result = run("--repair")
    assert result.exit_code == 0, result.stderr
    assert fake.asked[0].repair
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
    fake.verified = [pb.VerifyCoverageResponse(result=pb.VerifyResult())]
    result = run()
    assert (result.exit_code, result.stdout) == (0, f"{TICKER} 1h: neither the table nor its coverage has any rows\n")
    fake.verified = fake.verified[:0]
    result = run()
    assert result.exit_code == 1 and "without a result" in result.stderr
